"""Talks to the compiler: makes the file that sends one row to `cblas_sgemv`, where there is one.

What lies there is loaded as code into every runner. So it lies in a folder of this user alone, has
the hash of its source in its name, and is taken only where no other user could have written it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("one_row.c")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_S = 20.0
INSTALL_HINT = "install a C compiler (gcc, clang), then `shoal down` and `shoal up`"


class NoInterposer(Exception):
    """The file cannot be had; `args[0]` says why, `args[1]` what to do."""


def interposer_in(folder: Path) -> Path | None:
    """Return the file where it lies ready. Raises NoInterposer where another user could have
    written it."""
    path = folder / _name()
    if not path.exists():
        return None
    for place, is_kind in ((folder, stat.S_ISDIR), (path, stat.S_ISREG)):
        found = place.lstat()
        if not is_kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise NoInterposer(f"{place} is not this user's alone", f"remove {place}")
    return path


def make_interposer(folder: Path) -> Path:
    """Return the file, compiled into `folder` where it does not lie there yet. Raises
    NoInterposer."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready = interposer_in(folder)
    if ready is not None:
        return ready
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NoInterposer("there is no C compiler", INSTALL_HINT)
    for old in folder.glob("one-row-*"):
        old.unlink(missing_ok=True)
    draft = folder / f"one-row-draft-{os.getpid()}.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(draft), str(SOURCE), "-ldl"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoInterposer(f"{compiler}: {error}", INSTALL_HINT) from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
        raise NoInterposer(f"{compiler}: {said[:200]}", INSTALL_HINT)
    draft.chmod(0o600)
    os.replace(draft, folder / _name())
    made = interposer_in(folder)
    if made is None:
        raise NoInterposer(f"{folder} does not keep what is written there", f"look at {folder}")
    return made


def _name() -> str:
    text = SOURCE.read_bytes() + platform.machine().encode()
    return f"one-row-{hashlib.sha256(text).hexdigest()[:16]}.so"
