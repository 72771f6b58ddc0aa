"""Make the tables of docs/operations/security.md that say who may use what.

They stand between two marks; people write the rest of the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.http.openapi import Route
from gateway.http.routes import CALLS, KEYLESS, NODES, ROUTES, topics, with_a_key

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "security.md"
ORDER = [
    ("anyone", "nothing"),
    ("anyone", "`inference`"),
    ("anyone", "`admin`"),
    ("pulls", "`admin`"),
    ("owner", "`admin`"),
]
"""The rules in the order of the table; a new one fails here."""
BEGIN, END = "<!-- made by `make docs` from gateway/http/routes -->\n", "<!-- end -->\n"


def page() -> str:
    """Return the page with the tables as the code has them."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n".join(lines())
    return f"{before}{BEGIN}\n{tables}\n\n{END}{after}"


def lines() -> Iterator[str]:
    """Yield a row for each pair of rules with its routes by path, then what is no route."""
    yield "| on a default node, without a key | where keys are required | routes |"
    yield "|---|---|---|"
    for (who, scope), routes in sorted(rules().items(), key=lambda row: ORDER.index(row[0])):
        yield f"| {KEYLESS[who]} | {scope} | {', '.join(paths(routes))} |"
    yield ""
    yield "| on the bus | who |"
    yield "|---|---|"
    calls = (f"`{one}` ({more})" if more else f"`{one}`" for one, more in CALLS.items())
    yield f"| calls of a gateway: {', '.join(calls)} | {NODES} |"
    yield f"| topics: {', '.join(f'`{one}`' for one in topics())} | {NODES} |"


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
        yield f"{'/'.join(dict.fromkeys(methods[path]))} `{path}`"
