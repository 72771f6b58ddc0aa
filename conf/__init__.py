"""The settings of a node. Only composition roots (each process's `__main__`) read them. `conf` is
the only package that has no process of its own."""
