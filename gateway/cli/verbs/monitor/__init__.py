"""Talks to a node and the terminal: `shoal monitor` and `shoal timeline`.

The modules that choose what the display shows, and fit it to the terminal, are pure.
"""

from gateway.cli.verbs.monitor.verb import monitor

__all__ = ["monitor"]
