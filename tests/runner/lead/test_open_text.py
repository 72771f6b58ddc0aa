"""One request from its rows' events to numbered entries, as traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import FinishReason
from bus.wire.ids import TokenId
from bus.wire.messages.requests import Usage
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
from runner.schedule.rows import RowCost, RowFinished, RowKey
from runner.text.prepared import CallPiece, ChoiceFinish, ChoiceOutput, PromptPiece, TextPiece
from tests.harness.open_requests import OpenedText
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
        return ChoiceFinish(pieces, reason, None, reasoning_tokens=1)


def opened(n: int = 1, credit: int = 100) -> OpenedText:
    request = prepared("r", [1, 2, 3, 4, 5], n=n, max_tokens=100)
    return OpenedText(request, [Letters() for _ in range(n)], seeds=range(n), credit=credit)


def say(made: OpenedText, text: str, choice: int = 0, now: float = 0.0) -> list[bool]:
    """Each letter as a token; returns which of them completed the text."""
    return [
        made.text.token(choice, SampledToken(RowId(1), TokenId(ord(letter))), now)
        for letter in text
    ]


def text_of(entries: list[Entry], choice: int = 0) -> str:
    deltas = [e for e in entries if isinstance(e, TokenDelta) and e.choice == choice]
    return "".join(delta.text for delta in deltas)


def test_text_then_its_end_then_the_terminal_numbered_without_gaps() -> None:
    made = opened()
    say(made, "hello")
    made.text.row_finished(0, "length", COST, 1.0)
    assert text_of(made.entries) == "hello"
    assert [entry.seq for entry in made.entries] == list(range(len(made.entries)))
    assert isinstance(made.entries[-2], ChoiceEnd)
    terminal = made.entries[-1]
    assert isinstance(terminal, Finished)
    assert terminal.usage.completion_tokens == 5
    assert terminal.usage.decode_s == 0.3
    assert made.request.is_over


def test_a_request_with_a_history_is_told_all_that_was_read_and_made() -> None:
    asked = prepared("r", [1, 2, 3], max_tokens=100)
    wanting = replace(asked, request=asked.request.model_copy(update={"history": (1,)}))
    made = OpenedText(wanting, [Letters()], seeds=[0])
    say(made, "ab.xyz")
    made.text.row_finished(0, "stop", COST, 1.0)
    terminal = made.entries[-1]
    assert isinstance(terminal, Finished) and terminal.prompt is not None
    # what came after the end of the text is no part of the answer
    assert terminal.prompt.token_ids == (1, 2, 3, *map(ord, "ab."))


def test_a_text_that_ends_itself_says_so_once_and_waits_for_its_row() -> None:
    made = opened()
    assert say(made, "ab.xyz") == [False, False, True, False, False, False]
    assert isinstance(made.entries[-1], ChoiceEnd)
    assert not made.request.is_over
    made.text.row_finished(0, "stop", COST, 1.0)
    assert isinstance(made.entries[-1], Finished)
    assert made.entries[-1].usage.completion_tokens == 3


def test_without_credit_the_row_is_paused_and_nothing_leaves() -> None:
    made = opened(credit=2)
    say(made, "abdegh", now=1.0)
    assert text_of(made.entries) == "ab"
    assert made.host.calls == [("pause", 0)]
    assert made.request.is_paused
    assert made.request.stalled_s(3.5) == 2.5
    made.request.grant(0, 1, 4.0)
    assert text_of(made.entries) == "abde"[: len(text_of(made.entries))]
    made.request.grant(0, 50, 5.0)
    assert made.host.calls[-1] == ("resume", 0)
    assert text_of(made.entries) == "abdegh"[: len(text_of(made.entries))]
    assert made.request.stalled_s(9.0) == 0.0


def test_an_end_waits_for_the_credit_of_the_text_before_it() -> None:
    made = opened(credit=1)
    say(made, "ab", now=1.0)
    made.text.row_finished(0, "length", COST, 2.0)
    assert not any(isinstance(entry, ChoiceEnd | Finished) for entry in made.entries)
    assert made.request.stalled_s(5.0) == 4.0
    made.request.grant(0, 5, 6.0)
    assert text_of(made.entries) == "ab"
    assert isinstance(made.entries[-1], Finished)


def test_one_slow_choice_does_not_hold_up_another() -> None:
    made = opened(n=2, credit=1)
    made.request.grant(1, 50, 0.0)
    say(made, "ab", choice=0)
    say(made, "cd", choice=1)
    assert text_of(made.entries, 0) == "a"
    assert text_of(made.entries, 1) == "cd"


def test_a_cancel_drops_what_is_held_and_still_ends_well() -> None:
    made = opened(n=2, credit=1)
    say(made, "abcd")
    say(made, "a", choice=1)
    made.host.usage = lambda request: stopped(made)
    made.request.cancel("client", 1.0)
    *ends, last = made.entries[-3:]
    assert [(e.choice, e.finish_reason) for e in ends if isinstance(e, ChoiceEnd)] == [
        (0, "cancelled"),
        (1, "cancelled"),
    ]
    assert isinstance(last, Finished)
    assert (last.usage.completion_tokens, last.usage.reasoning_tokens) == (5, 2)
    assert last.usage.decode_s == 0.3
    assert text_of(made.entries) == "a"


def stopped(made: OpenedText) -> Usage:
    """What the backend returns when the server ends a request whose rows still run."""
    keys = (RowKey(made.request.request_id, choice) for choice in range(2))
    made.text.stopped([RowFinished(key, "cancelled", COST) for key in keys])
    return made.text.usage()


def test_a_failure_is_the_last_word() -> None:
    made = opened(n=2)
    say(made, "ab")
    made.request.fail("internal", "no", 1.0)
    say(made, "cd", choice=1)
    made.request.fail("deadline", "again", 1.0)
    assert isinstance(made.entries[-1], Failed)
    assert made.entries[-1].reason == "internal"
    assert sum(isinstance(entry, Failed) for entry in made.entries) == 1
    assert made.host.ends == 1


def test_only_long_prompts_tell_how_far_they_are() -> None:
    made = opened()
    made.text.prefilled(0, 5, 5)
    assert not made.entries
    made.text.prefilled(0, 2, 5)
    assert made.entries == [PrefillProgress(made.request.request_id, 0, 2, 5)]


@given(
    acts=st.lists(
        st.tuples(st.sampled_from("tttgef"), st.integers(0, 2), st.integers(1, 4)), max_size=60
    ),
    credit=st.integers(0, 5),
)
def test_whatever_happens_numbers_have_no_gaps_and_credit_is_kept(
    acts: list[tuple[str, int, int]], credit: int
) -> None:
    made = opened(n=3, credit=credit)
    request = made.request
    granted = [credit] * 3
    said = [""] * 3
    ended = [False] * 3
    for act, choice, amount in acts:
        if act == "t" and not ended[choice] and not request.is_over:
            letters = "abcd"[:amount]
            said[choice] += letters
            say(made, letters, choice)
        elif act == "g":
            granted[choice] += amount
            request.grant(choice, amount, 0.0)
        elif act == "e" and not ended[choice]:
            ended[choice] = True
            made.text.row_finished(choice, "length", COST, 0.0)
        elif act == "f" and amount == 4:
            request.fail("internal", "told", 0.0)
    for choice in range(3):
        request.grant(choice, 1000, 1.0)
        if not ended[choice]:
            made.text.row_finished(choice, "length", COST, 1.0)
    entries = made.entries
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    assert sum(isinstance(entry, Finished | Failed) for entry in entries) == 1
    assert isinstance(entries[-1], Finished | Failed)
    assert made.host.ends == 1
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
    made = OpenedText(asked, [Letters()], seeds=[0], credit=3, prompt=OneByOne())
    made.text.scored(0, PromptScores(RowId(1), 0, (0.0, -1.0), ((), ())), 0.0)
    made.text.scored(0, PromptScores(RowId(1), 2, (-1.0, -1.0, -1.0), ((), (), ())), 0.0)
    say(made, "ab")
    first = len(made.entries)
    told = [entry.start for entry in made.entries if isinstance(entry, PromptTokens)]
    assert told == [0, 1, 2]
    assert made.host.calls == [("pause", 0)]
    made.request.grant(0, 100, 1.0)
    made.text.row_finished(0, "length", COST, 2.0)
    kinds = [type(entry) for entry in made.entries[first:]]
    assert kinds[:2] == [PromptTokens, PromptTokens]
    assert text_of(made.entries) == "ab"
    assert [entry.seq for entry in made.entries] == list(range(len(made.entries)))
    assert isinstance(made.entries[-1], Finished)


def test_scores_that_come_after_the_end_are_ignored() -> None:
    made = opened()
    made.request.fail("internal", "lost", 0.0)
    count = len(made.entries)
    made.text.scored(0, PromptScores(RowId(1), 0, (0.0,), ((),)), 0.0)
    assert len(made.entries) == count


class Thinks(Letters):
    """Reads capitals as thinking, `!` as the beginning of a tool call."""

    def push(self, token: SampledToken) -> ChoiceOutput:
        letter = chr(token.token)
        if letter == "!":
            return ChoiceOutput((CallPiece(0, "call_1", "look", "", 1),))
        channel = "reasoning" if letter.isupper() else "text"
        return ChoiceOutput((TextPiece(channel, letter, 1),))


def test_what_the_parser_finds_is_told_once_for_each_thing() -> None:
    asked = prepared("r", [1, 2, 3], n=2, max_tokens=100)
    made = OpenedText(asked, [Thinks(), Thinks()], seeds=range(2))
    say(made, "abc")
    assert made.text.newly_parsed == []
    say(made, "AB")
    say(made, "C", choice=1)
    assert made.text.newly_parsed == ["thinking"]
    made.text.newly_parsed.clear()
    say(made, "a!D", choice=1)
    assert made.text.newly_parsed == ["tool_call"]
    made.text.newly_parsed.clear()
    say(made, "!")
    assert made.text.newly_parsed == []
