"""The requests that a page of operations prints as commands of curl, for tests to send."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from tests.harness.nodes import ROOT

AT = "http://127.0.0.1:52415"


class Printed(NamedTuple):
    """One line: its method, path with query, and body, None for none."""

    method: str
    path: str
    body: str | None


def printed(page: str, path: str) -> list[Printed]:
    """Return the requests of a page of `docs/operations` whose path begins like this, in order."""
    text = (ROOT / "docs" / "operations" / page).read_text().replace("\\\n", " ")
    found: list[Printed] = []
    for words in _commands(text):
        url = next(word for word in words if AT in word)
        if not url.startswith(f"{AT}{path}"):
            continue
        body = words[words.index("-d") + 1] if "-d" in words else None
        said = words[words.index("-X") + 1] if "-X" in words else None
        method = said or ("GET" if body is None else "POST")
        found.append(Printed(method, url.removeprefix(AT), body))
    return found


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of curl to a node; a quoted body may have several lines."""
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith("curl ") or AT not in line:
            continue
        while line.count("'") % 2:
            line += "\n" + next(lines)
        yield shlex.split(line)
