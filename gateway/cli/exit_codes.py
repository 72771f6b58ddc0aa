"""The exit code of an interrupt. It has a module of its own because `app` imports it before all
else."""

INTERRUPTED = 130
"""After Ctrl-C, as in shells."""
