"""Whatever a model writes: nothing is lost, no marker of a call is told, and all may come back.

`SHOAL_TEST_OUTPUTS=<seed>` makes the outputs of a seed again.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence

from bus.wire.errors import BadRequest, FinishReason
from bus.wire.messages.requests import GenerationRequest
from runner.text.prepared import Piece, PreparedRequest
from runner.text.text import Text
from tests.harness.model_outputs import TOOLS, Output, outputs
from tests.harness.seeds import PROVING, seed_for
from tests.harness.told_outputs import WAYS, Told, entries, read, told
from tests.harness.toy_tokenizer import toy_tokenizer

COUNT = 20_000 if PROVING else 300
CONTEXT = 1 << 20


def wrong_with(output: Output, text: Text) -> str:
    """Return what of the promises an output breaks; "" for none."""
    reason: FinishReason = "length" if output.kind == "cut" else "stop"
    chance = random.Random(output.seed)
    letters = list(output.text) if len(output.text) < 800 else _cut(output.text, chance)
    splits = [[output.text], letters, _cut(output.text, chance)]
    found = [
        read(output.form.family, TOOLS, one, opening=output.form.opening, reason=reason)
        for one in splits
    ]
    first = told(found[0][0])
    for pieces, ended in found[1:]:
        if told(pieces) != first or ended != found[0][1]:
            return f"depends on the split: {first} or {told(pieces)}"
    return _of_reading(output, first) or _of_dialects(output, first, *found[2], text)


def _cut(text: str, chance: random.Random) -> list[str]:
    places = sorted(chance.randrange(len(text) + 1) for _ in range(8))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def _of_reading(output: Output, found: Told) -> str:
    if output.kind == "cut":
        return ""
    for _, arguments in found.calls:
        try:
            if not isinstance(json.loads(arguments), dict):
                return f"arguments are no object: {arguments[:80]}"
            arguments.encode()
        except (ValueError, RecursionError) as problem:
            return f"arguments are no JSON ({problem}): {arguments[:80]}"
    said = found.all
    for word in output.words:
        if said.count(word) != output.text.count(word):
            return f"{word} is told {said.count(word)} times"
    is_unclear = not output.form.is_json and "marker" in output.mutated
    is_dropped = any(one.startswith("dropped") for one in output.mutated)
    if output.kind == "broken" or is_unclear or is_dropped:
        return ""  # what is a call, and what of it, may be told in two ways
    if [name for name, _ in found.calls] != [one.name for one in output.calls]:
        return f"calls are {found.calls}"[:300]
    leaked = [one for one in output.markers if one in found.text or one in found.reasoning]
    if leaked:
        return f"tells {leaked}"
    if output.kind == "whole":
        meant = [dict(one.arguments) for one in output.calls]
        if [json.loads(arguments) for _, arguments in found.calls] != meant:
            return f"arguments are {found.calls}"[:300]
    return ""


def _of_dialects(
    output: Output, found: Told, pieces: Sequence[Piece], reason: FinishReason, text: Text
) -> str:
    chosen = random.Random(output.seed).randrange(len(WAYS))
    for number, way in enumerate(WAYS):
        body = way.body(TOOLS)
        parsed = way.parsed(body)
        made = entries(parsed.requests[0].request_id, pieces, reason)
        answer = way.answer(parsed, made)
        plain, streamed = way.whole(answer), way.streamed(parsed, made)
        if output.kind != "cut":
            try:
                if not plain.objects() == streamed.objects() == found.objects():
                    return f"{way.name}: {plain} or {streamed} of {found}"
            except ValueError as problem:
                return f"{way.name}: {problem}: {streamed.calls}"[:300]
        try:
            asked = way.next_request(body, answer)
        except BadRequest as problem:
            return f"{way.name} does not take its answer back: {problem}"
        if number == chosen and (wrong := _of_history(asked, text)):
            return f"{way.name}: {wrong}"
    return ""


def _of_history(asked: GenerationRequest, text: Text) -> str:
    prepared = text.prepare(asked, CONTEXT)
    return "" if isinstance(prepared, PreparedRequest) else f"the history is refused: {prepared}"


def test_whatever_a_model_writes_is_told_whole_and_may_come_back() -> None:
    seed = seed_for("OUTPUTS", 36)
    text = Text(toy_tokenizer())
    counts: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {}
    for output in outputs(seed, COUNT):
        counts[output.form.name] += 1
        try:
            problem = wrong_with(output, text)
        except Exception as raised:
            problem = f"raises {raised!r}"
        if problem:
            told_of = f"{output.seed} {output.kind} {output.mutated}: {problem}\n  {output.text!r}"
            wrong.setdefault(output.form.name, []).append(told_of)
    failed = {name: len(found) for name, found in wrong.items()}
    print(f"{COUNT} outputs:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    assert not wrong, "\n".join([f"{failed}", *(found[0] for found in wrong.values())])
