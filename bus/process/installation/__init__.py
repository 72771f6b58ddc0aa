"""Talks to the disk: the installed code's version and fingerprint, and the tool that installed it.

This room reads files of the installation only. It knows nothing about a node.
"""

from bus.process.installation.commands import NewWheel, in_order, upgrade_of, version_of
from bus.process.installation.evidence import command_to_add, own_installation, own_pip
from bus.process.installation.kinds import DISTRIBUTION, Installation
from bus.process.installation.tree import (
    PACKAGES,
    ROOT,
    SUFFIXES,
    installed_code,
    running_code,
    shoal_version,
)

__all__ = [
    "DISTRIBUTION",
    "PACKAGES",
    "ROOT",
    "SUFFIXES",
    "Installation",
    "NewWheel",
    "command_to_add",
    "in_order",
    "installed_code",
    "own_installation",
    "own_pip",
    "running_code",
    "shoal_version",
    "upgrade_of",
    "version_of",
]
