"""How exactly a trace tells of time.

Pure.
"""

DIGITS = 6
"""Of a second: a microsecond is told."""
_UNITS = 10.0**DIGITS


def rounded(seconds: float) -> float:
    """Return seconds as a trace tells them."""
    return round(seconds * _UNITS) / _UNITS  # half of the time that round(seconds, DIGITS) takes
