"""A prompt that is scored is computed whole, in small pieces, and told of once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import example, given
from hypothesis import settings as checked
from hypothesis import strategies as st

from bus.wire.ids import TokenId
from runner.engine import RowId, RowSpec, StepResult
from runner.schedule import RowEvent, RowFailed, RowFinished, RowScored, ScheduleSettings
from runner.schedule.prefill import SCORED_BYTES
from runner.text import PreparedRequest
from tests.harness.engine import FakeEngine, facts, scores_of, whole_output
from tests.harness.scheduling import Loop, prepared
from tests.runner.schedule.test_scheduler import key, prompt


def asking(name: str, tokens: list[int], max_tokens: int = 0, **more: Any) -> PreparedRequest:
    """A request that asks about its prompt."""
    made = prepared(name, tokens, max_tokens=max_tokens, **more)
    request = made.request.model_copy(update={"prompt_logprobs": 0, "max_tokens": max_tokens})
    return replace(made, request=request)


@dataclass
class Listening(Loop):
    """A loop that keeps what is told of prompts."""

    told: dict[Any, list[float]] = field(default_factory=dict)

    def take(self, events: list[RowEvent]) -> None:
        for event in events:
            if isinstance(event, RowScored):
                assert event.key not in self.ends, "no score comes after the end"
                assert event.key not in self.made, "scores come before tokens"
                before = self.told.setdefault(event.key, [])
                assert event.scores.start == len(before), "scores have no gap and come once"
                before += event.scores.logprobs
        super().take(events)


def wanted(tokens: list[int]) -> list[float]:
    spec = RowSpec(RowId(1), tuple(TokenId(one) for one in tokens), Any, seed=1)
    return list(scores_of(spec, 0, len(tokens)).logprobs)


def heard(loop: Listening, name: str, tokens: list[int]) -> None:
    assert loop.told[key(name)] == wanted(tokens)


def test_a_prompt_alone_is_told_of_and_makes_no_token() -> None:
    loop = Listening(facts())
    loop.submit(asking("a", prompt(300)))
    loop.submit(asking("one", [5]))
    loop.run()
    heard(loop, "a", prompt(300))
    heard(loop, "one", [5])
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished)
    assert (end.finish, end.cost.completion_tokens) == ("length", 0)
    assert loop.made == {}
    assert not any(plan.decode for plan in loop.plans)
    assert loop.scheduler.is_empty
    assert loop.engine.kept == {}


def test_a_prompt_as_long_as_the_context_can_be_told_of() -> None:
    loop = Listening(facts(context_tokens=200))
    loop.submit(asking("a", prompt(200)))
    loop.run()
    heard(loop, "a", prompt(200))


def test_tokens_follow_the_scores_and_are_what_they_would_be() -> None:
    loop = Listening(facts())
    loop.submit(asking("a", prompt(90), max_tokens=6))
    loop.run()
    heard(loop, "a", prompt(90))
    assert loop.made[key("a")] == whole_output(100, prompt(90), 6, frozenset())


def test_a_kept_prefix_is_not_started_from_and_no_scored_prompt_is_kept() -> None:
    loop = Listening(facts())
    loop.submit(prepared("first", prompt(400), max_tokens=3))
    loop.run()
    assert loop.engine.kept
    kept = dict(loop.engine.kept)
    loop.submit(asking("again", prompt(400)))
    loop.submit(asking("other", prompt(400, salt=2), max_tokens=4))
    loop.run()
    heard(loop, "again", prompt(400))
    heard(loop, "other", prompt(400, salt=2))
    end = loop.ends[key("again")]
    assert isinstance(end, RowFinished)
    assert end.cost.cached_tokens == 0
    assert loop.engine.kept == kept


def test_no_group_that_is_scored_holds_more_logits_than_the_bound() -> None:
    wide = replace(facts(), vocabulary=200_000)
    loop = Listening(wide)
    for index in range(5):
        loop.submit(asking(f"r{index}", prompt(200 + 20 * index, salt=index)))
    loop.submit(prepared("plain", prompt(230), max_tokens=2))
    scored = {key(f"r{index}") for index in range(5)}
    loop.run()
    assert set(loop.told) == scored
    rows = {spec.row: spec for plan in loop.plans for spec in plan.admit}
    for plan in loop.plans:
        for group in plan.prefill:
            asks = {rows[chunk.row].prompt_logprobs is not None for chunk in group}
            assert len(asks) == 1, "a group is scored, or not"
            positions = len(group) * max(chunk.stop - chunk.start for chunk in group)
            assert asks == {False} or positions * 4 * wide.vocabulary <= SCORED_BYTES
    for index in range(5):
        heard(loop, f"r{index}", prompt(200 + 20 * index, salt=index))


class Forgetful(FakeEngine):
    """An engine that leaves out scores."""

    def read(self) -> StepResult:
        return replace(super().read(), scored=())


def test_an_engine_that_leaves_out_scores_fails_the_row_that_asked_alone() -> None:
    loop = Listening(facts())
    loop.engine = Forgetful(loop.facts, loop.costs)
    loop.submit(asking("a", prompt(50), max_tokens=3))
    loop.submit(prepared("b", prompt(50), max_tokens=3))
    loop.run()
    end = loop.ends[key("a")]
    assert isinstance(end, RowFailed)
    assert end.message == "the engine scored 0 of 50 prompt tokens"
    assert isinstance(loop.ends[key("b")], RowFinished)


@checked(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 30), st.booleans(), st.integers(0, 3)),
        min_size=1,
        max_size=8,
    ),
    st.integers(600, 3000),
    st.booleans(),
    st.sampled_from([64, 70_000, 400_000]),
)
@example(
    [(225, 11, True, 0), (195, 12, False, 0), (257, 3, False, 0), (276, 0, True, 1),
     (279, 0, True, 0)],
    1239, False, 400_000,
)  # fmt: skip
def test_preempted_or_not_each_prompt_is_told_of_once(rows, kv_bytes, trims, vocabulary) -> None:
    small = replace(facts(kv_bytes=kv_bytes, trims=trims), vocabulary=vocabulary)
    loop = Listening(small, ScheduleSettings(max_rows=4, headroom_tokens=4, give_way_s=0.01))
    taken = {}
    for index, (length, more, scores, rank) in enumerate(rows):
        make = asking if scores else prepared
        tokens = prompt(length, salt=index % 3)
        asked = make(f"r{index}", tokens, max_tokens=more or (not scores), priority=rank)
        if not hasattr(loop.submit(asked), "reason"):
            taken[f"r{index}"] = (tokens, scores)
        loop.turn()
    loop.run()
    for name, (tokens, scores) in taken.items():
        if scores:
            heard(loop, name, tokens)
        else:
            assert key(name) not in loop.told
