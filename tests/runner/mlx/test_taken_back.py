# pyright: reportPrivateUsage=false
# (replaces the guesses of a head inside an engine)
"""Drafts of models whose KV cannot be cut: recurrent states and windows. They leave a row's tokens
as they are, and its state can still be kept, parked and resumed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx.utils import tree_flatten

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.engine import EntryId, PrefillChunk, PrefixHit, PrefixInsert, RowId, RowSpec
from runner.mlx.engine import MlxEngine, load_engine
from runner.mlx.model.draft_trial import WIDTHS
from runner.mlx.mtp import LoadedHead, MtpGuesses, open_head
from runner.schedule import RowKey, ScheduleSettings
from runner.schedule.drafting import draft_rules
from tests.harness.engine import StepCosts
from tests.harness.families import MODELS, write_model
from tests.harness.family_settings import settings_of
from tests.harness.mtp_heads import head_of, write_head
from tests.harness.scheduling import Loop
from tests.runner.mlx import test_draft_model, test_mtp
from tests.runner.mlx.conftest import Drive, spec
from tests.runner.mlx.test_drafts import WAYS, asked, played, spoilt, verified

LIMIT = 4 << 30
FAMILIES = ("qwen3_next", "mamba2", "lfm2", "gemma3_text")
"""Gated delta nets, states alone, short convolutions, and sliding windows of 32 tokens."""


class Engines:
    """Engines of small models that no other tests use, by family. A name with `kv` stores KV so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[str, MlxEngine] = {}

    def of(self, name: str) -> MlxEngine:
        if name not in self._loaded:
            family, _, kv = name.partition(" ")
            settings = MODELS.get(family) or settings_of(family)
            folder = write_model(self.folder / family, settings)
            how: Any = {"kv": kv} if kv else {}
            self._loaded[name] = load_engine(folder, memory_limit_bytes=LIMIT, **how)
        return self._loaded[name]

    def close(self) -> None:
        for engine in self._loaded.values():
            engine.close()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    made = Engines(tmp_path_factory.mktemp("states"))
    yield made
    made.close()


CASES = [
    *(("qwen3_next", way) for way in ("penalties", "logprobs", "minimum")),
    *((name, "logprobs") for name in ("mamba2", "lfm2", "gemma3_text")),
    ("llama window:16", "cut"),
]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_spoilt_drafts_change_nothing(engines: Engines, name: str, way: str) -> None:
    player: Any = Drive(engines.of(name))
    assert player.engine.facts.verifies and not player.engine.facts.trims
    chance = random.Random(way)
    prompt = [chance.randrange(3, 250) for _ in range(37)]
    plain = spec(prompt, seed=11, **WAYS[way])
    wanted = player.alone(plain, 40)
    got, steps = verified(player, spec(prompt, seed=11, **WAYS[way]), 40, wanted, chance)
    assert [sampled.token for sampled in got] == wanted
    assert steps < 32
    for one, other in zip(player.tokens[plain.row], got, strict=False):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4, nan_ok=True)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
    assert player.engine.memory().kv_bytes == 0


@dataclass
class Walk:
    """One row that decodes in steps of all kinds, by chance, and rows that begin from its prefixes.
    Each must have the tokens of `text`, which was decoded plainly."""

    player: Any
    prompt: list[int]
    text: list[int]
    chance: random.Random
    row: RowId = field(init=False)
    others: list[RowId] = field(default_factory=list[RowId])
    kinds: set[str] = field(default_factory=set[str])
    entries: int = 0

    def __post_init__(self) -> None:
        first = self.of_text(0)
        self.row = first.row
        chunk = PrefillChunk(first.row, 0, len(first.tokens))
        self.issue(admit=(first,), prefill=((chunk,),))

    def of_text(self, made: int) -> RowSpec:
        tokens = [*self.prompt, *self.text[:made]]
        return spec(tokens, made=made, seed=5, sampling=Sampling(temperature=1.0))

    @property
    def made(self) -> list[int]:
        return self.player.ids(self.row)

    def issue(self, **parts: Any) -> None:
        self.player.step(**parts)
        self.player._read()
        assert not self.player.failures

    def draft(self) -> None:
        """The row alone, with a draft that is right, wrong, or right in part."""
        most = self.chance.randrange(0, 33)
        draft = spoilt(self.text[len(self.made) :], most, self.chance)
        before = len(self.made)
        self.issue(decode=(self.row,), drafts=((self.row, draft),))
        self.kinds.add("whole" if len(self.made) > before + len(draft) else "cut")

    def plain(self) -> None:
        self.issue(decode=(self.row,))

    def restart(self) -> None:
        """Keep the row's beginning, as much as the last step allows, and begin a row from it."""
        cut = min(self.chance.randrange(0, 3), len(self.made) - 1)
        length = len(self.prompt) + len(self.made) - 1 - cut
        entry = EntryId(self.entries)
        self.entries += 1
        self.issue(insert=(PrefixInsert(entry, self.row, length),))
        began = self.of_text(length + 1 - len(self.prompt))
        bytes_before = self.player.engine.memory().prefix_bytes
        self.kinds.add(f"kept without {cut}" if bytes_before else "not kept")
        start = length if bytes_before else 0  # else the row is computed as a whole
        chunk = PrefillChunk(began.row, start, length + 1)
        hits = (PrefixHit(began.row, entry, length),) if bytes_before else ()
        self.issue(admit=(began,), hits=hits, prefill=((chunk,),))
        self.issue(evict=(entry,))
        self.others.append(began.row)
        for _ in range(self.chance.randrange(1, 4)):
            # Rows beside each other are not drafted here: the draft is ignored.
            draft = spoilt(self.text[len(self.made) :], 3, self.chance)
            self.issue(decode=(self.row, began.row), drafts=((self.row, draft),))
        made = self.player.ids(began.row)
        at = began.made
        assert made == self.text[at : at + len(made)]
        self.issue(decode=(self.row,))
        self.player.finish(began.row)


@pytest.mark.parametrize("name", ["qwen3_next", "gemma3_text"])
def test_a_row_keeps_its_text_through_drafts_cuts_neighbours_and_kept_prefixes(
    engines: Engines, name: str
) -> None:
    assert walked(engines.of(name), [1], 36) >= {"whole", "cut", "kept without 0"}


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*FAMILIES, "rwkv7", "jamba", "gpt_oss", "llama window:16"])
def test_rows_keep_their_text_through_drafts_of_many_seeds(engines: Engines, name: str) -> None:
    kinds = walked(engines.of(name), range(100, 120), 90)
    assert kinds >= {"whole", "cut", "kept without 0", "kept without 1", "not kept"}


def walked(engine: MlxEngine, seeds: Iterable[int], tokens: int) -> set[str]:
    """Walk rows of so many tokens; return the kinds of their steps."""
    player: Any = Drive(engine)
    kinds: set[str] = set()
    for seed in seeds:
        chance = random.Random(seed)
        prompt = [chance.randrange(3, 250) for _ in range(chance.randrange(5, 40))]
        first = spec(prompt, seed=5, sampling=Sampling(temperature=1.0))
        walk = Walk(player, prompt, player.alone(first, tokens + 40), chance)
        while len(walk.made) < tokens:
            act = chance.choices([walk.draft, walk.plain, walk.restart], [5, 2, 2])[0]
            act()
            assert walk.made == walk.text[: len(walk.made)], seed
        player.finish(walk.row)
        assert player.engine.memory().kv_bytes == player.engine.memory().prefix_bytes == 0
        kinds |= walk.kinds
    return kinds


@pytest.mark.parametrize("name", ["qwen3_next", "mamba2", "gemma3_text"])
def test_the_next_turn_reuses_a_text_that_ended_inside_a_draft(engines: Engines, name: str) -> None:
    engine = engines.of(name)
    prompt = [3 + n * 7 % 250 for n in range(90)]
    first = asked("first", prompt, Sampling(temperature=1.0), max_tokens=24)
    _, ((text, _, _),) = played(engine, False, first)
    right = replace(first, prediction_tokens=tuple(map(TokenId, text)))
    stop = next(token for at, token in enumerate(text) if at > 7 and token not in text[:at])
    ends = replace(right, stop_token_ids=frozenset({stop}))
    wanted = text[: text.index(stop) + 1]
    turn = [*prompt, *wanted, *range(60, 70)]
    second = asked("second", turn, Sampling(temperature=1.0), max_tokens=12)
    _, (plain,) = played(engine, False, replace(second, is_kept=False))
    facts = replace(engine.facts, draft_costs=((33, 1.3),))
    settings = ScheduleSettings(speculate="ngram", prefix_bytes=1 << 30)
    loop = Loop(facts, settings, StepCosts())
    loop.engine = engine  # pyright: ignore[reportAttributeAccessIssue]
    for request in (ends, second):
        loop.submit(request)
        loop.run()
    made = [loop.made[RowKey(each.request.request_id, 0)] for each in (ends, second)]
    assert made == [wanted, plain[0]]
    last = next(plan for plan in reversed(loop.plans) if plan.drafts and plan.decode)
    assert len(last.drafts[0][1]) > 1, "the text ended inside this draft"
    (hit,) = [hit for plan in loop.plans for hit in plan.hits]
    assert hit.length == len(prompt) + len(wanted) and engine.memory().prefix_bytes
    Drive(engine).step(evict=tuple(insert.entry for plan in loop.plans for insert in plan.insert))
    engine.read()
    assert not engine.memory().prefix_bytes


@pytest.fixture(scope="module")
def headed(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlxEngine]:
    """A model of gated delta nets with an MTP head."""
    engines.of("qwen3_next")
    folder = engines.folder / "qwen3_next"
    head = write_head(tmp_path_factory.mktemp("head"), head_of(folder))
    engine = load_engine(folder, memory_limit_bytes=LIMIT, mtp=(head, 3))
    yield engine
    engine.close()


def test_an_mtp_head_sees_each_token_once_though_some_are_computed_again(
    headed: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_mtp.compare_with_one_forward(headed, monkeypatch)


@pytest.mark.parametrize("way", ["greedy", "penalties"])
def test_a_text_is_the_same_with_an_mtp_head(
    headed: MlxEngine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    row: dict[str, Any] = {"tokens": tuple(map(TokenId, range(10, 47))), "max_tokens": 60}
    sampling = test_draft_model.WAYS[way]
    plain, finish, _ = test_draft_model.played(headed, "off", sampling, **row)
    chance = random.Random(way)

    def guesses(_: MtpGuesses, followed: Any, out: Any, draw: Any, most: int) -> Any:
        at = draw.position - len(row["tokens"])
        return spoilt([*plain, 9, 9, 9][at:], most, chance)

    monkeypatch.setattr(MtpGuesses, "_guesses", guesses)
    text, ended, counts = test_draft_model.played(headed, "mtp", sampling, **row)
    assert (text, ended) == (plain, finish)
    assert 10 < counts.accepted < counts.drafted


def test_a_head_of_a_raw_checkpoint_guesses_like_the_converted_one(
    headed: MlxEngine, engines: Engines, tmp_path: Path
) -> None:
    """Its norms are around 0, and each expert has tensors of its own."""
    model = engines.folder / "qwen3_next"
    raw = test_mtp.raw_experts(head_of(model))
    raw = {name: array - 1 if array.ndim == 1 else array for name, array in raw.items()}
    assert any(".experts.3." in name for name in raw)
    head = open_head(write_head(tmp_path, raw), 3, headed.facts, model, headed._head, "float32")
    assert isinstance(head, LoadedHead)
    ours = dict(tree_flatten(test_mtp.guesses_of(headed)._head.block.parameters()))
    for name, array in tree_flatten(head.block.parameters()):
        assert np.allclose(np.array(array), np.array(ours[name]), atol=1e-6), name


def test_a_trial_measures_and_compares_states(engines: Engines) -> None:
    engine = engines.of("qwen3_next")
    engine.try_drafts()
    facts = engine.facts
    widths, costs = zip(*facts.draft_costs, strict=True)
    assert widths == WIDTHS and list(costs) == sorted(costs) and costs[0] >= 1.0
    assert not facts.shared_draft_costs and engine.memory().kv_bytes == 0
    if facts.extra["drafts_exactly"]:
        player: Any = Drive(engine)
        prompt = [3 + n * 5 % 200 for n in range(20)]
        wanted = player.alone(plain := spec(prompt, logprobs=1), 60)
        row = spec(prompt, logprobs=1)
        got, _ = verified(player, row, 60, wanted, random.Random(3))
        assert [one.logprob for one in got] == [one.logprob for one in player.tokens[plain.row]]


def test_steps_that_compute_states_in_another_way_are_not_exact(engines: Engines) -> None:
    """Mamba2 computes several columns in chunks, with other last digits."""
    engine = engines.of("mamba2")
    engine.try_drafts()
    rules = draft_rules(engine.facts, is_exact=True)
    assert "rounds differently" in rules["auto"].why_not and not rules["ngram"].why_not


def test_a_window_limits_the_rows_with_the_bits_of_plain_steps(engines: Engines) -> None:
    engine = engines.of("gemma3_text")
    engine.try_drafts()
    exact = replace(engine.facts, extra={**engine.facts.extra, "drafts_exactly": True})
    assert draft_rules(exact, is_exact=True)["auto"].within == 32
