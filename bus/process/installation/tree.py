"""Talks to the disk: identifies the code of shoal on the disk, and the code that this process runs.

A process loads its modules at its start. Code that is installed later does not change a running
process, so processes started later may run different code. The code is identified by a fingerprint
of the contents of all its files (the tree), so installing the same code again changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

from bus.process.installation.kinds import DISTRIBUTION

PACKAGES = ("bus", "master", "worker", "runner", "gateway", "telemetry", "conf")
ROOT = Path(__file__).resolve().parents[3]
SUFFIXES = (".py", ".toml")


def installed_code(root: Path = ROOT) -> str:
    """Return `version/tree` of the code that is on the disk now. Reads all files, which takes some
    ten milliseconds."""
    return f"{shoal_version()}/{tree_of(root)}"


@functools.cache
def running_code() -> str:
    """Return `version/tree` of the code that this process was started from. The first call must
    come at the start of the process."""
    return installed_code()


def tree_of(root: Path) -> str:
    """Return the fingerprint of our packages in a folder, 8 hexadecimal digits."""
    fingerprint = blake2b(digest_size=4)
    for package in PACKAGES:
        for folder, below, files in os.walk(root / package):
            below[:] = sorted(name for name in below if name != "__pycache__")
            inside = os.path.relpath(folder, root)
            for name in sorted(files):
                if name.endswith(SUFFIXES):
                    fingerprint.update(os.path.join(inside, name).encode() + b"\0")
                    # a file that vanishes meanwhile is a change, too
                    with (
                        contextlib.suppress(OSError),
                        open(os.path.join(folder, name), "rb", buffering=0) as file,
                    ):
                        fingerprint.update(file.read())
    return fingerprint.hexdigest()


def shoal_version() -> str:
    """Return the installed version; `unknown` if there is none."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
