"""Reads parameters from the query string of a URL, and checks their types."""

from __future__ import annotations

import math

from falcon.asgi import Request

from gateway.dialects.body import bad_field

_YES_NO = {"true": True, "1": True, "false": False, "0": False}


def number_of(req: Request, name: str, default: float, *, least: float, most: float) -> float:
    """Return the number that a query parameter has, or `default` if the parameter is missing.
    Raises BadRequest if the value is no number or lies outside of [`least`, `most`]."""
    text = req.get_param(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise bad_field(name, f"must be a number from {least:g} to {most:g}")
    return number


def is_yes(req: Request, name: str, *, default: bool = False) -> bool:
    """Return True for a parameter of `true` or `1`, False for `false` or `0`, and `default` if the
    parameter is missing. Raises BadRequest for any other value."""
    text = req.get_param(name)
    if text is None:
        return default
    if text.casefold() not in _YES_NO:
        raise bad_field(name, "must be true or false")
    return _YES_NO[text.casefold()]
