"""Finds the line of a key in the text of a card, for messages. Pure."""

from __future__ import annotations

import re
import tomllib

_KEY = re.compile(r"""[ \t]*\[{0,2}[ \t]*["']?([A-Za-z0-9_-]+)""")


def line_of(text: str, key: str) -> int:
    """Return the line on which a key of a card begins, from 1 on; 0 if there is none. A line inside
    a multi-line string does not count: the text before such a line is not valid TOML."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        match = _KEY.match(line)
        if not key or match is None or match[1] != key:
            continue
        try:
            tomllib.loads("".join(lines[: number - 1]))
        except ValueError:
            continue
        return number
    return 0
