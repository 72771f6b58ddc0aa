"""Talks to the terminal: `shoal version`, which version of shoal this program is of."""

from __future__ import annotations

from bus.process.tree import shoal_version
from gateway.cli.command import Invocation


def version(invocation: Invocation) -> None:
    """Print the version of shoal, like `shoal --version`."""
    found = shoal_version()
    invocation.output.document({"version": found})
    invocation.output.say(f"shoal {found}")
