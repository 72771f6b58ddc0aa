"""The tools that a sample offers: familiar ones under many names, and made-up ones.

Pure. An `Offer` is a tool with questions that need it; drawing one settles its name,
its parameters' names, their values and how the question says them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.tiny_model.dice import Dice
from tests.tiny_model.skills.families import FAMILIES, Draw, drawn_int, drawn_of
from tests.tiny_model.words import (
    DAYS,
    NOUNS,
    VERBS,
    city,
    coined,
    name,
)


@dataclass(frozen=True)
class Offer:
    """One drawn tool, a question for it, the arguments it needs and what it will return."""

    name: str
    schema: dict[str, Any]
    ask: Callable[[Dice, dict[str, Any]], str]
    fill: Callable[[Dice], dict[str, Any]]
    result: Callable[[Dice, dict[str, Any]], str]


def made_result(dice: Dice, shape: str, values: list[Any]) -> str:
    """What a tool returned, drawn."""
    weather = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy"]
    return shape.format(
        *values,
        n=dice.between(1, 35),
        m=dice.between(10, 59),
        k=dice.between(1, 9999),
        w=dice.one(weather),
        w2=dice.one(NOUNS),
        p=name(dice),
        c=city(dice),
    )


def schema(
    dice: Dice, called: str, about: str, fields: list[tuple[str, str, str]]
) -> dict[str, Any]:
    """The tool as a client would send it; clients differ in what they add."""
    titled, described = dice.chance(0.1), dice.chance(0.4)
    properties: dict[str, Any] = {}
    for field, kind, text in fields:
        properties[field] = {"type": kind}
        if described:
            properties[field]["description"] = text
        if titled:
            properties[field]["title"] = field.capitalize()
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if dice.chance(0.85):
        parameters["required"] = [field for field, _, _ in fields]
    if dice.chance(0.12):
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": called}
    if dice.chance(0.85):
        function["description"] = about + dice.one(["", "", "."])
    function["parameters"] = parameters
    if dice.chance(0.06):
        function["strict"] = True
    return {"type": "function", "function": function}


def familiar(dice: Dice) -> Offer:
    """A tool of a known family, named in one of its ways."""
    family = dice.one(FAMILIES) if dice.chance(0.75) else FAMILIES[0]
    called = dice.one(family.names.split())
    fields = [(dice.one(s.names.split()), s.kind, s.about) for s in family.slots]

    def fill(dice: Dice) -> dict[str, Any]:
        return {f: s.draw(dice) for (f, _, _), s in zip(fields, family.slots, strict=True)}

    def ask(dice: Dice, filled: dict[str, Any]) -> str:
        return dice.one(family.asks).format(*filled.values())

    def result(dice: Dice, filled: dict[str, Any]) -> str:
        return made_result(dice, dice.one(family.results), list(filled.values()))

    return Offer(called, schema(dice, called, family.about, fields), ask, fill, result)


MADE_FIELDS: list[tuple[str, str, Draw]] = [
    ("size", "integer", drawn_int(1, 99)),
    ("count", "integer", drawn_int(1, 99)),
    ("level", "integer", drawn_int(1, 9)),
    ("name", "string", name),
    ("city", "string", city),
    ("label", "string", coined),
    ("day", "string", drawn_of(DAYS)),
    ("colour", "string", drawn_of(["red", "blue", "green", "black", "white"])),
    ("owner", "string", name),
    ("id", "integer", drawn_int(1, 9999)),
    ("code", "string", coined),
    ("fast", "boolean", lambda d: d.chance(0.5)),
    ("target", "string", coined),
]


def made_up(dice: Dice) -> Offer:
    """A tool that nobody has seen: verb_noun with parameters that the question names."""
    verb = dice.one(VERBS) if dice.chance(0.6) else coined(dice)
    noun = dice.one(NOUNS) if dice.chance(0.6) else coined(dice)
    called = dice.one(
        [f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}_the_{noun}", verb]
    )
    drawn = dice.some(MADE_FIELDS, dice.weighted([(0, 2.0), (1, 4.0), (2, 3.0), (3, 1.0)]))
    slots = [
        (coined(dice) if dice.chance(0.25) else dice.one(NOUNS) if dice.chance(0.15) else f, k, d)
        for f, k, d in drawn
    ]
    fields = [(f, k, dice.one([f"The {f}", f"{f} of the {noun}", f])) for f, k, _ in slots]

    def fill(dice: Dice) -> dict[str, Any]:
        return {f: d(dice) for f, _, d in slots}

    def ask(dice: Dice, filled: dict[str, Any]) -> str:
        said = [
            dice.one([f"{f} {_told(v)}", f"{f} {_told(v)}", f"{f}={_told(v)}", f"{f}: {_told(v)}"])
            for f, v in filled.items()
        ]
        tail = (" with " + " and ".join(said)) if said else ""
        lead = dice.one(["", "Please ", "Can you ", "I want to ", "Now "])
        return f"{lead}{verb} the {noun}{tail}" + (
            "?" if lead == "Can you " else dice.one(["", "."])
        )

    def result(dice: Dice, filled: dict[str, Any]) -> str:
        shape = dice.one(
            ["done", '{{"status": "{w2}"}}', "{w2}", '{{"id": {k}}}', '{{"ok": true}}', "{k}"]
        )
        return made_result(dice, shape, [])

    return Offer(
        called, schema(dice, called, f"{verb.capitalize()} the {noun}", fields), ask, fill, result
    )


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
