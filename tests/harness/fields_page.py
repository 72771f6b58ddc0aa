"""Write docs/operations/fields.md from the types of bodies: every field, and what is done with it.

What it says is `tests/harness/field_claims.py`'s, which a test holds to the parsers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from bus.wire.shares import PRIORITIES
from gateway.dialects.body import EXTRAS
from gateway.http.openapi import Route
from tests.harness.field_claims import Claim, bodies, claims_of, insides_of
from tests.harness.field_samples import schema_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "fields.md"
HEAD = """# Fields

Made by `make docs` from the types that parse bodies; do not edit. [http-api.md](http-api.md) says
what fields mean together. A test puts every field into bodies and holds it to its row.

**honoured**: it changes what is done. **no effect**: it is taken in its place and changes nothing,
for the reason beside it. **refused unless**: what follows asks for nothing; all else is a 400 that
names the field. **refused**: a 400 that names the field and says what to do. `null` means left out,
where a field may be; in Ollama's bodies and those about prompts an empty text, list or object, 0
and false in a refused field mean it as well. A field that stands nowhere here is without effect and
named to the client in `X-Shoal-Ignored`, or refused as a slip; in bodies of our own routes it is
refused. An object that stands in several bodies has its table once.
"""
ANY = "any other"


class Titles:
    """Headings and their anchors: one for each object, where it stands first."""

    def __init__(self) -> None:
        self.of: dict[type[BaseModel], str] = {}

    def add(self, owner: type[BaseModel], title: str) -> None:
        """Give an object its heading, unless it has one."""
        self.of.setdefault(owner, title)

    def link(self, owner: type[BaseModel]) -> str:
        """Return a link to an object's table."""
        words = self.of[owner].replace("`", "").replace("[", "\\[").replace("]", "\\]")
        return f"[{words}](#{slug(self.of[owner])})"


def slug(title: str) -> str:
    """Return a heading's anchor, as renderers of Markdown make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def page() -> str:
    """Return the whole page."""
    titles, found = Titles(), bodies()
    tables: list[tuple[str, list[type[BaseModel]]]] = []
    for body, routes in found.items():
        title = _title(routes)
        titles.add(body, title)
        tables.append((title, [body, *_inner(body, titles, title.split("`")[1].split()[1])]))
    assert len({slug(title) for title in titles.of.values()}) == len(titles.of)
    parts = [HEAD, _extras()]
    for _, owners in tables:
        parts += [_section(owner, titles, level=2 + (owner not in found)) for owner in owners]
    return "\n".join(parts)


def _title(routes: Sequence[Route]) -> str:
    return ", ".join(dict.fromkeys(f"`{route.method} {route.path}`" for route in routes))


def _inner(body: type[BaseModel], titles: Titles, where: str) -> list[type[BaseModel]]:
    """Return the objects in a body that have no heading yet, and give them one."""
    made: list[type[BaseModel]] = []
    waiting = [("", body)]
    while waiting:
        prefix, owner = waiting.pop(0)
        for inside in insides_of(owner):
            path = f"{prefix}.{inside.path}".removeprefix(".")
            if inside.kind not in titles.of:
                kinds = _words_of(inside.kind)
                title = f"`{where}` `{path}`" + (f" {kinds}" if kinds else "")
                titles.add(inside.kind, title)
                made.append(inside.kind)
                waiting.append((path, inside.kind))
    return made


def _words_of(owner: type[BaseModel]) -> str:
    """Return by which words an object is known among others of its place; empty for no such."""
    if named := getattr(owner, "named", ""):
        return str(named)
    for name in ("role", "type"):
        info = owner.model_fields.get(name)
        words = [] if info is None else [one for one in _literals(info.annotation) if one]
        if words:
            return f"{name} " + ", ".join(f"`{one}`" for one in words)
    return "of another type" if "type" in owner.model_fields else ""


def _literals(annotation: Any) -> Iterator[Any]:
    for part in get_args(annotation):
        if isinstance(part, str):
            yield part
        else:
            yield from _literals(part)


def _extras() -> str:
    words = {**EXTRAS}
    named = ", ".join(f"`{word}` {number}" for word, number in PRIORITIES.items())
    words["x_priority"] = f"{named}, or a number from 0 to 1000; lower goes first"
    rows = [(f"`{name}`", "honoured", said) for name, said in words.items()]
    about = "In bodies of our own routes they are taken, and say nothing.\n\n"
    return "## In every body\n\n" + about + _table(("field", "what is done", "words"), rows)


def _section(owner: type[BaseModel], titles: Titles, *, level: int) -> str:
    schema = schema_of(owner)
    inner: dict[str, list[type[BaseModel]]] = {}
    for inside in insides_of(owner):
        name = re.split(r"[.\[]", inside.path)[0]
        inner.setdefault(name, []).append(inside.kind)
    rows: list[tuple[str, ...]] = []
    for claim in claims_of(owner):
        links = ", ".join(titles.link(kind) for kind in inner.get(claim.name, ()))
        values = (
            "" if not claim.typed else _values(schema["properties"].get(claim.name, {}), schema)
        )
        rows.append((f"`{claim.name}`", ", ".join(filter(None, (values, links))), *_told(claim)))
    others = getattr(owner, "others", "")
    rows += [(ANY, "", "no effect", others)] if others else []
    about = " ".join((owner.__doc__ or "").split("\n\n")[0].split())
    table = _table(("field", "values", "what is done", "words"), rows)
    return f"{'#' * level} {titles.of[owner]}\n\n{about}\n\n{table}"


def _told(claim: Claim) -> tuple[str, str]:
    standing: str = claim.standing
    if claim.standing == "refused unless":
        values = " or ".join(f"`{json.dumps(one)}`" for one in claim.accepted) or "`null`"
        standing = f"refused unless {values}"
    return standing, claim.words


def _values(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return what values a field has, in words; empty for objects with a table of their own."""
    words = list(dict.fromkeys(word for word in _kinds(field, schema, 0) if word))
    return " or ".join(words)


def _kinds(field: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> Iterator[str]:
    for union in ("anyOf", "oneOf"):
        for member in field.get(union, ()):
            yield from _kinds(member, schema, depth)
    if "$ref" in field or {"anyOf", "oneOf"} & field.keys():
        return
    if "const" in field:
        yield f"`{json.dumps(field['const'])}`"
    elif "enum" in field:
        yield ", ".join(f"`{json.dumps(one)}`" for one in field["enum"])
    elif field.get("type") == "array":
        inner = " or ".join(dict.fromkeys(_kinds(field.get("items", {}), schema, depth + 1)))
        yield f"list of {inner}s" if inner and "`" not in inner else "list"
    elif field.get("type") in ("integer", "number"):
        yield f"{field['type']}{_range(field)}"
    elif field.get("type") != "null":
        kind: str = field.get("type", "anything")
        yield "text" if kind == "string" else kind


def _range(field: Mapping[str, Any]) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    above, below = field.get("exclusiveMinimum"), field.get("exclusiveMaximum")
    said = [
        f" from {least:,}"
        if least is not None
        else f" above {above:,}"
        if above is not None
        else "",
        f" to {most:,}" if most is not None else f" below {below:,}" if below is not None else "",
    ]
    return "".join(said)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"
