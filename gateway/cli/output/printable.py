"""Escape text from other programs and people, so that it cannot control the terminal.

Pure. Names of clients and nodes, errors and answers may contain escape sequences. Those can move
the cursor, overwrite text or send input. Other control characters reverse the direction of text or
break lines. Each such character is shown as Python writes it: `\\x1b`.
"""

from __future__ import annotations

import re

_COMMANDS = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tab and line feed
    r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # lines and directions
    r"\ud800-\udfff"  # halves of a character, which cannot be written
)
_NEVER = re.compile(f"[{_COMMANDS}]")
_NOT_IN_A_LINE = re.compile(f"[{_COMMANDS}\\n\\t]")


def printable(text: str) -> str:
    """Return a text of one or several lines with control characters escaped."""
    return _NEVER.sub(_shown, text)


def printable_line(text: str) -> str:
    """Return the text with control characters, tabs and line breaks escaped."""
    return _NOT_IN_A_LINE.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
