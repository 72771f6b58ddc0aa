# pyright: reportUnknownMemberType=false
# (mlx leaves arguments of `save_safetensors` untyped)
"""A draft model guesses tokens; its target's text stays as it is, whatever the guesses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, Sampling, Speculate, TextPrompt
from runner.mlx.engine import MlxEngine, load_engine
from runner.mlx.sampling import DraftModel, draft_model
from runner.schedule import RowFinished, RowKey, ScheduleSettings
from runner.schedule.drafting import DraftCounts
from runner.text import PreparedChoice, PreparedRequest
from tests.harness.engine import StepCosts
from tests.harness.scheduling import Loop

TINY = Path(__file__).resolve().parents[3] / "conf" / "tiny"
LIMIT = 4 << 30


def cut_down(folder: Path, layers: int) -> Path:
    """The bundled model without its last layers: a draft model that is often right."""
    folder.mkdir()
    for path in TINY.glob("*.json"):
        shutil.copy(path, folder)
    weights: Any = mx.load(str(TINY / "model.safetensors"))
    for name in list(weights):
        if name.startswith("model.layers.") and int(name.split(".")[2]) >= layers:
            del weights[name]
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return folder


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlxEngine]:
    draft = cut_down(tmp_path_factory.mktemp("draft") / "small", 6)
    engine = load_engine(TINY, memory_limit_bytes=LIMIT, draft_path=draft)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_model, "CHUNK_TOKENS", 16)  # shorter than the prompt
        yield engine
    engine.close()


def played(
    engine: MlxEngine,
    choice: Speculate,
    sampling: Sampling,
    beside: Sequence[TokenId] = (),
    **parts: Any,
) -> tuple[list[int], str, DraftCounts]:
    """The tokens of a row, its finish reason and its drafts, as if the draft model cost little.
    `beside`: the prompt of a short row that begins with it."""
    request = GenerationRequest(
        request_id=RequestId(choice),
        model=ModelId("tiny"),
        prompt=TextPrompt(text=""),
        sampling=sampling,
        speculate=choice,
    )
    prepared = PreparedRequest(
        request=request,
        tokens=tuple(TokenId(300 + 7 * at % 90) for at in range(40)),
        choices=(PreparedChoice(0, None),),
        max_tokens=40,
        stop_token_ids=frozenset(),
    )
    prepared = replace(prepared, **parts)
    costs: dict[str, Any] = {"draft_costs": ((33, 2.0),), "draft_token_cost": 0.02}
    if choice in ("draft_model", "mtp", "block"):
        costs[f"no_{choice}"] = ""
    facts = replace(engine.facts, **costs)
    loop = Loop(facts, ScheduleSettings(), StepCosts())
    loop.engine = engine  # pyright: ignore[reportAttributeAccessIssue]
    if beside:
        other = request.model_copy(update={"request_id": RequestId("o"), "speculate": "off"})
        loop.submit(replace(prepared, request=other, tokens=tuple(beside), max_tokens=3))
    loop.submit(prepared)
    loop.run()
    key = RowKey(request.request_id, 0)
    end = loop.ends[key]
    assert isinstance(end, RowFinished), end
    return loop.made[key], end.finish, end.cost.drafts


WAYS = {
    "greedy": Sampling(temperature=0.0),
    "seeded": Sampling(temperature=1.0, seed=5),
    "penalties": Sampling(temperature=0.7, frequency_penalty=0.4, repetition_penalty=1.2, top_k=40),
}


@pytest.mark.parametrize("way", ["seeded", "penalties"])
def test_a_text_is_the_same_with_a_draft_model(drafted: MlxEngine, way: str) -> None:
    plain, finish, none = played(drafted, "off", WAYS[way])
    text, ended, counts = played(drafted, "draft_model", WAYS[way])
    assert (text, ended) == (plain, finish) and none.drafts == 0
    assert 0 < counts.accepted < counts.drafted
    passes, peak_bytes = counts.proposals["draft_model"]
    assert passes >= counts.drafted + 2, "and two chunks of the prompt"
    assert peak_bytes > 4 * 2048


def test_a_text_ends_inside_a_draft(drafted: MlxEngine) -> None:
    plain, _, _ = played(drafted, "off", WAYS["seeded"])
    stops = frozenset({plain[20]})
    text, finish, _ = played(drafted, "draft_model", WAYS["seeded"], stop_token_ids=stops)
    assert text == plain[: plain.index(plain[20]) + 1] and finish == "stop"
    assert played(drafted, "draft_model", WAYS["seeded"], max_tokens=17)[0] == plain[:17]


def test_a_draft_model_that_fails_costs_its_drafts_alone(
    drafted: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, finish, _ = played(drafted, "off", WAYS["greedy"])
    draft = drafted._forward.proposer  # pyright: ignore[reportPrivateUsage]
    assert isinstance(draft, DraftModel)

    def broken(*_: Any, **_how: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(draft, "_model", broken)
    text, ended, counts = played(drafted, "draft_model", WAYS["greedy"])
    assert (text, ended) == (plain, finish) and counts.drafts == 0
    assert "the draft model failed: ZeroDivisionError" in drafted.facts.no_draft_model
    draft.failure = ""


def test_a_draft_model_is_billed_and_an_unfit_one_is_left_out(
    drafted: MlxEngine, tmp_path: Path
) -> None:
    other = cut_down(tmp_path / "other", 1)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second, *_ = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    alone = load_engine(TINY, memory_limit_bytes=LIMIT, draft_path=other)
    assert "another vocabulary" in alone.facts.no_draft_model
    assert alone.facts.draft_kv_bytes_per_token == 0
    assert drafted.facts.weights_bytes > 1.5 * alone.facts.weights_bytes
    assert drafted.facts.draft_kv_bytes_per_token == 6 * alone.facts.kv_bytes_per_token // 8
    (other / "tokenizer.json").unlink()
    bare = load_engine(TINY, memory_limit_bytes=LIMIT, draft_path=other)
    assert "cannot be compared" in bare.facts.no_draft_model
    for engine in (alone, bare):
        engine.close()
