"""Talks to the terminal: `shoal version`."""

from __future__ import annotations

from bus.process.tree import shoal_version
from gateway.cli.command import Invocation


def version(invocation: Invocation) -> None:
    """Print the version of shoal, like `shoal --version`."""
    number = shoal_version()
    invocation.output.document({"version": number})
    invocation.output.say(f"shoal {number}")
