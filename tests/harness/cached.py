"""Folders that outlive checkouts: made once a machine, named by what they are made from.

Each lies under `$XDG_CACHE_HOME/shoal-tests` (or ~/.cache). It is made beside its place and then
renamed, so that of two runs at once neither meets half of it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def cache() -> Path:
    """Return the folder of all that is cached."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "shoal-tests"


def made(name: str, pins: Iterable[Path], install: Callable[[Path], None]) -> Path:
    """Return the cached folder for the contents of `pins`; `install` fills a new one."""
    digest = hashlib.sha256(b"".join(pin.read_bytes() for pin in pins)).hexdigest()[:16]
    kept = cache() / f"{name}-{sys.platform}-{digest}"
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=kept.parent))
    try:
        install(new)
        new.chmod(0o755)
        new.rename(kept)
    except OSError:
        if not kept.is_dir():
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return kept
