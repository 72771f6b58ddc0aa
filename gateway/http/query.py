"""Reads typed parameters from the query of a URL."""

from __future__ import annotations

import math

from falcon.asgi import Request

from gateway.dialects.body import bad_field

_YES_NO = {"true": True, "1": True, "false": False, "0": False}


def number_of(req: Request, name: str, default: float, *, least: float, most: float) -> float:
    """Return a number of the query, or `default`. Raises BadRequest for other text, and outside of
    [`least`, `most`]."""
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
    """Return whether a parameter is true (`true`, `1`), not false (`false`, `0`). Raises BadRequest
    for any other value."""
    text = req.get_param(name)
    if text is None:
        return default
    if text.casefold() not in _YES_NO:
        raise bad_field(name, "true or false")
    return _YES_NO[text.casefold()]
