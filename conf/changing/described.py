"""Reads the meaning of each setting from the comments of `default.toml`, and renders the first
`shoal.toml`, in which every setting is commented out.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST_LINES = """\
# The settings of this node. A line that is commented out shows the default: remove its # to change
# it, or run `shoal config set NAME VALUE`. `shoal config show` prints every value and its source.
# The environment (SHOAL_HTTP_PORT=8080, SHOAL_RUNNER__MAX_ROWS=16) and flags of `shoal up` override
# this file.
"""


def descriptions(text: str) -> Mapping[str, str]:
    """Return the comment above each setting in `text`, by dotted key; settings on adjacent lines
    share a comment."""
    by_key: dict[str, str] = {}
    table, comment, is_fresh = "", list[str](), False
    for line in text.splitlines():
        if line.startswith("#"):
            comment = [*(comment if is_fresh else []), line.removeprefix("#").strip()]
        elif line.startswith("["):
            table, comment = line.strip("[] ") + ".", []
        elif "=" in line:
            by_key[table + line.partition("=")[0].strip()] = " ".join(comment)
        is_fresh = line.startswith("#")
    return by_key


def commented(text: str) -> str:
    """Return the text of a first `shoal.toml`; `text` is the text of `default.toml`. Every setting
    is commented out by a `#` without a blank. A new first paragraph explains the file."""
    _, _, rest = text.partition("\n\n")
    lines = [
        f"#{line}" if line and not line.startswith(("#", "[")) else line
        for line in rest.splitlines()
    ]
    return FIRST_LINES + "\n" + "\n".join(lines) + "\n"
