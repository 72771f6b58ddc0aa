"""Talks to a node and the terminal: the verb that goes on showing what the cluster does.

What is shown, and how it fits a terminal, is pure.
"""

from gateway.cli.verbs.monitor.verb import monitor

__all__ = ["monitor"]
