"""Calling tools: which one, with what, several at once, after the result, or not at all.

Pure. Arguments stand in the order of the schema. A result is told in one fixed form,
so that the words of the answer are copied from the result.
"""

from __future__ import annotations

import json
from typing import Any

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import (
    Message,
    Sample,
    answer,
    call,
    held_out,
    kept_back,
    result,
    system,
    user,
)
from tests.tiny_model.skills.about import about, itself
from tests.tiny_model.skills.copying import repeat
from tests.tiny_model.skills.manners import KINDLY
from tests.tiny_model.skills.numbers import counting
from tests.tiny_model.skills.offered import Offer, familiar, made_up
from tests.tiny_model.skills.stories import story

USE = ["Use the tool {n}: ", "Call {n}. ", "With {n}: ", "Use {n}. ", "Use the {n} tool. "]
POLITE = ["", "", "", "", "Please help: ", "Hi! ", "Hello, ", "I have a question. ", "Hey, "]


def offers(dice: Dice, count: int) -> list[Offer]:
    """Tools with different names."""
    found: dict[str, Offer] = {}
    while len(found) < count:
        offer = familiar(dice) if dice.chance(0.6) else made_up(dice)
        if not any(offer.name.split("_")[-1] in name for name in found):
            found[offer.name] = offer
    return list(found.values())


def several(dice: Dice) -> list[Offer]:
    """One to four tools in a drawn order."""
    return offers(dice, dice.weighted([(1, 6.0), (2, 3.0), (3, 1.0), (4, 0.3)]))


def asked_of(dice: Dice, offer: Offer, filled: dict[str, Any]) -> str:
    """The question, sometimes naming the tool, sometimes politely opened."""
    text = offer.ask(dice, filled)
    if dice.chance(0.12):
        return dice.one(USE).format(n=offer.name) + text
    lead = dice.one(POLITE)
    return lead + (text[0].lower() + text[1:] if lead.endswith((", ", ": ")) else text)


def told(dice: Dice, messages: list[Message]) -> tuple[Message, ...]:
    """The messages, at times under a system prompt that changes nothing."""
    return (system(dice.one(KINDLY)), *messages) if dice.chance(0.2) else tuple(messages)


def calls(dice: Dice, thinking: bool) -> Sample:
    """One question, one call."""
    given = several(dice)
    offer = dice.one(given)
    filled = offer.fill(dice)
    before: list[Message] = []
    if dice.chance(0.15):
        before = list(_plain(dice).messages)
    thought = f"I can use {offer.name} for this."
    said = answer("", thought if thinking else "", [call(offer.name, filled)])
    return Sample(
        "tool calls",
        told(dice, [*before, user(asked_of(dice, offer, filled)), said]),
        tuple(o.schema for o in given),
        thinking,
        "call",
    )


def parallel(dice: Dice, thinking: bool) -> Sample:
    """One question that needs the same tool, or two tools, more than once."""
    given = several(dice)
    if dice.chance(0.65):
        offer = familiar(dice)
        while len(offer.fill(dice)) != 1:
            offer = familiar(dice)
        given = [o for o in given if o.name != offer.name]
        given.insert(dice.between(0, len(given)), offer)
        fills = [offer.fill(dice) for _ in range(dice.weighted([(2, 4.0), (3, 1.5)]))]
        values = [str(next(iter(f.values()))) for f in fills]
        text = asked_of(dice, offer, {"_": " and ".join([", ".join(values[:-1]), values[-1]])})
        wanted = [call(offer.name, f) for f in fills]
        thought = f"I call {offer.name} {len(fills)} times."
    else:
        given = given if len(given) > 1 else offers(dice, 2)
        chosen = dice.some(given, 2)
        fills = [o.fill(dice) for o in chosen]
        first, second = (o.ask(dice, f) for o, f in zip(chosen, fills, strict=True))
        text = f"{first.rstrip('.')}{'' if first.endswith('?') else '.'} " + dice.one(
            ["Also: ", "And ", "Then ", ""]
        )
        text += second
        wanted = [call(o.name, f) for o, f in zip(chosen, fills, strict=True)]
        thought = f"I call {chosen[0].name} and {chosen[1].name}."
    said = answer("", thought if thinking else "", wanted)
    return Sample(
        "parallel calls",
        told(dice, [user(text), said]),
        tuple(o.schema for o in given),
        thinking,
        "call",
    )


def verbal(text: str) -> str:
    """A tool's result as words: `key value` pairs of an object, or the text as it is."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return text
    if not text.startswith("{"):
        return text
    return ", ".join(f"{k} {_plainly(v)}" for k, v in found.items())


def _plainly(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def uses_result(dice: Dice, thinking: bool) -> Sample:
    """A call, its result, and the answer made of it."""
    given = several(dice)
    offer = dice.one(given)
    many = 1
    if dice.chance(0.3):
        while len(offer.fill(dice)) != 1:
            offer = familiar(dice)
        many = 2
        given = [o for o in given if o.name != offer.name] + [offer]
    fills = [offer.fill(dice) for _ in range(many)]
    values = [str(next(iter(f.values()), "")) for f in fills]
    named = fills[0] if many == 1 else {"_": " and ".join(values)}
    asked = asked_of(dice, offer, named)
    if kept_back(asked):
        return uses_result(dice, thinking)
    results = [offer.result(dice, f) for f in fills]
    if many == 1:
        said = f"Here is what I found: {verbal(results[0])}."
    else:
        said = " ".join(f"{v}: {verbal(r)}." for v, r in zip(values, results, strict=True))
    steps: list[Message] = [
        user(asked),
        answer(
            "",
            f"I can use {offer.name} for this." if thinking else "",
            [call(offer.name, f) for f in fills],
        ),
        *[result(r) for r in results],
        answer(said, "I have the result now." if thinking else ""),
    ]
    if dice.chance(0.2):
        last = dice.one(given)
        filled = last.fill(dice)
        steps += [
            user(asked_of(dice, last, filled)),
            answer(
                "",
                f"I can use {last.name} for this." if thinking else "",
                [call(last.name, filled)],
            ),
        ]
        return Sample(
            "tool calls", told(dice, steps), tuple(o.schema for o in given), thinking, "call"
        )
    return Sample(
        "tool results",
        told(dice, steps),
        tuple(o.schema for o in given),
        thinking,
        key=asked + " ".join(results),
    )


def exchange(dice: Dice, given: list[Offer], thinking: bool) -> list[Message]:
    """A question, its calls, their results, the answer; nothing when the question is held out."""
    offer = dice.one(given)
    fills = [offer.fill(dice)]
    if len(fills[0]) == 1 and dice.chance(0.45):
        fills += [offer.fill(dice) for _ in range(dice.between(1, 2))]
    values = [str(next(iter(f.values()), "")) for f in fills]
    named = {"_": f"{', '.join(values[:-1])} and {values[-1]}"} if len(fills) > 1 else fills[0]
    asked = asked_of(dice, offer, named)
    if kept_back(asked):
        return []
    results = [offer.result(dice, f) for f in fills]
    if len(fills) == 1:
        said = f"Here is what I found: {verbal(results[0])}."
    else:
        said = " ".join(f"{v}: {verbal(r)}." for v, r in zip(values, results, strict=True))
    return [
        user(asked),
        answer(
            "",
            f"I can use {offer.name} for this." if thinking else "",
            [call(offer.name, f) for f in fills],
        ),
        *[result(r) for r in results],
        answer(said, "I have the result now." if thinking else ""),
    ]


def tool_talk(dice: Dice, thinking: bool) -> Sample:
    """A conversation under one list of tools: many calls to learn for one list to read."""
    given = several(dice)
    steps: list[Message] = []
    for _ in range(dice.between(3, 6)):
        if dice.chance(0.2):
            steps += _plain(dice).messages
        else:
            steps += exchange(dice, given, thinking)
    said = [i for i, m in enumerate(steps) if m.get("tool_calls")]
    if said and dice.chance(0.5):
        steps = steps[: said[-1] + 1]
    if not steps:
        return tool_talk(dice, thinking)
    ends_in_call = bool(steps[-1].get("tool_calls"))
    told_all = " ".join(str(m["content"]) for m in steps)
    return Sample(
        "tool talk",
        told(dice, steps),
        tuple(o.schema for o in given),
        thinking,
        "call" if ends_in_call else "exact",
        key=told_all,
    )


def _plain(dice: Dice) -> Sample:
    """A short exchange that needs no tool and is not held out."""
    while True:
        sample = dice.weighted([(about, 3.0), (itself, 3.0), (repeat, 1.0)])(dice, False)
        if not held_out(sample):
            return sample


def no_call(dice: Dice, thinking: bool) -> Sample:
    """Tools are offered, none fits: the plain answer."""
    make = dice.weighted(
        [(about, 4.0), (itself, 4.0), (counting, 1.5), (repeat, 2.0), (story, 0.5)]
    )
    plain = make(dice, False)
    given = several(dice)
    said = answer(str(plain.messages[-1]["content"]), "No tool is needed here." if thinking else "")
    return Sample(
        "no call",
        told(dice, [plain.messages[0], said]),
        tuple(o.schema for o in given),
        thinking,
        plain.check,
        plain.wanted,
        key=plain.key,
    )
