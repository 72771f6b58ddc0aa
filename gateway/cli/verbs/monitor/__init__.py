"""Talks to a node and the terminal: `shoal monitor` and `shoal timeline`.

The contents of the display and its fit to a terminal are pure.
"""

from gateway.cli.verbs.monitor.verb import monitor

__all__ = ["monitor"]
