"""What the query of a URL says, read as the type that is wanted; else refused, and named."""

from __future__ import annotations

import math

from falcon.asgi import Request

from gateway.dialects.body import bad_field

_YES_NO = {"true": True, "1": True, "false": False, "0": False}


def number_of(req: Request, name: str, default: float, *, least: float, most: float) -> float:
    """Return a number of the query. Raises BadRequest where it is none, or out of bounds."""
    text = req.get_param(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise bad_field(name, f"a number from {least:g} to {most:g}")
    return number


def is_yes(req: Request, name: str, *, default: bool = False) -> bool:
    """Return whether a name of the query says yes. Raises BadRequest where it says neither."""
    text = req.get_param(name)
    if text is None:
        return default
    if text.casefold() not in _YES_NO:
        raise bad_field(name, "true or false")
    return _YES_NO[text.casefold()]
