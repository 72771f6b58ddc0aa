"""What one client waits for: order, ends, credit, comments."""

from __future__ import annotations

import asyncio

from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import GenerationRequest, TextPrompt
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Failed,
    Finished,
    PrefillProgress,
    TokenDelta,
    Usage,
)
from gateway.dialects.faults import HttpFault
from gateway.requests.inbox import EntryInbox

A, B = RequestId("a"), RequestId("b")


def request(name: RequestId, n: int = 1) -> GenerationRequest:
    return GenerationRequest(request_id=name, model=ModelId("m"), prompt=TextPrompt(text="x"), n=n)


def delta(name: RequestId, seq: int, choice: int = 0) -> TokenDelta:
    return TokenDelta(name, seq, choice, "text", "x", 1)


def finished(name: RequestId, seq: int) -> Finished:
    return Finished(name, seq, Usage())


def test_credit_is_given_back_only_once_the_bytes_before_are_sent() -> None:
    async def trace() -> None:
        sent: list[tuple[str, int, int]] = []
        answer = EntryInbox([request(A)], on_sent=lambda *what: sent.append(what))
        answer.arrived(A, [delta(A, 0), delta(A, 1)])
        assert len(await answer.take()) == 2
        assert sent == []
        answer.arrived(A, [ChoiceEnd(A, 2, 0, "stop", None), finished(A, 3)])
        assert len(await answer.take()) == 2
        assert sent == [(A, 0, 2)]
        assert await answer.take() == []
        assert sent == [(A, 0, 2), (A, 0, 0)]

    asyncio.run(trace())


def test_several_requests_end_together_and_each_choice_has_its_credit() -> None:
    async def trace() -> None:
        sent: list[tuple[str, int, int]] = []
        answer = EntryInbox([request(A, 2), request(B, 2)], on_sent=lambda *what: sent.append(what))
        answer.arrived(A, [delta(A, 0, 0), delta(A, 1, 1), finished(A, 2)])
        assert not answer.ended and not answer.settled
        answer.arrived(B, [delta(B, 0, 1), finished(B, 1)])
        assert answer.ended and answer.settled
        assert len(await answer.take()) == 5
        await answer.take()
        assert sorted(sent) == [(A, 0, 1), (A, 1, 1), (B, 1, 1)]

    asyncio.run(trace())


def test_the_end_of_an_answer_is_taken_at_once_however_large_its_batches_are() -> None:
    async def trace() -> None:
        answer = EntryInbox([request(A)], on_sent=lambda *_: None)
        answer.batch = 5
        waiting = asyncio.ensure_future(answer.take())
        await asyncio.sleep(0)
        answer.arrived(A, [delta(A, 0), finished(A, 1)])
        assert len(await asyncio.wait_for(waiting, 5.0)) == 2

    asyncio.run(trace())


def test_one_failure_ends_the_whole_answer() -> None:
    async def trace() -> None:
        answer = EntryInbox([request(A), request(B)], on_sent=lambda *_: None)
        answer.arrived(A, [Failed(A, 0, "bad_request", "no", Usage(), {})])
        assert answer.ended
        assert answer.early_fault is not None and answer.early_fault.status == 400

    asyncio.run(trace())


def test_a_refusal_wakes_who_waits_and_is_the_first_word_only() -> None:
    async def trace() -> None:
        answer = EntryInbox([request(A)], on_sent=lambda *_: None)
        assert not await answer.wait_settled(0.01)
        waiting = asyncio.ensure_future(answer.wait_settled(5.0))
        await asyncio.sleep(0)
        answer.refuse(HttpFault(429, "queue_full", "full"))
        answer.refuse(HttpFault(503, "later", "too late"))
        assert await waiting
        assert answer.early_fault is not None and answer.early_fault.code == "queue_full"
        assert await answer.take() == []

    asyncio.run(trace())


def test_comments_wake_the_stream_and_do_not_pile_up() -> None:
    async def trace() -> None:
        answer = EntryInbox([request(A)], on_sent=lambda *_: None)
        waiting = asyncio.ensure_future(answer.take())
        await asyncio.sleep(0)
        answer.say("1 %")
        answer.say("2 %")
        assert await waiting == []
        assert answer.take_comments() == ["2 %"]
        assert answer.take_comments() == []

    asyncio.run(trace())


def test_an_abandoned_answer_gives_nothing_more() -> None:
    async def trace() -> None:
        answer = EntryInbox([request(A)], on_sent=lambda *_: None)
        answer.arrived(A, [delta(A, 0)])
        answer.abandon()
        assert await answer.take() == []
        assert answer.ended

    asyncio.run(trace())


def test_an_answer_has_begun_with_its_first_token_and_not_with_a_word_of_progress() -> None:
    async def trace() -> None:
        answer = EntryInbox([request(A)], on_sent=lambda *_: None)
        answer.accepted(A)
        answer.arrived(A, [PrefillProgress(A, 0, 5, 10)])
        assert answer.settled and not await answer.wait_begun(0.01)
        waits = asyncio.ensure_future(answer.wait_begun(None))
        await asyncio.sleep(0)
        answer.arrived(A, [delta(A, 1)])
        assert await waits
        assert len(await answer.take()) == 2, "it is still there to be taken"

    asyncio.run(trace())


def test_what_fails_after_a_word_of_progress_alone_can_still_be_a_status() -> None:
    async def trace() -> None:
        answer = EntryInbox([request(A)], on_sent=lambda *_: None)
        failed = Failed(A, 1, "runner_lost", "gone", Usage(), {})
        answer.arrived(A, [PrefillProgress(A, 0, 5, 10), failed])
        assert await answer.wait_begun(5.0)
        assert answer.early_fault is not None and answer.early_fault.status == 503

    asyncio.run(trace())


def test_what_came_before_a_request_went_on_elsewhere_gives_no_credit_there() -> None:
    async def trace() -> None:
        sent: list[tuple[str, int, int]] = []
        answer = EntryInbox([request(A, 2)], on_sent=lambda *what: sent.append(what))
        answer.arrived(A, [delta(A, 0, 0), delta(A, 1, 1), delta(A, 2, 0)])
        assert len(await answer.take()) == 3
        answer.arrived(A, [delta(A, 3, 0)])
        answer.suspended(A)
        answer.arrived(A, [delta(A, 0, 0), delta(A, 1, 1)])
        assert len(await answer.take()) == 3
        assert sum(count for _, _, count in sent) == 0
        answer.arrived(A, [delta(A, 2, 0)])
        await answer.take()
        counts = dict.fromkeys(range(2), 0)
        for _, choice, count in sent:
            counts[choice] += count
        assert counts == {0: 1, 1: 1}, "the first of this runner"

    asyncio.run(trace())
