"""Drafts, good and bad, leave a row's tokens, log-probabilities and finish as they are."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, Sampling, TextPrompt
from runner.engine import (
    EngineFacts,
    EntryId,
    GrammarSpec,
    PrefillChunk,
    PrefixHit,
    PrefixInsert,
    RowId,
    RowSpec,
    SampledToken,
    StepPlan,
)
from runner.mlx.model.draft_trial import SHARED_WIDTHS, WIDTHS
from runner.mlx.sampling import token_source
from runner.schedule import RowFinished, RowKey, ScheduleSettings
from runner.text import PreparedChoice, PreparedRequest
from tests.harness.engine import StepCosts, drafted_tokens
from tests.harness.families import MODELS, write_model
from tests.harness.lora import KEYS, draw_adapter
from tests.harness.scheduling import Loop
from tests.runner.mlx.conftest import Drive

TINY = Path(__file__).resolve().parents[3] / "conf" / "tiny"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": Sampling(temperature=0.0)},
    "seeded": {"sampling": Sampling(temperature=1.0)},
    "cut": {"sampling": Sampling(temperature=0.9, top_p=0.9, top_k=40, min_p=0.01)},
    "nucleus": {"sampling": Sampling(temperature=1.0, top_p=0.8)},
    "penalties": {
        "sampling": Sampling(
            temperature=0.7,
            frequency_penalty=0.6,
            presence_penalty=0.3,
            repetition_penalty=1.2,
            logit_bias={40: 1.5},
        ),
    },
    "logprobs": {"sampling": Sampling(temperature=1.0), "logprobs": 3},
    "minimum": {
        "sampling": Sampling(temperature=1.0),
        "min_tokens": 20,
        "held_ends": frozenset(range(3, 60)),
    },
}


def verified(player: Drive, spec: RowSpec, count: int, guesses: Sequence[int], chance: Any):
    """`count` tokens of a row whose steps verify drafts: parts of `guesses`, spoilt by chance."""
    engine, made = player.engine, list[SampledToken]()
    step = 10_000_000
    chunk = PrefillChunk(spec.row, 0, len(spec.tokens))
    engine.issue(StepPlan(step, admit=(spec,), prefill=((chunk,),)))
    made += engine.read().tokens
    steps = 0
    while len(made) < count:
        length = chance.randrange(0, 12)
        draft = [
            TokenId(guess if chance.random() < 0.85 else chance.randrange(3, 200))
            for guess in guesses[len(made) : len(made) + length]
        ]
        engine.issue(StepPlan(step, decode=(spec.row,), drafts=((spec.row, tuple(draft)),)))
        result = engine.read()
        assert not result.failures
        assert 1 <= len(result.tokens) <= len(draft) + 1
        made += result.tokens
        steps += 1
    engine.issue(StepPlan(step, release=(spec.row,)))
    engine.read()
    return made[:count], steps


@pytest.fixture(scope="module")
def random_engine(load: Any, model_folder: Any) -> Any:
    """An engine that no other tests use: `verified` expects to read its own steps."""
    return load(model_folder("qwen3"))


def test_spoilt_drafts_change_nothing(random_engine: Any, new_row: Any) -> None:
    player: Any = Drive(random_engine)
    assert player.engine.facts.verifies
    chance = random.Random(17)
    prompt = [chance.randrange(3, 250) for _ in range(37)]
    for way in WAYS.values():
        plain = new_row(prompt, seed=11, **way)
        wanted = player.alone(plain, 40)
        texts = player.tokens[plain.row]
        got, steps = verified(player, new_row(prompt, seed=11, **way), 40, wanted, chance)
        assert [sampled.token for sampled in got] == wanted
        assert steps < 32
        for one, other in zip(texts, got, strict=False):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4, nan_ok=True)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
    assert player.engine.memory().kv_bytes == 0


def spoilt(text: Sequence[int], length: int, chance: random.Random) -> tuple[TokenId, ...]:
    """The first tokens of a text, some of them wrong."""
    return tuple(
        TokenId(token if chance.random() < 0.85 else chance.randrange(3, 200))
        for token in text[:length]
    )


def verified_together(
    player: Drive, specs: Sequence[RowSpec], texts: Sequence[Sequence[int]], chance: random.Random
) -> tuple[dict[RowId, list[SampledToken]], int]:
    """All tokens of rows that join one after the other, verify drafts together and sometimes step
    plainly, pause now and then, and leave when they have said as much as their text."""
    wanted = {spec.row: text for spec, text in zip(specs, texts, strict=True)}
    made: dict[RowId, list[SampledToken]] = {spec.row: [] for spec in specs}
    waiting, present, steps = list(specs), list[RowId](), itertools.count(20_000_000)
    wide = 0
    while waiting or present:
        gone = tuple(row for row in present if len(made[row]) >= len(wanted[row]))
        present = [row for row in present if row not in gone]
        admit, chunks = (), ()
        if waiting and (len(present) < 2 or chance.random() < 0.2):
            spec = waiting.pop(0)
            admit, chunks = (spec,), ((PrefillChunk(spec.row, 0, len(spec.tokens)),),)
        decode = [row for row in present if chance.random() < 0.9]
        drafts = ()
        if not admit and not gone and chance.random() < 0.8:
            drafts = tuple(
                (row, spoilt(wanted[row][len(made[row]) :], chance.randrange(0, 9), chance))
                for row in decode
                if chance.random() < 0.8
            )
        wide += len(decode) > 1 and any(draft for _, draft in drafts)
        player.engine.issue(
            StepPlan(
                next(steps),
                release=gone,
                admit=admit,
                prefill=chunks,
                decode=tuple(decode),
                drafts=drafts,
            )
        )
        result = player.engine.read()
        assert not result.failures
        for sampled in result.tokens:
            made[sampled.row].append(sampled)
        present += [spec.row for spec in admit]
    return made, wide


def test_spoilt_drafts_of_several_rows_change_nothing(random_engine: Any, new_row: Any) -> None:
    player: Any = Drive(random_engine)
    chance = random.Random(23)
    prompts = [[chance.randrange(3, 250) for _ in range(20 + 11 * at)] for at in range(len(WAYS))]
    pairs = list(zip(prompts, WAYS.values(), strict=True))
    plain = [new_row(prompt, seed=11, **way) for prompt, way in pairs]
    texts = [player.alone(spec, 30 + 7 * at) for at, spec in enumerate(plain)]
    specs = [new_row(prompt, seed=11, **way) for prompt, way in pairs]
    made, wide = verified_together(player, specs, texts, chance)
    assert wide > 15
    for before, spec, text in zip(plain, specs, texts, strict=True):
        got = made[spec.row][: len(text)]
        assert [sampled.token for sampled in got] == text
        for alone, drafted in zip(player.tokens[before.row], got, strict=False):
            assert alone.logprob == pytest.approx(drafted.logprob, abs=1e-4, nan_ok=True)
            assert [token for token, _ in alone.top] == [token for token, _ in drafted.top]
    assert player.engine.memory().kv_bytes == 0


def test_a_row_that_comes_back_into_a_hole_keeps_its_own_tokens(
    random_engine: Any, new_row: Any
) -> None:
    player: Any = Drive(random_engine)
    prompts = [[3 + n * step % 200 for n in range(20)] for step in (5, 7)]
    wanted = [player.alone(new_row(prompt), 12) for prompt in prompts]
    rows = [new_row(prompt) for prompt in prompts]
    first, second = names = tuple(row.row for row in rows)
    player.step(admit=tuple(rows), prefill=tuple((PrefillChunk(name, 0, 20),) for name in names))
    player.step(decode=names)
    player.step(decode=(second,))
    player._read()
    for draft in ((), tuple(map(TokenId, wanted[1][4:7]))):
        player.step(decode=names, drafts=((second, draft),))
        player._read()
    assert player.ids(first) == wanted[0][:4]
    assert player.ids(second) == wanted[1][:8]
    player.finish(*names)


def test_the_kept_prefix_of_a_row_with_gaps_is_whole(random_engine: Any, new_row: Any) -> None:
    player: Any = Drive(random_engine)
    prompts = [[3 + n * step % 200 for n in range(20)] for step in (5, 7)]
    wanted = player.alone(new_row(prompts[0]), 40)
    rows = [new_row(prompt) for prompt in prompts]
    chunks = tuple((PrefillChunk(row.row, 0, 20),) for row in rows)
    player.step(admit=tuple(rows), prefill=chunks)
    player._read()
    names = tuple(row.row for row in rows)
    for _ in range(3):  # the drafts of the second row are right, of the first wrong
        at = len(player.ids(names[1]))
        right = player.alone(new_row(prompts[1]), at + 6)[at:]
        drafts = ((names[1], tuple(map(TokenId, right))),)
        player.step(decode=names, drafts=drafts)
        player._read()
    assert len(player.ids(names[1])) >= 19 and len(player.ids(names[0])) == 4
    length = 20 + 3
    player.step(insert=(PrefixInsert(EntryId(1), names[0], length),))
    player.finish(*names)
    assert player.engine.memory().prefix_bytes
    begun = new_row([*prompts[0], *wanted[:4]], made=4)
    hit = PrefixHit(begun.row, EntryId(1), length)
    player.step(admit=(begun,), hits=(hit,), prefill=((PrefillChunk(begun.row, length, 24),),))
    for _ in range(20):
        player.step(decode=(begun.row,))
    player.step(release=(begun.row,), evict=(EntryId(1),))
    player._read()
    assert player.ids(begun.row) == wanted[4:25]
    assert not player.failures


def test_a_row_that_cannot_be_sampled_fails_alone_in_a_draft(
    random_engine: Any, new_row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    player: Any = Drive(random_engine)
    prompt = [3 + n * 5 % 200 for n in range(20)]
    wanted = player.alone(new_row(prompt), 20)
    rows = [new_row(prompt, seed=seed) for seed in (1, 2, 3)]
    names = tuple(row.row for row in rows)
    chunks = tuple((PrefillChunk(name, 0, 20),) for name in names)
    player.step(admit=tuple(rows), prefill=chunks)
    player._read()
    draw = token_source.draw_drafted

    def refuses(rows: Any, logits: Any, vocabulary: int) -> Any:
        if any(row.draw.seed == 2 for row in rows):
            raise RuntimeError("no such luck")
        return draw(rows, logits, vocabulary)

    monkeypatch.setattr(token_source, "draw_drafted", refuses)
    for _ in range(3):
        at = len(player.ids(names[0]))
        draft = tuple(map(TokenId, wanted[at : at + 3]))
        present = tuple(name for name in names if name not in player.failures)
        player.step(decode=present, drafts=((names[0], draft), (names[1], draft)))
        player._read()
    assert player.failures.pop(names[1]).message == "sampling: RuntimeError: no such luck"
    assert not player.failures
    assert player.ids(names[0]) == wanted[: len(player.ids(names[0]))]
    assert player.ids(names[2]) == wanted[:4]
    player.finish(*names)


def test_a_draft_beside_an_unread_step_is_ignored(random_engine: Any, new_row: Any) -> None:
    player: Any = Drive(random_engine)
    prompt = [3 + n * 7 % 200 for n in range(20)]
    wanted = player.alone(new_row(prompt), 12)
    row = new_row(prompt)
    player.step(admit=(row,), prefill=((PrefillChunk(row.row, 0, 20),),))
    for at in range(11):  # `step` leaves one step unread
        draft = tuple(map(TokenId, wanted[at + 1 : at + 5]))
        player.step(decode=(row.row,), drafts=((row.row, draft),))
    player.finish(row.row)
    assert player.ids(row.row) == wanted


def test_a_draft_after_neighbours_left_and_across_the_end_of_the_slab(
    random_engine: Any, new_row: Any
) -> None:
    player: Any = Drive(random_engine)
    prompt = [3 + n * 5 % 200 for n in range(20)]
    wanted = player.alone(new_row(prompt), 130)
    rows = [new_row(range(20, 50)), new_row(prompt), new_row(range(9, 90))]
    chunks = tuple((PrefillChunk(row.row, 0, len(row.tokens)),) for row in rows)
    player.step(admit=tuple(rows), prefill=chunks)
    names = tuple(row.row for row in rows)
    for _ in range(4):
        player.step(decode=names)
    middle = names[1]
    player.finish(names[0], names[2])
    while len(player.ids(middle)) < 130:
        at = len(player.ids(middle))
        draft = tuple(map(TokenId, wanted[at : at + 9]))
        player.step(decode=(middle,), drafts=((middle, draft),))
        player._read()
    assert player.ids(middle)[:130] == wanted
    player.step(admit=(late := new_row(prompt),), prefill=((PrefillChunk(late.row, 0, 20),),))
    for _ in range(10):
        player.step(decode=(middle, late.row))
    player.finish(middle, late.row)
    assert player.ids(late.row)[:11] == wanted[:11]
    assert not player.failures


def test_a_trial_measures_every_width_and_compares_bits(
    load: Any, model_folder: Any, new_row: Any
) -> None:
    engine = load(model_folder("qwen3"), drafts=True)
    widths, costs = zip(*engine.facts.draft_costs, strict=True)
    assert widths == WIDTHS and list(costs) == sorted(costs) and costs[0] >= 1.0
    shared = dict(engine.facts.shared_draft_costs)
    assert shared.keys() == SHARED_WIDTHS.keys()
    for rows, pairs in shared.items():
        widths, costs = zip(*pairs, strict=True)
        assert widths == SHARED_WIDTHS[rows] and list(costs) == sorted(costs) and costs[0] >= 1.0
    assert engine.memory().kv_bytes == 0
    if not engine.facts.extra["drafts_exactly"]:
        return
    player = Drive(engine)
    chance, prompt = random.Random(3), [3 + n * 5 % 200 for n in range(20)]
    wanted = player.alone(plain := new_row(prompt, logprobs=1), 60)
    got, _ = verified(player, new_row(prompt, logprobs=1), 60, wanted, chance)
    assert [one.logprob for one in got] == [one.logprob for one in player.tokens[plain.row]]


def test_models_with_kv_in_fewer_bits_verify_no_drafts(load: Any, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", MODELS["qwen3"] | {"head_dim": 64})
    assert load(folder).facts.verifies
    assert not load(folder, kv="8bit").facts.verifies


@pytest.fixture(scope="module")
def tiny(load: Any) -> Any:
    return load(TINY)


def asked(name: str, tokens: Sequence[int], sampling: Sampling, **parts: Any) -> PreparedRequest:
    request = GenerationRequest(
        request_id=RequestId(name),
        model=ModelId("tiny"),
        prompt=TextPrompt(text=""),
        sampling=sampling,
    )
    whole: dict[str, Any] = {"max_tokens": 44, "stop_token_ids": frozenset[int](), **parts}
    return PreparedRequest(
        request=request,
        tokens=tuple(map(TokenId, tokens)),
        choices=(PreparedChoice(0, None),),
        **whole,
    )


def played(
    engine: Any,
    drafts: bool,
    *requests: PreparedRequest,
    late_at: int = 0,
    facts: EngineFacts | None = None,
) -> tuple[Loop, list[tuple[list[int], str, int]]]:
    """Play requests through a scheduler; those after the first come after `late_at` steps. Return
    what each made, its finish reason, and its counted tokens."""
    loop = Loop(
        facts or engine.facts, ScheduleSettings(speculate="ngram" if drafts else "off"), StepCosts()
    )
    loop.engine = engine
    loop.submit(requests[0])
    for _ in range(late_at):
        loop.turn()
    for request in requests[1:]:
        loop.submit(request)
    loop.run()
    results: list[tuple[list[int], str, int]] = []
    for request in requests:
        key = RowKey(request.request_id, 0)
        end = loop.ends[key]
        assert isinstance(end, RowFinished)
        results.append((loop.made[key], end.finish, end.cost.completion_tokens))
    return loop, results


def test_a_scheduled_row_is_the_same_with_and_without_drafts(tiny: Any) -> None:
    chance = random.Random(3)
    phrase = [chance.randrange(300, 900) for _ in range(24)]
    prompt = phrase * 3
    cases = [
        asked("greedy", prompt, Sampling(temperature=0.0)),
        asked("short", prompt, Sampling(temperature=0.0), max_tokens=13),
        asked(
            "penalties",
            prompt,
            Sampling(temperature=0.3, frequency_penalty=0.1, repetition_penalty=1.05),
        ),
    ]
    guessed = 0
    for case in cases:
        _, wanted = played(tiny, False, case)
        text = wanted[0][0]
        # The text that comes, a part of it spoilt, as a prediction: so that drafts are long.
        spoilt = [token if at % 9 else token + 1 for at, token in enumerate(text)]
        predicted = replace(case, prediction_tokens=tuple(map(TokenId, spoilt)))
        loop, got = played(tiny, True, predicted)
        assert got == wanted
        guessed += sum(map(drafted_tokens, loop.plans))
        stops = frozenset({text[len(text) // 2]})
        (cut, finish, count), *_ = played(tiny, True, replace(predicted, stop_token_ids=stops))[1]
        assert cut == text[: text.index(min(stops)) + 1] and count == len(cut)
        assert finish == "stop"
    assert guessed > 40


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer", "minimum": 0, "maximum": 99},
        "is_available": {"type": "boolean"},
        "temperature_unit": {"enum": ["celsius", "fahrenheit"]},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["identifier", "is_available", "temperature_unit", "note"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammar() -> GrammarSpec:
    text = LLMatcher.grammar_from_json_schema(
        json.dumps(SCHEMA), overrides={"whitespace_flexible": False}
    )
    return GrammarSpec("schema", text)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_that_a_grammar_implies_is_drafted(
    tiny: Any, grammar: GrammarSpec, temperature: float
) -> None:
    request = asked(
        "json",
        [400 + n * 7 % 90 for n in range(12)],
        Sampling(temperature=temperature),
        max_tokens=90,
        stop_token_ids=frozenset(tiny.facts.eos_token_ids),
    )
    bound = replace(request, grammar=grammar)
    slow, wanted = played(tiny, False, bound)
    fast, got = played(tiny, True, bound)
    assert got == wanted and got[0][1] == "stop"
    assert len(fast.plans) < 0.6 * len(slow.plans)
    # Those guesses were wrong in part, and forbidden in part.
    spoilt = [token if at % 4 else 5 + at for at, token in enumerate(wanted[0][0])]
    predicted = replace(bound, prediction_tokens=tuple(map(TokenId, spoilt)))
    assert played(tiny, True, predicted)[1] == wanted


def test_what_a_grammar_forbids_is_cut_off_a_draft(
    tiny: Any, grammar: GrammarSpec, new_row: Any
) -> None:
    player, chance = Drive(tiny), random.Random(7)
    for seed in range(4):
        how: dict[str, Any] = {"seed": seed, "grammar": grammar, "logprobs": 2}
        if seed:
            how["sampling"] = Sampling(temperature=1.0, frequency_penalty=0.3)
        prompt = [300 + n * 11 % 500 for n in range(20)]
        wanted = player.alone(new_row(prompt, **how), 30)
        got, _ = verified(player, new_row(prompt, **how), 30, wanted, chance)
        assert [sampled.token for sampled in got] == wanted
    assert not player.failures


def test_a_row_that_joins_during_drafts_leaves_both_texts_alone(tiny: Any) -> None:
    chance = random.Random(5)
    first = asked("first", [chance.randrange(300, 900) for _ in range(60)], Sampling())
    second = asked("second", [chance.randrange(300, 900) for _ in range(40)], Sampling())
    _, alone = played(tiny, False, first)
    predicted = replace(first, prediction_tokens=tuple(map(TokenId, alone[0][0])))
    _, plain = played(tiny, False, first, second, late_at=9)
    loop, drafted = played(tiny, True, predicted, second, late_at=9)
    assert drafted == plain
    assert any(plan.drafts for plan in loop.plans)
    assert any(len(plan.decode) == 2 for plan in loop.plans)


def test_scheduled_rows_that_decode_together_are_the_same_with_and_without_drafts(
    tiny: Any, grammar: GrammarSpec
) -> None:
    """Prompts that repeat themselves, predictions that are wrong in part, and a schema."""
    chance = random.Random(9)
    cases = [
        asked(
            "greedy",
            [chance.randrange(300, 900) for _ in range(24)] * 2,
            Sampling(temperature=0.0),
            max_tokens=24,
        ),
        asked(
            "penalties",
            [chance.randrange(300, 900) for _ in range(30)],
            Sampling(temperature=0.3, frequency_penalty=0.1, repetition_penalty=1.05),
            max_tokens=34,
        ),
        replace(
            asked(
                "json",
                [400 + n * 7 % 90 for n in range(12)],
                Sampling(temperature=1.0),
                max_tokens=30,
                stop_token_ids=frozenset(tiny.facts.eos_token_ids),
            ),
            grammar=grammar,
        ),
    ]
    _, wanted = played(tiny, False, *cases)
    predicted = [
        replace(
            case,
            prediction_tokens=tuple(
                TokenId(token if at % 11 else token + 1) for at, token in enumerate(text)
            ),
        )
        for case, (text, _, _) in zip(cases, wanted, strict=True)
    ]
    cheap = tuple((rows, ((17, 2.0),)) for rows in SHARED_WIDTHS)
    facts = replace(tiny.facts, shared_draft_costs=cheap, draft_costs=((33, 2.0),))
    loop, got = played(tiny, True, *predicted, facts=facts)
    assert got == wanted
    assert sum(len(plan.drafts) > 1 for plan in loop.plans) > 3


def test_a_row_with_an_adapter_is_verified_with_it(
    load: Any, new_row: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_model(tmp_path_factory.mktemp("adapted") / "model", MODELS["llama"])
    draw_adapter(folder, folder / "adapters" / "one", seed=1, rank=4, scale=20.0, keys=KEYS)
    player = Drive(load(folder))
    prompt = list(range(5, 30))
    plain = player.alone(new_row(prompt), 24)
    wanted = player.alone(new_row(prompt, adapter="one"), 24)
    assert wanted != plain
    chance = random.Random(2)
    got, _ = verified(player, new_row(prompt, adapter="one"), 24, wanted, chance)
    assert [sampled.token for sampled in got] == wanted
