"""Talks to the clocks: the only place that reads them for the bus and the services' shells.

`now()` counts seconds from an arbitrary point and keeps counting while the machine sleeps, so
that a holder that slept knows that its term has lapsed. `wall()` is for people and files.
"""

from __future__ import annotations

import time

_SLEEPLESS = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC_RAW", None)


def now() -> float:
    """Return monotonic seconds with sleep (Linux CLOCK_BOOTTIME, macOS CLOCK_MONOTONIC_RAW)."""
    return time.clock_gettime(_SLEEPLESS) if _SLEEPLESS is not None else time.monotonic()


def wall() -> float:
    """Return the seconds since the epoch."""
    return time.time()
