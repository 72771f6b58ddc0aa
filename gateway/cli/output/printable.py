"""Text as a terminal may have it: what others have named, asked or answered commands no terminal.

Pure. Names of clients and nodes, errors and answers may hold escape sequences, which move the
cursor, rewrite what stands there, or type; and marks that turn the direction of letters, or break
lines. Each such character is shown as Python would write it: `\\x1b`.
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
    """Return a text of one line or several, every character of which only shows itself."""
    return _NEVER.sub(_shown, text)


def printable_line(text: str) -> str:
    """Return the same in one line."""
    return _NOT_IN_A_LINE.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
