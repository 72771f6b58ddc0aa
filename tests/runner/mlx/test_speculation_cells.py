"""Every way to sample, with every drafter, alone and beside others: texts, counts and ends are
those without drafts (`make prove-speculation`).

The cells are a pairwise covering array of `FACTORS`, and further random cells, from a printed seed
(`SHOAL_TEST_CELLS=<seed>`).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, Sampling, Speculate, TextPrompt
from runner.engine import GrammarSpec, RowId, StepResult
from runner.mlx.engine import MlxEngine, load_engine
from runner.mlx.model.draft_trial import SHARED_WIDTHS
from runner.mlx.sampling import DraftModel
from runner.schedule import RowFinished, RowKey, ScheduleSettings
from runner.text import PreparedChoice, PreparedRequest
from tests.harness.block_drafters import shape_of, write_block
from tests.harness.engine import StepCosts
from tests.harness.families import MODELS, write_model
from tests.harness.lora import KEYS, draw_adapter
from tests.harness.mtp_heads import head_of, write_head
from tests.harness.scheduling import Loop
from tests.runner.schedule.test_thinking_limit import MARKED, limited

TINY = Path(__file__).resolve().parents[3] / "conf" / "tiny"
SEED = int(os.environ.get("SHOAL_TEST_CELLS", "20261130"))
CELLS = 150
WAYS: dict[str, Sampling] = {
    "greedy": Sampling(temperature=0.0),
    "seeded": Sampling(temperature=1.0),
    "penalties": Sampling(temperature=0.7, frequency_penalty=0.5, repetition_penalty=1.1, top_k=50),
    "grammar": Sampling(temperature=1.0),
    "logprobs": Sampling(temperature=1.0, top_p=0.9),
    "stops": Sampling(temperature=1.0),
    "short": Sampling(temperature=0.0),
    "thinking": Sampling(temperature=1.0),
    "adapter": Sampling(temperature=1.0),
}
FACTORS: dict[str, tuple[Any, ...]] = {
    "way": tuple(WAYS),
    "drafter": ("ngram", "grammar", "draft_model", "mtp", "block", "prediction", "garbage"),
    "rows": (1, 4, 16),
    "model": ("bundled", "llama", "qwen3", "qwen3_moe", "qwen3_next", "mamba2", "gemma3_text"),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "is_available": {"type": "boolean"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "note": {"type": "string", "maxLength": 6},
    },
    "required": ["is_available", "unit", "note"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Cell:
    way: str
    drafter: str
    rows: int
    model: str

    @property
    def pairs(self) -> frozenset[tuple[Any, ...]]:
        values = [(name, getattr(self, name)) for name in FACTORS]
        return frozenset(itertools.combinations(values, 2))

    @property
    def has_grammar(self) -> bool:
        return "grammar" in (self.way, self.drafter)


def random_cell(chance: random.Random) -> Cell:
    return Cell(**{name: chance.choice(values) for name, values in FACTORS.items()})


def cells(seed: int, count: int) -> list[Cell]:
    """A covering array of all pairs of values, then random cells, at least `count` in all."""
    chance, chosen = random.Random(seed), list[Cell]()
    every = (Cell(*values) for values in itertools.product(*FACTORS.values()))
    missing = frozenset[Any]().union(*(cell.pairs for cell in every))
    while missing:
        tried = [random_cell(chance) for _ in range(60)]
        best = max(tried, key=lambda cell: len(cell.pairs & missing))
        if best.pairs & missing:
            chosen.append(best)
            missing -= best.pairs
    while len(chosen) < count:
        cell = random_cell(chance)
        chosen += [] if cell in chosen else [cell]
    return chosen


def test_the_cells_cover_every_pair_of_values() -> None:
    chosen = cells(SEED, 0)
    every = (Cell(*values) for values in itertools.product(*FACTORS.values()))
    for pair in frozenset[Any]().union(*(cell.pairs for cell in every)):
        assert any(pair in cell.pairs for cell in chosen), pair
    assert len(cells(SEED, CELLS)) == len(set(cells(SEED, CELLS))) >= CELLS


class Models:
    """The loaded targets by name, each with an adapter, and a draft model, an MTP head or a
    block drafter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[str, MlxEngine] = {}

    def of(self, cell: Cell) -> MlxEngine:
        name, drafter = cell.model, cell.drafter
        if drafter == "block":
            return self._with_block(name)
        if drafter != "mtp":
            return self._named(name)
        if f"{name}-mtp" not in self._loaded:
            self._named(name)
            folder = self._folder / name
            head = write_head(self._folder / f"{name}-mtp", head_of(folder))
            self._loaded[f"{name}-mtp"] = load_engine(
                folder, memory_limit_bytes=4 << 30, mtp=(head, 1 + len(self._loaded) % 3)
            )
        return self._loaded[f"{name}-mtp"]

    def _with_block(self, name: str) -> MlxEngine:
        if f"{name}-block" not in self._loaded:
            self._named(name)
            folder, count = self._folder / name, len(self._loaded)
            shape = shape_of(folder, steps=1 + count % 2, reads_hidden=count % 3 > 0)
            block = write_block(self._folder / f"{name}-block", shape)
            self._loaded[f"{name}-block"] = load_engine(
                folder, memory_limit_bytes=4 << 30, block=block
            )
        return self._loaded[f"{name}-block"]

    def _named(self, name: str) -> MlxEngine:
        if name not in self._loaded:
            folder, draft = self._folder / name, self._folder / f"{name}-draft"
            if name == "bundled":
                shutil.copytree(TINY, folder)
                draft = folder
            else:
                write_model(folder, MODELS[name])
                write_model(draft, MODELS["qwen3" if name == "llama" else "llama"])
            keys = ("mixer.in_proj", "mixer.out_proj") if name == "mamba2" else KEYS
            draw_adapter(folder, folder / "adapters" / "one", seed=1, scale=20.0, keys=keys)
            self._loaded[name] = load_engine(folder, memory_limit_bytes=4 << 30, draft_path=draft)
        return self._loaded[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    yield Models(tmp_path_factory.mktemp("cells"))


def requests(cell: Cell, engine: MlxEngine, chance: random.Random) -> list[PreparedRequest]:
    """The requests of a cell. Their prompts repeat themselves, so that texts may be copied."""
    prepared: list[PreparedRequest] = []
    grammar = None
    if cell.has_grammar:
        text = LLMatcher.grammar_from_json_schema(
            json.dumps(SCHEMA), overrides={"whitespace_flexible": False}
        )
        grammar = GrammarSpec("schema", text)
    for number in range(cell.rows):
        top = engine.facts.vocabulary
        tokens = [chance.randrange(top // 8, top // 2) for _ in range(chance.randrange(9, 20))] * 2
        request = GenerationRequest(
            request_id=RequestId(f"r{number}"),
            model=ModelId(cell.model),
            prompt=TextPrompt(text=""),
            sampling=WAYS[cell.way],
            adapter="one" if cell.way == "adapter" else None,
            top_logprobs=3 if cell.way == "logprobs" else None,
        )
        ends = engine.facts.eos_token_ids if grammar is not None else frozenset[int]()
        limit = limited("", tokens, 9, MARKED, "reasoning").limit
        prepared.append(
            PreparedRequest(
                request=request,
                tokens=tuple(map(TokenId, tokens)),
                max_tokens=7 if cell.way == "short" else 24 + number % 5,
                stop_token_ids=ends,
                choices=(PreparedChoice(0, None),),
                grammar=grammar,
                limit=limit if cell.way == "thinking" else None,
            )
        )
    return prepared


Outcome = tuple[list[int], str, int]


class Recorder:
    """An engine whose log-probabilities are recorded, by row, in order."""

    def __init__(self, engine: MlxEngine) -> None:
        self._engine = engine
        self.logprobs: dict[RowId, list[float]] = {}

    def read(self) -> StepResult:
        result = self._engine.read()
        for sampled in result.tokens:
            self.logprobs.setdefault(sampled.row, []).append(sampled.logprob)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def played(
    engine: MlxEngine, asked: Sequence[PreparedRequest], choice: Speculate
) -> tuple[list[Outcome], list[float], Loop]:
    """Each request's tokens, finish reason and count, and all log-probabilities, as if drafts cost
    little, so that there are many."""
    cheap = tuple((rows, ((17, 1.3),)) for rows in SHARED_WIDTHS)
    facts = replace(
        engine.facts,
        draft_costs=((33, 1.3),),
        shared_draft_costs=cheap,
        draft_token_cost=0.01,
        no_draft_model="",
        no_mtp="",
        no_block="",
    )
    loop = Loop(facts, ScheduleSettings(speculate=choice), StepCosts())
    recorder = Recorder(engine)
    loop.engine = recorder  # pyright: ignore[reportAttributeAccessIssue]
    for request in asked:
        loop.submit(request)
    loop.run()
    outcomes: list[Outcome] = []
    for request in asked:
        key = RowKey(request.request_id, 0)
        end = loop.ends[key]
        assert isinstance(end, RowFinished), end
        outcomes.append((loop.made[key], end.finish, end.cost.completion_tokens))
    logprobs: list[float] = []
    for row, outcome in zip(sorted(recorder.logprobs), outcomes, strict=True):
        logprobs += recorder.logprobs[row][: len(outcome[0])]
    return outcomes, logprobs, loop


def check(cell: Cell, models: Models, chance: random.Random, patch: pytest.MonkeyPatch) -> int:
    """Compare a cell with and without drafts; return how many of its steps had drafts."""
    engine = models.of(cell)
    asked = requests(cell, engine, chance)
    if cell.way == "stops":
        texts = [outcome[0] for outcome in played(engine, asked, "off")[0]]
        asked = [
            replace(each, stop_token_ids=each.stop_token_ids | {text[len(text) // 2]})
            for each, text in zip(asked, texts, strict=True)
        ]
    wanted, logprobs, _ = played(engine, asked, "off")
    choice: Speculate = "ngram"
    if cell.drafter == "grammar":
        choice = "grammar"
    elif cell.drafter in ("mtp", "block"):
        choice = cell.drafter
    elif cell.drafter in ("draft_model", "garbage"):
        choice = "draft_model"
    elif cell.drafter == "prediction":
        asked = [
            replace(each, prediction_tokens=spoilt(text, chance))
            for each, (text, *_) in zip(asked, wanted, strict=True)
        ]
    if cell.drafter == "garbage":
        top = engine.facts.vocabulary

        def guesses(_: Any, caches: Any, tokens: Any, draw: Any, most: int) -> tuple[TokenId, ...]:
            return tuple(TokenId(chance.randrange(top)) for _ in range(most))

        patch.setattr(DraftModel, "_guesses", guesses)

        def no_feed(_: Any, caches: Any, tokens: Any) -> None:
            """Compute nothing: no guess depends on it."""

        patch.setattr(DraftModel, "_feed", no_feed)
    got, new_logprobs, loop = played(engine, asked, choice)
    patch.undo()
    assert got == wanted, cell
    assert new_logprobs == pytest.approx(logprobs, abs=1e-3, nan_ok=True), cell
    return sum(bool(plan.drafts or plan.propose) for plan in loop.plans)


def spoilt(text: Sequence[int], chance: random.Random) -> tuple[TokenId, ...]:
    return tuple(TokenId(token + (chance.random() < 0.1)) for token in text)


CHEAP = (
    Cell("seeded", "prediction", 4, "llama"),
    Cell("penalties", "draft_model", 1, "llama"),
    Cell("stops", "mtp", 1, "llama"),
    Cell("thinking", "garbage", 1, "llama"),
    Cell("adapter", "prediction", 1, "llama"),
    Cell("stops", "ngram", 4, "llama"),
    Cell("grammar", "grammar", 1, "bundled"),
    Cell("penalties", "mtp", 1, "qwen3_next"),
    Cell("penalties", "block", 1, "llama"),
)


@pytest.mark.parametrize("cell", CHEAP, ids=lambda cell: f"{cell.way}-{cell.drafter}-{cell.rows}")
def test_a_cell_has_the_texts_without_drafts(
    cell: Cell, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(cell, models, random.Random(3), monkeypatch)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_drafts_change_no_text_in_any_cell(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = cells(SEED, CELLS)
    print(f"{len(chosen)} cells of seed {SEED}")
    drafted: dict[str, int] = dict.fromkeys(FACTORS["drafter"], 0)
    for number, cell in enumerate(chosen):
        steps = check(cell, models, random.Random(SEED + number), monkeypatch)
        drafted[cell.drafter] += steps
    print(f"steps with drafts: {drafted}")
    assert all(drafted.values()), "every drafter guesses somewhere"
