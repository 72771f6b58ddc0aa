"""Disks that can be full or read-only: a file system in memory, mounted for a while."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

needs_mounts = pytest.mark.skipif(
    os.getuid() != 0 or sys.platform != "linux", reason="mounts a disk of its own"
)


@contextmanager
def small_disk(folder: Path, size: str = "1m") -> Generator[Path]:
    """A disk of one MiB, or of another size."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def filled(folder: Path) -> Path:
    """Fill the disk of a folder; return the file that takes all of its room."""
    ballast = folder / "ballast"
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def remounted(folder: Path, how: str) -> None:
    """Make a disk read-only ("ro"), or writable again ("rw"); or of another size ("size=16m")."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)
