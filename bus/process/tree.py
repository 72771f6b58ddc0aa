"""Talks to the disk: which code of shoal lies there, and which this process was started from.

A process has its modules from its start: code that is installed over them later is not what it
runs, and a process that starts after that runs another tree beside it. A tree is told by a
fingerprint of its files' contents, so that installing the same again is no change.
"""

from __future__ import annotations

import contextlib
import functools
import os
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

PACKAGES = ("bus", "master", "worker", "runner", "gateway", "telemetry", "conf")
ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".toml")


def installed_code(root: Path = ROOT) -> str:
    """Return `version/tree` of the code that lies on the disk now. Reads it all: some ten
    milliseconds."""
    return f"{shoal_version()}/{tree_of(root)}"


@functools.cache
def running_code() -> str:
    """Return `version/tree` of the code that this process was started from; to be called first
    when it starts."""
    return installed_code()


def tree_of(root: Path) -> str:
    """Return the fingerprint of our packages in a folder, 8 hexadecimal digits."""
    found = blake2b(digest_size=4)
    for package in PACKAGES:
        for folder, below, files in os.walk(root / package):
            below.sort()
            for name in sorted(files):
                if name.endswith(SUFFIXES):
                    path = os.path.join(folder, name)
                    found.update(os.path.relpath(path, root).encode() + b"\0")
                    # a file that vanishes meanwhile is a change as well
                    with contextlib.suppress(OSError), open(path, "rb") as file:
                        found.update(file.read())
    return found.hexdigest()


def shoal_version() -> str:
    """Return the version that is installed, `unknown` without one."""
    try:
        return metadata.version("shoal")
    except metadata.PackageNotFoundError:
        return "unknown"
