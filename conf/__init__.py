"""Settings. Only composition roots read them. `conf` is the only package without a process."""
