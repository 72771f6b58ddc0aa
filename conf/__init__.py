"""The settings of a node. Only the `__main__` module of each process and the command line
(`gateway/cli`) read them. `conf` is the only package that has no process of its own."""
