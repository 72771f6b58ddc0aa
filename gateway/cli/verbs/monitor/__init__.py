"""Talks to a node and the terminal: the verbs that show what the cluster does, and what its runners
did last.

What is shown, and how it fits a terminal, is pure.
"""

from gateway.cli.verbs.monitor.verb import monitor

__all__ = ["monitor"]
