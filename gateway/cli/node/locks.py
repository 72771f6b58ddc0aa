"""Talks to the disk: the files that the processes of one home lock.

Each process of a node locks a file of its own. It writes its pid into the file, and the version and
tree hash of its code. So a locked file names a live process of this home and its code, and an
unlocked file is left over from an earlier process. Old versions of shoal do not write their code;
their processes count as running other code.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Mapping
from pathlib import Path

from bus.process.installation import installed_code
from conf.paths import Paths

GATEWAY_LOCK = "gateway.role"
"""Name of the file that the gateway locks, in the runtime folder."""
UNTOLD = "an older version"
REMEDY = "run `shoal restart` to start all processes from the installed code"


def lock_holder(path: Path) -> int | None:
    """Return the pid of the process that holds the lock of `path`; None if it is free."""
    with contextlib.suppress(OSError), open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            text = file.readline().strip()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES) and text.isdigit():
                return int(text)
    return None


def is_locked(path: Path) -> bool:
    """Return whether a live process holds the lock of `path`, or the file cannot be read."""
    with contextlib.suppress(OSError), open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    return True


def running_codes(paths: Paths) -> dict[str, str]:
    """Return the code of each live process of this home, by process name."""
    files = sorted(paths.runtime.glob("*.role"))
    return {path.stem: _code_in(path) for path in files if lock_holder(path) is not None}


def mix(paths: Paths) -> str:
    """Return a text that names the processes of the node whose code differs from this command's;
    empty if none does."""
    return describe_mix(running_codes(paths), installed_code())


def describe_mix(running: Mapping[str, str], installed: str) -> str:
    """Return a text that names the processes whose code differs from the installed code; empty if
    none does."""
    others: dict[str, list[str]] = {}
    for name, code in running.items():
        if code != installed:
            others.setdefault(code, []).append(name)
    if not others:
        return ""
    others_text = "; ".join(f"{', '.join(names)}: {code}" for code, names in sorted(others.items()))
    return f"processes run other code than the installed one ({installed}): {others_text}"


def _code_in(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return UNTOLD
    return lines[1] if len(lines) > 1 else UNTOLD
