"""Talks to the disk: the installed code's version and fingerprint, the tool that installed it, and
environments of other packages.

This room reads files of installations only. It knows nothing about a node.
"""

from bus.process.installation.commands import NewWheel, in_order, upgrade_of, version_of
from bus.process.installation.environments import (
    ENVIRONMENTS,
    LOCK,
    MANIFEST,
    VENV,
    Environment,
    environment_in,
    names_in,
    write_manifest,
)
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
    "ENVIRONMENTS",
    "LOCK",
    "MANIFEST",
    "PACKAGES",
    "ROOT",
    "SUFFIXES",
    "VENV",
    "Environment",
    "Installation",
    "NewWheel",
    "command_to_add",
    "environment_in",
    "in_order",
    "installed_code",
    "names_in",
    "own_installation",
    "own_pip",
    "running_code",
    "shoal_version",
    "upgrade_of",
    "version_of",
    "write_manifest",
]
