"""How exactly a trace tells of time.

Pure.
"""

DIGITS = 6
"""Of a second: a microsecond is told."""


def rounded(seconds: float) -> float:
    """Return seconds as a trace tells them."""
    return round(seconds, DIGITS)
