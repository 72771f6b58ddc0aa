"""Answering in JSON: objects with the keys asked for, arrays, values found in a text.

Pure. Values that the question gives are copied; where it gives none, any will do and
only the shape is judged.
"""

from __future__ import annotations

import json
from typing import Any

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import Check, Sample, answer, system, user
from tests.tiny_model.words import (
    ANIMALS,
    CITIES,
    COLOURS,
    COUNTRIES,
    FOODS,
    HOBBIES,
    JOBS,
    NOUNS,
    city,
    coined,
    name,
)

PLURAL = {
    "animals": ANIMALS,
    "colours": COLOURS,
    "cities": CITIES,
    "foods": FOODS,
    "countries": COUNTRIES,
    "jobs": JOBS,
}
TELL = ["In JSON: ", "As JSON: ", "Answer in JSON. ", "Return JSON. ", "Use JSON. ", "JSON only. "]
MODE = ["Answer in JSON.", "Reply only with JSON.", "You write JSON.", "Return a JSON object.", ""]
FIELDS = ["name", "age", "city", "job", "colour", "hobby", "country", "food", "email", "active"]


def value(dice: Dice, key: str) -> Any:
    """A plausible value for a key; a coined word for a key that no one knows."""
    made: dict[str, Any] = {
        "name": name(dice),
        "age": dice.between(1, 99),
        "city": city(dice),
        "job": dice.one(JOBS),
        "colour": dice.one(COLOURS),
        "hobby": dice.one(HOBBIES),
        "country": dice.one(COUNTRIES),
        "food": dice.one(FOODS),
        "email": f"{coined(dice)}@{dice.one(NOUNS)}.org",
        "active": dice.chance(0.5),
    }
    return made.get(key) if key in made else dice.one([coined(dice), dice.between(0, 999)])


def keys(dice: Dice) -> list[str]:
    """Known keys, sometimes among them one that is only a noun or coined."""
    chosen = dice.some(FIELDS, dice.between(1, 4))
    if dice.chance(0.35):
        chosen[dice.between(0, len(chosen) - 1)] = dice.one([coined(dice), dice.one(NOUNS)])
    return chosen


def joined(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def objects(dice: Dice, thinking: bool) -> Sample:
    """One JSON answer."""
    asked, made, check = dice.weighted(
        [(_given, 4.0), (_extract, 4.0), (_free, 2.0), (_array, 2.0)]
    )(dice)
    said = json.dumps(made, ensure_ascii=False)
    wanted = tuple(made) if said.startswith("{") else ()
    told = dice.one(MODE) if dice.chance(0.35) else ""
    thought = (
        "I write " + ("an object with " + joined(list(wanted)) if wanted else "an array") + "."
    )
    messages = (user(asked), answer(said, thought if thinking else ""))
    return Sample(
        "json", (system(told), *messages) if told else messages, (), thinking, check, wanted
    )


def _show(item: Any) -> str:
    """A value as a person writes it."""
    return str(item).lower() if isinstance(item, bool) else str(item)


def _given(dice: Dice) -> tuple[str, dict[str, Any], Check]:
    chosen = keys(dice)
    made = {key: value(dice, key) for key in chosen}
    pairs = [f"{key} {_show(v)}" for key, v in made.items()]
    equal = [f"{key}={_show(v)}" for key, v in made.items()]
    colon = [f"{key}: {_show(v)}" for key, v in made.items()]
    asked = dice.one(
        [
            f"Give me a JSON object with {joined(pairs)}.",
            f"Write JSON with {joined(pairs)}.",
            f"Make a JSON object: {', '.join(equal)}",
            f"Turn this into JSON: {', '.join(colon)}",
            f"Convert to JSON:\n{chr(10).join(colon)}",
            f"Return a JSON object with {joined(pairs)}",
            f"JSON object please: {', '.join(colon)}",
            f"Write an object in JSON with {joined(equal)}.",
            f"Create JSON from this: {', '.join(pairs)}",
            f"I need JSON with {joined(pairs)}.",
        ]
    )
    return asked, made, "json"


def _extract(dice: Dice) -> tuple[str, dict[str, Any], Check]:
    known = {key: value(dice, key) for key in FIELDS[:8]}
    who = known["name"]
    parts = {
        "age": f"is {known['age']} years old",
        "city": f"lives in {known['city']}",
        "job": f"works as a {known['job']}",
        "hobby": f"enjoys {known['hobby']}",
        "country": f"comes from {known['country']}",
        "food": f"likes {known['food']}",
        "colour": f"loves the colour {known['colour']}",
    }
    told = dice.some(list(parts), dice.between(1, 4))
    text = f"{who} " + joined([parts[key] for key in told]) + "."
    wanted = dice.shuffled(["name", *dice.some(told, dice.between(1, len(told)))])
    if dice.chance(0.6):
        wanted = ["name"] + [key for key in told if key in wanted]
    listed = dice.one([joined(wanted), ", ".join(wanted)])
    asked = dice.one(
        [
            f"{text} Answer in JSON with the keys {listed}.",
            f"Extract {listed} as JSON: {text}",
            f"Give {listed} as a JSON object. {text}",
            f"Extract the {listed} from this text: {text}",
            f"{dice.one(TELL)}What are the {listed}? {text}",
            f"{text} Return JSON with {listed}.",
            f"Read this: {text} Write {listed} in JSON.",
            f"From the text, extract {listed}.\n{text}",
            f"{text}\nPut {listed} into a JSON object.",
        ]
    )
    return asked, {key: known[key] for key in wanted}, "json"


def _free(dice: Dice) -> tuple[str, dict[str, Any], Check]:
    chosen = keys(dice)
    listed = dice.one([joined(chosen), ", ".join(chosen)])
    asked = dice.one(
        [
            f"Describe a person in JSON with the keys {listed}.",
            f"Make up JSON with the keys {listed}.",
            f"Return a JSON object with the keys {listed}.",
            f"Invent a user as JSON with {listed}.",
            f"Give me an example JSON object with the keys {listed}.",
            f"Random JSON with keys {listed}",
        ]
    )
    return asked, {key: value(dice, key) for key in chosen}, "shape"


def _array(dice: Dice) -> tuple[str, Any, Check]:
    kind = dice.one(list(PLURAL))
    count = dice.between(2, 5)
    if dice.chance(0.3):
        made = dice.some(PLURAL[kind], count)
        return f"List {count} {kind} as a JSON array.", made, "shape"
    made = [dice.one([coined(dice), dice.one(NOUNS), dice.one(COLOURS)]) for _ in range(count)]
    asked = dice.one(
        [
            f"Write these as a JSON array: {', '.join(made)}",
            f"Make a JSON list of {joined(made)}.",
            f"Turn {joined(made)} into a JSON array.",
            f"JSON array of: {', '.join(made)}",
            f"Put these words into a JSON array: {', '.join(made)}",
        ]
    )
    return asked, made, "json"
