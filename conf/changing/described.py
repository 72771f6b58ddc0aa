"""What each setting means, from the text that documents them all; and that text as a file in which
nothing is set yet.

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
    """Return the comment above each setting, by dotted key; settings below it share it."""
    found: dict[str, str] = {}
    table, said, is_fresh = "", list[str](), False
    for line in text.splitlines():
        if line.startswith("#"):
            said = [*(said if is_fresh else []), line.removeprefix("#").strip()]
        elif line.startswith("["):
            table, said = line.strip("[] ") + ".", []
        elif "=" in line:
            found[table + line.partition("=")[0].strip()] = " ".join(said)
        is_fresh = line.startswith("#")
    return found


def commented(text: str) -> str:
    """Return the defaults as a person's file of settings: every setting is commented out, behind a
    `#` without a blank, and the first paragraph tells what the file is."""
    _, _, rest = text.partition("\n\n")
    lines = [
        f"#{line}" if line and not line.startswith(("#", "[")) else line
        for line in rest.splitlines()
    ]
    return FIRST_LINES + "\n" + "\n".join(lines) + "\n"
