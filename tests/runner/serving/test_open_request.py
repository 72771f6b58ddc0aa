"""One open request, whatever its responder and its server do: numbers, credit, and one end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import GenerationRequest, PromptQuestion, TextPrompt, Usage
from bus.wire.messages.tokens import (
    Accepted,
    ChoiceEnd,
    Entry,
    Failed,
    Finished,
    Refused,
    TokenDelta,
    Vectors,
)
from runner.serving import OpenRequest, VectorsPiece
from runner.text import TextPiece
from tests.harness.open_requests import StandInHost, open_request

RID = RequestId("r")


class Opened:
    """A request of `n` choices that is not accepted yet."""

    def __init__(self, n: int = 1, credit: int = 100, question: PromptQuestion | None = None):
        asked = GenerationRequest(
            request_id=RID,
            model=ModelId("m"),
            prompt=TextPrompt(text="hi"),
            n=n,
            question=question,
        )
        self.host = StandInHost(lambda _request: Usage(completion_tokens=7))
        self.entries: list[Entry] = []
        self.request: OpenRequest = open_request(asked, self.host, self.entries, credit=credit)


def text(words: str) -> list[TextPiece]:
    return [TextPiece("text", word, 1) for word in words.split()]


def test_a_responder_that_only_finishes_ends_its_choices_with_stop() -> None:
    made = Opened(n=2)
    made.request.accept(0.0, position=3, prompt_tokens=5)
    made.request.put(1, text("a b"), 0.0)
    made.request.finish(1.0)
    assert made.host.sent == [Accepted(RID, 3, 5)]
    assert made.entries == [
        TokenDelta(RID, 0, 1, "text", "a", 1),
        TokenDelta(RID, 1, 1, "text", "b", 1),
        ChoiceEnd(RID, 2, 0, "stop", None),
        ChoiceEnd(RID, 3, 1, "stop", None),
        Finished(RID, 4, Usage(completion_tokens=7)),
    ]


def test_what_comes_after_the_end_changes_nothing() -> None:
    for end in ("finish", "fail", "cancel", "drop"):
        made = Opened()
        made.request.accept(0.0)
        match end:
            case "finish":
                made.request.finish(0.0)
            case "fail":
                made.request.fail("internal", "no", 0.0, {"field": "input"})
            case "cancel":
                made.request.cancel("client", 0.0)
            case _:
                made.request.drop(0.0)
        before = (list(made.entries), list(made.host.sent))
        for _ in range(2):
            made.request.accept(1.0)
            made.request.refuse(Refusal(reason="bad_request", message="no"), 1.0)
            made.request.put(0, text("late"), 1.0)
            made.request.read_prompt(1, 2)
            made.request.end_choice(0, "length", 1.0)
            made.request.finish(1.0)
            made.request.fail("internal", "again", 1.0)
            made.request.cancel("deadline", 1.0)
            made.request.grant(0, 5, 1.0)
            made.request.drop(1.0)
        assert (made.entries, made.host.sent) == before, end
        assert made.host.ends == 1 and made.request.is_over


def test_one_that_fails_before_it_is_accepted_is_refused_so_that_another_runner_gets_it() -> None:
    made = Opened()
    made.request.fail("runner_lost", "the engine is gone", 0.0)
    made.request.accept(0.0)
    refusal = Refusal(reason="not_ready", message="the engine is gone")
    assert made.host.sent == [Refused(RID, refusal)]
    assert (made.entries, made.host.ends) == ([], 1)


def test_a_question_about_a_prompt_has_one_choice_whatever_it_asks_for() -> None:
    made = Opened(n=3, question=PromptQuestion(wants="count"))
    made.request.accept(0.0)
    made.request.finish(0.0)
    assert [type(entry) for entry in made.entries] == [ChoiceEnd, Finished]


def test_vectors_take_credit_as_text_does() -> None:
    made = Opened(credit=1)
    made.request.accept(0.0)
    made.request.put(0, [VectorsPiece(0, (b"a",)), VectorsPiece(1, (b"b",), (1,))], 0.0)
    assert made.entries == [Vectors(RID, 0, 0, 0, (b"a",), ())]
    assert made.host.calls == [("pause", 0)]
    made.request.grant(0, 1, 0.0)
    assert made.entries[1:] == [Vectors(RID, 1, 0, 1, (b"b",), (1,))]


def test_a_choice_that_ends_while_it_has_no_credit_is_not_resumed_for_nothing() -> None:
    made = Opened(credit=1)
    made.request.accept(0.0)
    made.request.end_choice(0, "length", 1.0, stop="x", pieces=text("a b"))
    assert made.host.calls == [], "all pieces are known"
    assert made.request.stalled_s(3.0) == 2.0 and made.request.is_paused
    made.request.grant(0, 9, 4.0)
    assert made.entries[-1] == ChoiceEnd(RID, 2, 0, "length", "x")
    assert made.host.calls == [] and not made.request.is_over
    made.request.finish(5.0)
    assert made.request.is_over


def test_a_grant_that_makes_no_sense_is_ignored() -> None:
    made = Opened(credit=0)
    made.request.accept(0.0)
    made.request.put(0, text("a"), 0.0)
    for choice, grant in ((1, 5), (-1, 5), (0, 0), (0, -3)):
        made.request.grant(choice, grant, 0.0)
    assert made.entries == []


class Chances(Opened):
    """A request of three choices; `granted` is their credit and `said` what was put."""

    def __init__(self, credit: int) -> None:
        super().__init__(3, credit)
        self.granted, self.said = [credit] * 3, [""] * 3

    def act(self, act: str, choice: int, amount: int) -> None:
        request = self.request
        match act:
            case "put" if request.accepted:
                if request.choices[choice].finish is None and not request.is_over:
                    self.said[choice] += "abcd"[:amount]
                request.put(choice, text("a b c d"[: 2 * amount]), 0.0)
            case "grant":
                self.granted[choice] += amount
                request.grant(choice, amount, 0.0)
            case "end" if request.accepted:
                request.end_choice(choice, "length", 0.0)
            case "cancel":
                request.cancel("client" if amount > 1 else "deadline", 0.0)
            case "finish" if amount == 1 and request.accepted:
                request.finish(0.0)
            case "fail" if amount == 1:
                request.fail("internal", "no", 0.0)
            case "drop" if amount == 1:
                request.drop(0.0)
            case _:
                request.accept(0.0)

    def sent(self, choice: int) -> list[str]:
        mine = (entry for entry in self.entries if isinstance(entry, TokenDelta))
        return [entry.text for entry in mine if entry.choice == choice]

    @property
    def ends(self) -> list[Entry]:
        return [entry for entry in self.entries if isinstance(entry, Finished | Failed)]


ACTS = ("put", "put", "put", "grant", "grant", "end", "cancel", "finish", "fail", "drop", "accept")


@given(
    acts=st.lists(
        st.tuples(st.sampled_from(ACTS), st.integers(0, 2), st.integers(1, 4)), max_size=40
    ),
    credit=st.integers(0, 4),
)
def test_whatever_happens_there_is_one_end_and_no_piece_without_credit(
    acts: list[tuple[str, int, int]], credit: int
) -> None:
    made = Chances(credit)
    for act, choice, amount in acts:
        made.act(act, choice, amount)
        assert all(len(made.sent(each)) <= made.granted[each] for each in range(3))
    is_silent = made.request.is_over and not made.ends
    made.request.accept(1.0)
    for choice in range(3):
        made.request.grant(choice, 1000, 1.0)
    made.request.finish(1.0)
    assert made.host.ends == 1 and len(made.host.sent) <= 1
    assert [entry.seq for entry in made.entries] == list(range(len(made.entries)))
    assert len(made.ends) == (0 if is_silent else 1)
    assert is_silent or made.entries[-1] is made.ends[0]
    for choice in range(3):
        sent = "".join(made.sent(choice))
        assert made.said[choice].startswith(sent)
        closed = [e for e in made.entries if isinstance(e, ChoiceEnd) and e.choice == choice]
        if made.ends and isinstance(made.ends[0], Finished):
            (end,) = closed
            assert end.finish_reason == "cancelled" or sent == made.said[choice]
