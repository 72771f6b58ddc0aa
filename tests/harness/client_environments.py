"""Environments of their own for clients whose pins clash with ours, made by `uv` from locks.

An environment lies in the user's cache (`$XDG_CACHE_HOME`, or ~/.cache) in `shoal-tests`, named
by the client and a digest of its lock, so that an unchanged lock is installed once a machine. It is
made beside its place and renamed into it: of two runs that make it, the first one's is kept.
`python -m tests.harness.client_environments NAME...` makes those that it names.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.harness.cached import cache
from tests.harness.nodes import ROOT

LOCKS = ROOT / "tests" / "clients" / "environments"
NO_NEWER = {"aider": (3, 12)}
"""The last minor version of Python that a client takes."""
OFFLINE = re.compile(
    r"error sending request|dns error|failed to lookup|client error \(Connect\)|timed? ?out",
    re.IGNORECASE,
)


class Unavailable(Exception):
    """An environment cannot be made on this machine now, for a reason that is not ours."""


def client_python(name: str, locks: Path = LOCKS) -> Path:
    """Return the Python of a client's environment, made where it is not there yet.

    Raises `Unavailable`, in words, where the package index cannot be reached or the client takes no
    Python as new as this; `RuntimeError` with what `uv` said for all else, such as a lock that does
    not install.
    """
    newest = NO_NEWER.get(name)
    if newest is not None and sys.version_info[:2] > newest:
        raise Unavailable(f"{name} takes no Python above {newest[0]}.{newest[1]}")
    lock = locks / f"{name}.txt"
    place = cache() / f"{name}-{_digest(lock)}"
    if not place.exists():
        _make(name, lock, place)
    return place / "bin" / "python"


def _digest(lock: Path) -> str:
    version = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.sha256(f"{version}\n{lock.read_text()}".encode()).hexdigest()[:16]


def _make(name: str, lock: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        _uv(name, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(beside))
        python = str(beside / "bin" / "python")
        _uv(name, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(lock))
        try:
            beside.rename(place)
        except OSError:
            if not place.exists():  # else another run was sooner, with the same lock
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _uv(name: str, *words: str) -> None:
    uv = Path(sys.executable).parent / "uv"
    command = [str(uv), *words, "--no-config"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode == 0:
        return
    if OFFLINE.search(done.stderr):
        last = done.stderr.strip().splitlines()[-1].strip()
        raise Unavailable(f"{name} is not in {cache()}, and cannot be fetched: {last}")
    raise RuntimeError(f"uv cannot make the environment of {name}: {done.stderr.strip()}")


def main() -> int:
    """Make the environments that the command line names; returns how many cannot be made."""
    unmade = 0
    for name in sys.argv[1:]:
        try:
            print(f"{name}: {client_python(name)}", flush=True)
        except (Unavailable, RuntimeError) as problem:
            unmade += 1
            print(f"{name}: {problem}", flush=True)
    return unmade


if __name__ == "__main__":
    sys.exit(main())
