"""Talks to the C library and the collector: gives memory that was freed back to the system.

glibc keeps what is freed below a block still in use, so a process whose arrays come and go in all
sizes stays as large as its worst moment many times over. `give_back` returns such pages. Other C
libraries do so by themselves, or offer no such call.
"""

from __future__ import annotations

import ctypes
import gc
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


def keep() -> None:
    """What there is now stays as long as the process: later collections need not look at it."""
    gc.collect()
    gc.freeze()


def tidy() -> None:
    """Let go of what only refers to itself, and give back what is free. For an idle process: it
    takes milliseconds."""
    gc.collect()
    give_back()
