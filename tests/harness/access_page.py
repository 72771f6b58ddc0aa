"""Makes the tables of docs/operations/security.md that say who may use what: between two marks of
that page, which people write otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from gateway.http.openapi import Route
from gateway.http.routes import CALLS, KEYLESS, NODES, ROUTES, topics, with_a_key

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "security.md"
BEGIN, END = "<!-- made by `make docs` from gateway/http/routes -->\n", "<!-- end -->\n"


def page() -> str:
    """Return the page with the tables as the code has them."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n".join(lines())
    return f"{before}{BEGIN}\n{tables}\n\n{END}{after}"


def lines() -> Iterator[str]:
    """Yield a row for each path and each group of methods of which the same holds, then what is no
    route."""
    yield "| route | on a default node, without a key | where keys are asked for |"
    yield "|---|---|---|"
    for route, methods in rows():
        yield f"| {methods} `{route.path}` | {KEYLESS[route.who]} | {with_a_key(route)} |"
    yield ""
    yield "| on the bus | who |"
    yield "|---|---|"
    calls = (f"`{one}` ({more})" if more else f"`{one}`" for one, more in CALLS.items())
    yield f"| calls of a gateway: {', '.join(calls)} | {NODES} |"
    yield f"| topics: {', '.join(f'`{one}`' for one in topics())} | {NODES} |"


def rows() -> Iterator[tuple[Route, str]]:
    """Yield the routes, those of one path that are alike as one, with their methods."""

    def alike(route: Route) -> tuple[str, str, str]:
        return route.path, route.who, with_a_key(route)

    for _, group in groupby(sorted(ROUTES, key=alike), alike):
        routes = list(group)
        yield routes[0], ", ".join(dict.fromkeys(route.method for route in routes))
