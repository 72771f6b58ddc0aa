"""Who resumes after the death of a runner, how often, and who is blamed (decision 0098)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.data_frames import pack_ids
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    TRIAL_TOKENS,
    Begun,
    ChoiceSoFar,
    Failed,
    Finished,
    TokenDelta,
    ToolCallDelta,
)
from gateway.runners.resuming import (
    MOST_DEATHS,
    KeptMemory,
    Occupant,
    Resuming,
    judge,
    why_it_ends,
)

RID = RequestId("r")
OCCUPANTS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=8).map(
    lambda flags: [
        Occupant(RequestId(str(number)), computed, suspect, suspect and tried)
        for number, (computed, suspect, tried) in enumerate(flags)
    ]
)


@given(OCCUPANTS, st.booleans())
def test_the_blame_is_on_the_only_suspect_on_trial_or_on_all_that_were_computed(
    occupants: list[Occupant], died: bool
) -> None:
    verdicts = judge(occupants, died=died)
    assert list(verdicts) == [one.request_id for one in occupants], "each is judged once"
    tried = [one for one in occupants if one.on_trial]
    for one in occupants:
        verdict = verdicts[one.request_id]
        if died and len(tried) == 1:
            assert verdict == ("culprit" if one.on_trial else "innocent")
        else:
            assert verdict == (
                "suspect" if one.is_suspect or (died and one.computed) else "innocent"
            )


def test_a_culprit_and_one_that_was_lost_too_often_end_with_the_reason() -> None:
    assert "second runner" in why_it_ends("culprit", 1, is_kept=True)
    assert "3 times" in why_it_ends("innocent", MOST_DEATHS, is_kept=True)
    assert "memory" in why_it_ends("suspect", 0, is_kept=False)
    assert [why_it_ends("suspect", n, is_kept=True) for n in range(MOST_DEATHS)] == ["", "", ""]


def begun(prompt: tuple[int, ...] = (1, 2, 3), choices: int = 2, most: int = 9) -> Begun:
    return Begun(RID, pack_ids(prompt), most, tuple(range(choices)), 2)


def test_the_answer_so_far_has_what_came_and_ended_choices_make_their_last_token_again() -> None:
    memory = KeptMemory()
    request = Resuming(memory)
    request.began(begun(choices=3, most=2), 10.0)
    keep(request, TokenDelta(RID, 0, 0, "text", "a", 1, (), pack_ids((7,)), ((-0.5, ()),)))
    keep(request, ToolCallDelta(RID, 1, 1, 0, "c", "f", "", 1, pack_ids((8,))))
    keep(request, TokenDelta(RID, 2, 2, "text", "b", 2, (), pack_ids((4, 5)), ((-0.25, ()),)))
    request.count(0, 4, 12.0)
    request.over.add(1)
    assert request.lost("suspect", 13.5, 14.0) == ""
    so_far = request.so_far(logprobs=True)
    assert so_far is not None and so_far.prompt == (1, 2, 3) and so_far.max_tokens == 2
    assert so_far.choices == (
        ChoiceSoFar(0, (7,), 1, ((-0.5, ()),)),
        ChoiceSoFar(1, (), 1),
        ChoiceSoFar(2, (4,), 1, ((0.0, ()),)),
    )
    usage = so_far.usage
    assert (usage.cached_tokens, usage.prefill_s, usage.decode_s) == (2, 2.0, 1.5)
    assert memory.used_bytes == 12 + 16
    request.end()
    assert memory.used_bytes == 0


def test_one_of_which_nothing_was_begun_starts_anew() -> None:
    request = Resuming(KeptMemory())
    assert request.lost("innocent", 1.0, 2.0) == "" and request.so_far(logprobs=False) is None


def keep(request: Resuming, entry: TokenDelta | ToolCallDelta) -> None:
    """As `ClientRequest.arrived` does."""
    if request.record is not None and not request.record.add(entry):
        request.drop()


def test_what_exceeds_the_memory_is_not_kept_and_ends_with_the_reason() -> None:
    memory = KeptMemory(limit_bytes=20)
    first, second = Resuming(memory), Resuming(memory)
    first.began(begun(), 0.0)
    second.began(begun(), 0.0)
    assert first.is_on and not second.is_on and memory.used_bytes == 12
    for _ in range(3):
        keep(first, TokenDelta(RID, 0, 0, "text", "a", 1, (), pack_ids((7,))))
    assert not first.is_on and memory.used_bytes == 0
    assert "memory" in first.lost("innocent", 1.0, 2.0)


@dataclass
class Row:
    """A request of the simulation. It kills its runner at its `kills_at`-th token."""

    number: int
    tokens: int
    kills_at: int | None
    fate: Resuming = field(default_factory=lambda: Resuming(KeptMemory()))
    made: int = 0
    ended: str = ""


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_a_poison_request_ends_at_its_second_runner_and_takes_nobody_along(
    seed: int, count: int, poisons: int
) -> None:
    chance = random.Random(seed)
    rows = [
        Row(number, chance.randint(5, 60), chance.randint(1, 40) if number < poisons else None)
        for number in range(count)
    ]
    for row in rows:
        row.tokens = max(row.tokens, row.kills_at or 0)
    deaths = 0
    while any(not row.ended for row in rows):
        running: list[Row] = []
        waiting = [row for row in rows if not row.ended]
        chance.shuffle(waiting)
        died = False
        while not died and (running or waiting):
            # as the scheduler of a runner: nothing begins beside a suspect on trial
            while waiting and not any(row.fate.is_suspect for row in running):
                running.append(waiting.pop())
                running[-1].fate.began(begun(), 0.0)
            for row in list(running):
                if row.kills_at == row.made + 1:
                    died = True
                    break
                row.made += 1
                row.fate.count(row.made - 1, 1, 1.0)
                if row.made == row.tokens:
                    row.ended = "finished"
                    running.remove(row)
        if not died:
            break
        deaths += 1
        inside = [*running, *waiting]
        ids = {RequestId(str(row.number)): row for row in inside}
        verdicts = judge(
            [
                Occupant(
                    name,
                    row in running,
                    row.fate.is_suspect,
                    row.fate.is_suspect and row.fate.computes,
                )
                for name, row in ids.items()
            ],
            died=True,
        )
        for name, row in ids.items():
            row.ended = row.fate.lost(verdicts[name], 1.0, 2.0)
            row.fate.submit(None)
    assert deaths <= 2 * poisons, "each poison kills two runners at most"
    for row in rows:
        assert row.fate.deaths <= MOST_DEATHS
        if row.kills_at is not None:
            assert "finished" not in row.ended
        elif poisons <= 1:
            assert row.ended == "finished", "an innocent request is answered whole"


def test_the_usage_tells_how_often_a_request_resumed_and_how_long_it_stood_still() -> None:
    request, end = Resuming(KeptMemory()), Finished(RID, 9, Usage(completion_tokens=5))
    assert request.counted(end) is end
    request.began(begun(), 0.0)
    request.count(0, 1, 1.0)
    request.lost("innocent", 2.0, 4.0)
    request.submit(None)
    request.lost("innocent", 5.0, 6.0)
    request.submit(None)
    request.began(begun(), 7.0)
    request.count(1, 1, 9.0)
    usage = request.counted(end).usage
    assert (usage.resumes, usage.paused_s, usage.completion_tokens) == (2, 7.0, 5)
    failed = Failed(RID, 9, "deadline", "late", Usage(), {})
    assert request.counted(failed).usage.resumes == 2


def test_a_suspect_is_harmless_after_some_tokens() -> None:
    request = Resuming(KeptMemory())
    request.began(begun(), 0.0)
    request.lost("suspect", 1.0, 2.0)
    request.submit(None)
    request.began(begun(), 3.0)
    request.count(0, TRIAL_TOKENS - 1, 4.0)
    assert request.is_suspect and request.on_trial
    request.count(TRIAL_TOKENS - 1, 1, 4.0)
    assert not request.is_suspect and not request.on_trial
