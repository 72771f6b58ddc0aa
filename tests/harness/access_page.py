"""Make the lists of docs/operations/security.md that say who may use what.

They stand between two marks; people write the rest of the page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from bus.calls import CALLS
from gateway.http.openapi import Route
from gateway.http.routes import KEYLESS, NODES, RIGHTS, ROUTES, topics, with_a_key

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "security.md"
ORDER = [
    ("anyone", "nothing"),
    ("anyone", "`inference`"),
    ("anyone", "`admin`"),
    ("pulls", "`admin`"),
    ("owner", "`admin`"),
]
"""The rules in the order of the page; a new one fails here."""
BEGIN, END = "<!-- made by `make docs` from gateway/http/routes -->\n", "<!-- end -->\n"


def page() -> str:
    """Return the page with the lists as the code has them."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    blocks = "\n".join(lines())
    return f"{before}{BEGIN}\n{blocks}\n{END}{after}"


def lines() -> Iterator[str]:
    """Yield a block of routes for each pair of rules, then the calls and topics of the bus."""
    for (who, scope), routes in sorted(rules().items(), key=lambda row: ORDER.index(row[0])):
        yield from block(f"Without a key: {KEYLESS[who]}. With keys: {scope}.", paths(routes))
    for right, who in RIGHTS.items():
        calls = sorted(call.name for call in CALLS.values() if call.right == right)
        yield from block(f"Calls between gateways: {who}.", wrapped(calls))
    yield from block(f"Topics of the bus: {NODES}.", wrapped(topics()))


def block(rule: str, names: Iterable[str]) -> Iterator[str]:
    """Yield a rule and, as a block of code, the names that it holds for."""
    yield from (rule, "", "```", *names, "```", "")


def wrapped(names: Iterable[str]) -> list[str]:
    """Return the names as lines of text."""
    return textwrap.wrap(", ".join(names), 120, break_long_words=False, break_on_hyphens=False)


def rules() -> dict[tuple[str, str], list[Route]]:
    """Return the routes by who may use them without a key, and by what a key needs."""
    found: dict[tuple[str, str], list[Route]] = {}
    for route in ROUTES:
        found.setdefault((route.who, with_a_key(route)), []).append(route)
    return found


def paths(routes: list[Route]) -> Iterator[str]:
    """Yield each path once, with its methods."""
    methods: dict[str, list[str]] = {}
    for route in routes:
        methods.setdefault(route.path, []).append(route.method)
    for path in sorted(methods):
        yield f"{', '.join(dict.fromkeys(methods[path]))} {path}"
