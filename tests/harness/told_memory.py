"""Talks to the kernel: a node that reads what memory is free from a file of the test's, by a mount
that it alone sees (a mount namespace over /proc/meminfo). Needs root on Linux."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

MEMINFO = "/proc/meminfo"


class ToldMemory:
    """One node's `/proc/meminfo`: the machine's, but for what it says is there and free."""

    def __init__(self, file: Path, total_bytes: int) -> None:
        self.file = file
        self._total_bytes = total_bytes
        self.tell(total_bytes)

    @property
    def inside(self) -> tuple[str, ...]:
        """The words before a command that reads this."""
        mounts = f'mount --bind {self.file} {MEMINFO} && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", mounts, "sh")

    def tell(self, free_bytes: int) -> None:
        """Say how much is free. The file is written at once, in place, and keeps its length: who
        reads it never finds half of it."""
        figures = {"MemTotal": self._total_bytes, "MemFree": free_bytes, "MemAvailable": free_bytes}
        text = Path(MEMINFO).read_text() if not self.file.exists() else self.file.read_text()
        for name, figure in figures.items():
            text = re.sub(rf"^{name}:.*$", f"{name}: {figure // 1024:15d} kB", text, flags=re.M)
        file = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, text.encode(), 0)
        finally:
            os.close(file)


def needs_told_memory() -> None:
    """Skip a test where there can be no such mounts."""
    words = ["unshare", "--mount", "sh", "-c", f"mount --bind /dev/null {MEMINFO}"]
    try:
        said = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no `unshare` here")
    if said.returncode:
        pytest.skip(f"no mounts of its own here: {said.stderr.decode().strip()}")
