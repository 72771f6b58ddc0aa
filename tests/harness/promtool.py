"""Talks to Debian's mirror: Prometheus's own checker, unpacked outside the checkout, not installed.

`python -m tests.harness.promtool` fetches it, into the cache where clients in JavaScript are too;
one that is on the path is taken as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.harness.cached import cache

NETWORK_S = 180.0


class NoPromtool(RuntimeError):
    """It cannot be had here; the text says why."""


def promtool() -> Path:
    """Return the program, fetched where it has to be."""
    on_path = shutil.which("promtool")
    if on_path is not None:
        return Path(on_path)
    kept = cache() / "prometheus" / "usr" / "bin" / "promtool"
    if not kept.exists():
        _fetch(cache() / "prometheus")
    return kept


def _fetch(into: Path) -> None:
    """Unpack the package beside its place and move it there, so that two runs do not meet half."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise NoPromtool("promtool is not here, and no Debian package can be fetched (no apt-get)")
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent) as made:
        _run(Path(made), "apt-get", "download", "prometheus")
        package = next(Path(made).glob("prometheus_*.deb"))
        _run(Path(made), "dpkg", "-x", package.name, "unpacked")
        try:
            (Path(made) / "unpacked").rename(into)
        except OSError:
            if not into.exists():
                raise


def _run(folder: Path, *words: str) -> None:
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=NETWORK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoPromtool(f"{' '.join(words)}: no answer within {NETWORK_S:g} s") from None
    if done.returncode:
        raise NoPromtool(f"{' '.join(words)}: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    sys.stdout.write(f"{promtool()}\n")
