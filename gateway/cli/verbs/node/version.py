"""Talks to the terminal: `shoal version`, which version of shoal this program is of."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

from gateway.cli.command import Invocation


def version(invocation: Invocation) -> None:
    """Tell the version of this program; `shoal --version` does the same."""
    try:
        found = version_of("shoal")
    except PackageNotFoundError:
        found = "unknown (not installed)"
    invocation.output.document({"version": found})
    invocation.output.say(f"shoal {found}")
