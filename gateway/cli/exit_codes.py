"""The exit code of an interrupted command.

The constant has its own small module, because `app` imports it before any slow import.
"""

INTERRUPTED = 130
"""The exit code after Ctrl-C, the same as in shells."""
