"""Settings: the only package that is not a process; read by composition roots alone."""
