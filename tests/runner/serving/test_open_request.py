"""One request from its rows' events to numbered entries, as traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import FinishReason
from bus.wire.ids import TokenId
from bus.wire.messages.tokens import (
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    PromptTokens,
    TokenDelta,
)
from runner.engine import PromptScores, RowId, SampledToken
from runner.schedule.rows import RowCost, RowKey
from runner.serving.open_request import OpenRequest, Order, Outgoing
from runner.text.prepared import CallPiece, ChoiceFinish, ChoiceOutput, PromptPiece, TextPiece
from tests.harness.scheduling import prepared

COST = RowCost(5, 9, 0, 0.1, 0.2, 0.3)


class Letters:
    """Reads token n as the letter n, `.` (46) as the end of the text; holds back every third
    token's letter until the next one."""

    def __init__(self) -> None:
        self.count = 0
        self.back = ""

    def push(self, token: SampledToken) -> ChoiceOutput:
        self.count += 1
        if token.token == ord("."):
            return ChoiceOutput(ended=True)
        self.back += chr(token.token)
        if self.count % 3 == 0:
            return ChoiceOutput()
        text, self.back = self.back, ""
        return ChoiceOutput((TextPiece("text", text, len(text)),))

    def finish(self, reason: FinishReason) -> ChoiceFinish:
        pieces = (TextPiece("text", self.back, len(self.back)),) if self.back else ()
        self.back = ""
        return ChoiceFinish(pieces, reason, None, 0)


def opened(n: int = 1, credit: int = 100) -> OpenRequest:
    request = prepared("r", [1, 2, 3, 4, 5], n=n, max_tokens=100)
    readers = [Letters() for _ in range(n)]
    return OpenRequest(request, readers, seeds=range(n), peer=b"gw", credit=credit)


def say(request: OpenRequest, text: str, out: Outgoing, choice: int = 0, now: float = 0.0) -> None:
    for letter in text:
        request.token(choice, SampledToken(RowId(1), TokenId(ord(letter))), now, out)


def text_of(entries: list[Entry], choice: int = 0) -> str:
    deltas = [e for e in entries if isinstance(e, TokenDelta) and e.choice == choice]
    return "".join(delta.text for delta in deltas)


def test_text_then_its_end_then_the_terminal_numbered_without_gaps() -> None:
    request, out = opened(), Outgoing()
    say(request, "hello", out)
    request.row_finished(0, "length", COST, 1.0, out)
    assert text_of(out.entries) == "hello"
    assert [entry.seq for entry in out.entries] == list(range(len(out.entries)))
    assert isinstance(out.entries[-2], ChoiceEnd)
    terminal = out.entries[-1]
    assert isinstance(terminal, Finished)
    assert terminal.usage.completion_tokens == 5
    assert terminal.usage.decode_s == 0.3
    assert request.is_over


def test_a_request_with_a_history_is_told_all_that_was_read_and_made() -> None:
    asked = prepared("r", [1, 2, 3], max_tokens=100)
    wanting = replace(asked, request=asked.request.model_copy(update={"history": (1,)}))
    request = OpenRequest(wanting, [Letters()], seeds=[0], peer=b"gw", credit=100)
    out = Outgoing()
    say(request, "ab.xyz", out)
    request.row_finished(0, "stop", COST, 1.0, out)
    terminal = out.entries[-1]
    assert isinstance(terminal, Finished) and terminal.prompt is not None
    # what came after the end of the text is no part of the answer
    assert terminal.prompt.token_ids == (1, 2, 3, *map(ord, "ab."))


def test_a_text_that_ends_itself_orders_its_row_to_complete() -> None:
    request, out = opened(), Outgoing()
    say(request, "ab.xyz", out)
    assert out.orders == [Order("complete", RowKey(request.request_id, 0))]
    assert isinstance(out.entries[-1], ChoiceEnd)
    assert not request.is_over
    request.row_finished(0, "stop", COST, 1.0, out)
    assert isinstance(out.entries[-1], Finished)
    assert out.entries[-1].usage.completion_tokens == 3


def test_without_credit_the_row_is_paused_and_nothing_leaves() -> None:
    request, out = opened(credit=2), Outgoing()
    say(request, "abdegh", out, now=1.0)
    assert text_of(out.entries) == "ab"
    assert out.orders == [Order("pause", RowKey(request.request_id, 0))]
    assert request.is_paused
    assert request.stalled_s(3.5) == 2.5
    request.grant(0, 1, 4.0, out)
    assert text_of(out.entries) == "abde"[: len(text_of(out.entries))]
    request.grant(0, 50, 5.0, out)
    assert out.orders[-1] == Order("resume", RowKey(request.request_id, 0))
    assert text_of(out.entries) == "abdegh"[: len(text_of(out.entries))]
    assert request.stalled_s(9.0) == 0.0


def test_an_end_waits_for_the_credit_of_the_text_before_it() -> None:
    request, out = opened(credit=1), Outgoing()
    say(request, "ab", out, now=1.0)
    request.row_finished(0, "length", COST, 2.0, out)
    assert not any(isinstance(entry, ChoiceEnd | Finished) for entry in out.entries)
    assert request.stalled_s(5.0) == 4.0
    request.grant(0, 5, 6.0, out)
    assert text_of(out.entries) == "ab"
    assert isinstance(out.entries[-1], Finished)


def test_one_slow_choice_does_not_hold_up_another() -> None:
    request, out = opened(n=2, credit=1), Outgoing()
    request.grant(1, 50, 0.0, out)
    say(request, "ab", out, choice=0)
    say(request, "cd", out, choice=1)
    assert text_of(out.entries, 0) == "a"
    assert text_of(out.entries, 1) == "cd"


def test_a_cancel_drops_what_is_held_and_still_ends_well() -> None:
    request, out = opened(credit=1), Outgoing()
    say(request, "abcd", out)
    request.row_finished(0, "cancelled", COST, 1.0, out)
    end = out.entries[-2]
    assert isinstance(end, ChoiceEnd)
    assert end.finish_reason == "cancelled"
    assert isinstance(out.entries[-1], Finished)
    assert text_of(out.entries) == "a"


def test_a_failure_is_the_last_word_and_cancels_the_other_rows() -> None:
    request, out = opened(n=2), Outgoing()
    say(request, "ab", out)
    request.fail("internal", "no", out)
    say(request, "cd", out, choice=1)
    request.fail("deadline", "again", out)
    assert isinstance(out.entries[-1], Failed)
    assert out.entries[-1].reason == "internal"
    assert sum(isinstance(entry, Failed) for entry in out.entries) == 1
    assert [order.kind for order in out.orders] == ["cancel"]


def test_only_long_prompts_tell_how_far_they_are() -> None:
    request, out = opened(), Outgoing()
    request.prefilled(0, 5, 5, out)
    assert not out.entries
    request.prefilled(0, 2, 5, out)
    assert out.entries == [PrefillProgress(request.request_id, 0, 2, 5)]


@given(
    acts=st.lists(
        st.tuples(st.sampled_from("tttgef"), st.integers(0, 2), st.integers(1, 4)), max_size=60
    ),
    credit=st.integers(0, 5),
)
def test_whatever_happens_numbers_have_no_gaps_and_credit_is_kept(
    acts: list[tuple[str, int, int]], credit: int
) -> None:
    request, out = opened(n=3, credit=credit), Outgoing()
    granted = [credit] * 3
    said = [""] * 3
    ended = [False] * 3
    for act, choice, amount in acts:
        if act == "t" and not ended[choice] and not request.is_over:
            letters = "abcd"[:amount]
            said[choice] += letters
            say(request, letters, out, choice)
        elif act == "g":
            granted[choice] += amount
            request.grant(choice, amount, 0.0, out)
        elif act == "e" and not ended[choice]:
            ended[choice] = True
            request.row_finished(choice, "length", COST, 0.0, out)
        elif act == "f" and amount == 4:
            request.fail("internal", "told", out)
    for choice in range(3):
        request.grant(choice, 1000, 1.0, out)
        if not ended[choice]:
            request.row_finished(choice, "length", COST, 1.0, out)
    entries = out.entries
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    assert sum(isinstance(entry, Finished | Failed) for entry in entries) == 1
    assert isinstance(entries[-1], Finished | Failed)
    for choice in range(3):
        deltas = [e for e in entries if isinstance(e, TokenDelta) and e.choice == choice]
        assert len(deltas) <= granted[choice] + 1000
        assert said[choice].startswith("".join(delta.text for delta in deltas))
        if isinstance(entries[-1], Finished):
            assert text_of(entries, choice) == said[choice]


class OneByOne:
    """Reads each prompt token as a piece of its own."""

    def read(self, scores: PromptScores) -> Iterator[PromptPiece]:
        for at in range(len(scores.logprobs)):
            yield PromptPiece(scores.start + at, "p", ())


def test_a_prompts_scores_take_credit_and_come_before_the_text() -> None:
    asked = prepared("r", [1, 2, 3, 4, 5])
    request = OpenRequest(asked, [Letters()], seeds=[0], peer=b"gw", credit=3, prompt=OneByOne())
    first, out = Outgoing(), Outgoing()
    request.scored(0, PromptScores(RowId(1), 0, (0.0, -1.0), ((), ())), 0.0, first)
    request.scored(0, PromptScores(RowId(1), 2, (-1.0, -1.0, -1.0), ((), (), ())), 0.0, first)
    say(request, "ab", first)
    told = [entry.start for entry in first.entries if isinstance(entry, PromptTokens)]
    assert told == [0, 1, 2]
    assert first.orders == [Order("pause", RowKey(request.request_id, 0))]
    request.grant(0, 100, 1.0, out)
    request.row_finished(0, "length", COST, 2.0, out)
    kinds = [type(entry) for entry in out.entries]
    assert kinds[:2] == [PromptTokens, PromptTokens]
    assert text_of(out.entries) == "ab"
    assert [entry.seq for entry in (*first.entries, *out.entries)] == list(
        range(len(first.entries) + len(out.entries))
    )
    assert isinstance(out.entries[-1], Finished)


def test_scores_that_come_after_the_end_are_ignored() -> None:
    request, out = opened(), Outgoing()
    request.fail("internal", "lost", out)
    count = len(out.entries)
    request.scored(0, PromptScores(RowId(1), 0, (0.0,), ((),)), 0.0, out)
    assert len(out.entries) == count


class Thinks(Letters):
    """Reads capitals as thinking, `!` as the beginning of a tool call."""

    def push(self, token: SampledToken) -> ChoiceOutput:
        letter = chr(token.token)
        if letter == "!":
            return ChoiceOutput((CallPiece(0, "call_1", "look", "", 1),))
        channel = "reasoning" if letter.isupper() else "text"
        return ChoiceOutput((TextPiece(channel, letter, 1),))


def test_what_the_parser_finds_is_told_once_for_each_thing() -> None:
    readers = [Thinks(), Thinks()]
    asked = prepared("r", [1, 2, 3], n=2, max_tokens=100)
    request = OpenRequest(asked, readers, seeds=range(2), peer=b"gw", credit=100)
    out = Outgoing()
    say(request, "abc", out)
    assert request.newly_parsed() == []
    say(request, "AB", out)
    say(request, "C", out, choice=1)
    assert request.newly_parsed() == ["thinking"]
    say(request, "a!D", out, choice=1)
    assert request.newly_parsed() == ["tool_call"]
    say(request, "!", out)
    assert request.newly_parsed() == []
