"""Exit codes that are not an error's own; here alone, for what has to load at once."""

INTERRUPTED = 130
"""After Ctrl-C, as in shells."""
