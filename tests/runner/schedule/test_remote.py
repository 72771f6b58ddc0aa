"""Drafts of another runner, through both pure cores: the verifier's scheduler, and the proposer's
store of rows. Whatever comes, and whenever, rows get the tokens that they get without drafts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.data_frames import pack_ids
from bus.wire.errors import Refusal
from bus.wire.ids import RequestId, TokenId
from bus.wire.messages.requests import Speculate
from bus.wire.proposals import LONGEST_BLOCK, ProposalRefused, Propose
from runner.schedule import RowFinished, RowKey, ScheduleSettings
from runner.schedule.drafting import LENGTHS, NoDrafter, RemoteDrafter
from runner.schedule.drafting.questions import MOST_OPEN
from runner.serving import VerifierTexts
from tests.harness.engine import facts, next_token, whole_output
from tests.harness.scheduling import Loop, prepared

CHEAP = tuple(1.0 + 0.05 * length for length in LENGTHS)
SHARED = ((2, ((33, 2.0),)), (4, ((33, 2.0),)))
EXACT: dict[str, Any] = {"dtype": "float32", "drafts_exactly": True}
VOCABULARY = 64


@dataclass
class Proposer:
    """A proposer that answers after `delay` steps; `draft` says what it drafts after a text."""

    loop: Loop
    delay: int
    draft: Callable[[Propose, Sequence[int]], Sequence[int]]
    texts: VerifierTexts = field(default_factory=lambda: VerifierTexts(VOCABULARY, 4096))
    under_way: list[tuple[int, int, Sequence[int] | int]] = field(default_factory=list)
    steps: int = 0
    refusals: list[str] = field(default_factory=list)
    asked: int = 0

    def step(self) -> None:
        self.steps += 1
        remote = self.loop.scheduler.remote
        due = [each for each in self.under_way if each[0] <= self.steps]
        self.under_way = [each for each in self.under_way if each[0] > self.steps]
        for _, number, answer in due:
            if isinstance(answer, int):
                remote.refuse(number, answer)
            else:
                remote.arrive(number, [TokenId(token) for token in answer])
        for row in remote.ended_rows():
            self.texts.rows.pop(row, None)
        for message in remote.due():
            self.asked += 1
            text = self.texts.take(message)
            if isinstance(text, ProposalRefused):
                self.refusals.append(text.refusal.reason)
                answer: Sequence[int] | int = text.has
            else:
                answer = self.draft(message, text)
            self.under_way.append((self.steps + self.delay, message.number, answer))
        assert len(self.under_way) <= 8 * MOST_OPEN

    def lose(self) -> None:
        """Die, and come back without anything."""
        self.loop.scheduler.remote.use("gone")
        self.texts.rows.clear()
        self.under_way.clear()
        self.loop.scheduler.remote.use("")


def honest(message: Propose, text: Sequence[int]) -> list[int]:
    """What the target will say."""
    return whole_output(message.seed, text, message.length, frozenset())


def loop_of(how: Speculate, **costs: Any) -> Loop:
    model = replace(
        facts(verifies=True, draft_costs=((33, 2.0),), shared_draft_costs=SHARED), extra=EXACT
    )
    return Loop(model, ScheduleSettings(speculate=how))


def ready(how: Speculate, delay: int, draft: Callable[..., Sequence[int]] = honest) -> Proposer:
    proposer = Proposer(loop_of(how), delay, draft)
    proposer.loop.on_step = proposer.step
    proposer.loop.scheduler.remote.use("")
    return proposer


def key(name: str) -> RowKey:
    return RowKey(RequestId(name), 0)


def test_drafts_that_arrive_in_time_save_steps_and_change_nothing() -> None:
    proposer = ready("remote", delay=1)
    loop = proposer.loop
    loop.submit(prepared("a", [5, 9, 12], max_tokens=200))
    loop.run()
    assert loop.made[key("a")] == whole_output(100, [5, 9, 12], 200, frozenset())
    assert len(loop.plans) < 100
    end = loop.ends[key("a")]
    assert isinstance(end, RowFinished)
    counts = end.cost.drafts
    assert counts.accepted == counts.drafted > 100, "an honest draft is right"
    remote = loop.scheduler.remote
    assert proposer.asked == remote.count >= remote.useful > 0
    assert not proposer.refusals


def test_what_is_late_is_used_as_far_as_it_is_ahead_and_too_late_drafts_are_given_up() -> None:
    steps, asked = {}, {}
    for delay in (1, 4, 40):
        proposer = ready("remote", delay)
        proposer.loop.submit(prepared("a", [5, 9, 12], max_tokens=300))
        proposer.loop.run()
        steps[delay], asked[delay] = len(proposer.loop.plans), proposer.asked
    assert steps[1] < steps[4] < 0.8 * steps[40], steps
    assert asked[40] < 10, "pauses grow"


def test_wrong_drafts_are_asked_for_rarely_and_verified_rarely() -> None:
    proposer = ready("remote", 1, lambda message, _text: [1] * message.length)
    proposer.loop.submit(prepared("a", [5, 9, 12], max_tokens=300))
    proposer.loop.run()
    assert proposer.loop.made[key("a")] == whole_output(100, [5, 9, 12], 300, frozenset())
    assert proposer.asked < 20
    assert len(proposer.loop.plans) < 310


def test_auto_and_remote_ask_and_others_do_not() -> None:
    asks: dict[Speculate, int] = {}
    for how in ("auto", "remote", "ngram", "draft_model", "off"):
        proposer = ready(how, 1)
        proposer.loop.submit(prepared("a", [5, 9, 12], max_tokens=30))
        proposer.loop.run()
        asks[how] = proposer.asked
    assert [how for how, count in asks.items() if count] == ["auto", "remote"]


def test_a_named_drafter_without_a_proposer_is_refused_and_auto_is_not() -> None:
    loop = loop_of("off")
    undrafted = loop.scheduler.intake.undrafted
    refusal = undrafted("remote")
    assert isinstance(refusal, Refusal) and refusal.field == "x_speculate"
    assert "names no draft model" in refusal.message and undrafted("auto") is None
    loop.scheduler.remote.use("small was silent for 3 s")
    refusal = undrafted("remote")
    assert refusal is not None and "silent for 3 s" in refusal.message
    loop.scheduler.remote.use("")
    assert undrafted("remote") is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_random_arrivals_losses_cuts_and_lies_change_no_token(number: int, rows: int) -> None:
    draw = random.Random(number)

    def drafts(message: Propose, text: Sequence[int]) -> Sequence[int]:
        kind, right = draw.random(), honest(message, text)
        if kind < 0.5:
            return right
        if kind < 0.7:
            at = draw.randrange(len(right))
            return [*right[:at], 63, *right[at + 1 :]]
        if kind < 0.8:
            return right[: draw.randrange(len(right) + 1)]
        return [draw.choice((0, 7, -1, 64, 10**9)) for _ in range(draw.randrange(40))]

    proposer = ready("remote", 1, drafts)
    loop = proposer.loop

    def step() -> None:
        proposer.delay = draw.choice((0, 1, 1, 2, 5))
        if draw.random() < 0.02:
            proposer.lose()
        if draw.random() < 0.05 and proposer.under_way:
            proposer.under_way.pop(draw.randrange(len(proposer.under_way)))
        if draw.random() < 0.05:
            proposer.texts.rows.clear()
        proposer.step()

    loop.on_step = step
    prompts = {
        f"r{n}": [draw.randrange(64) for _ in range(1 + draw.randrange(40))] for n in range(rows)
    }
    most = {name: draw.randrange(1, 90) for name in prompts}
    for name, prompt in prompts.items():
        loop.submit(prepared(name, prompt, max_tokens=most[name], stops=frozenset({3})))
    loop.run()
    for name, prompt in prompts.items():
        wanted = whole_output(100, prompt, most[name], frozenset({3}))
        assert loop.made[key(name)] == wanted
        end = loop.ends[key(name)]
        assert isinstance(end, RowFinished)
        assert end.finish == ("stop" if wanted[-1] == 3 else "length")
        assert 0 <= end.cost.drafts.accepted <= end.cost.drafts.drafted


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a_guess_is_always_the_rest_of_a_draft_that_agreed_so_far(number: int) -> None:
    draw = random.Random(number)
    drafter, row = RemoteDrafter(NoDrafter(), CHEAP), [TokenId(1)]
    truth = [TokenId(draw.randrange(3)) for _ in range(200)]
    open_block: list[TokenId] | None = None
    for token in truth:
        wish = drafter.wish(200)
        if wish is not None:
            assert 0 < wish.length <= LONGEST_BLOCK and not drafter.is_awaited
            drafter.order(wish)
            begin = len(row) - 1 + len(wish.presumed)
            right = truth[begin : begin + wish.length]
            if draw.random() < 0.5 and right:
                right[draw.randrange(len(right))] = TokenId(9)
            open_block = right
        if open_block is not None and draw.random() < 0.4:
            drafter.arrived(open_block)
            open_block = None
        drafter.take((token,))
        row.append(token)
        draft = drafter.draft(LONGEST_BLOCK)
        if draft is not None:
            ahead = truth[len(row) - 1 : len(row) - 1 + draft.length]
            wrong = [
                at for at, guess in enumerate(draft.tokens[: len(ahead)]) if guess != ahead[at]
            ]
            assert all(draft.tokens[at] == 9 for at in wrong[:1]), "only a lie is wrong first"


def test_a_verifier_is_told_what_is_wrong_and_no_more_than_its_rows_are_kept() -> None:
    texts = VerifierTexts(vocabulary=10, context_tokens=50)
    fields: dict[str, Any] = {
        "number": 1, "row": 1, "base": 0, "tokens": pack_ids((1, 2, 3)), "prompt": 2, "length": 4,
        "steps": 0, "seed": 1, "sampling": prepared("a", [1]).request.sampling, "remaining_ms": 9,
    }  # fmt: skip
    assert texts.take(Propose(**fields)) == [1, 2, 3]
    assert texts.take(Propose(**{**fields, "base": 2, "tokens": pack_ids((7,))})) == [1, 2, 7]
    for changes, reason, word in (
        ({"base": 9}, "conflict", "has 3 tokens"),
        ({"tokens": b"abc"}, "bad_request", "tokens"),
        ({"tokens": pack_ids((10,))}, "bad_request", "vocabulary"),
        ({"length": 33}, "bad_request", "the limit is 32"),
        ({"steps": 2}, "unsupported", "steps"),
        ({"remaining_ms": 60_001}, "bad_request", "60000"),
        ({"prompt": 4}, "bad_request", "prompt"),
        ({"tokens": pack_ids((1,) * 48)}, "context_length", "the limit is 50"),
    ):
        answer = texts.take(Propose(**{**fields, **changes}))
        assert isinstance(answer, ProposalRefused) and answer.refusal.reason == reason
        assert word in answer.refusal.message
    answer = texts.take(Propose(**{**fields, "base": 9}))
    assert isinstance(answer, ProposalRefused) and answer.has == 3
    for row in range(200):
        texts.take(Propose(**{**fields, "row": row}))
    assert len(texts.rows) == 64 and 199 in texts.rows


def test_the_next_token_depends_on_all_before_it() -> None:
    assert next_token(1, [1, 2]) != next_token(1, [2, 1]), "else the tests above show nothing"
