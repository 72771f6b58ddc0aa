"""Talks to the C library: gives memory that was freed back to the system.

glibc keeps what is freed below a block still in use, so a process whose arrays come and go in all
sizes stays as large as its worst moment many times over. `give_back` returns such pages. Other C
libraries do so by themselves, or offer no such call.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


def _trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


_TRIM = _trim()


def give_back() -> bool:
    """Return free pages; whether there were any. Takes milliseconds per hundred MB."""
    return _TRIM is not None and bool(_TRIM(0))
