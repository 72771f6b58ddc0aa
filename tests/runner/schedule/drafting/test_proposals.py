"""When the draft model is asked for guesses, and for how many."""

from __future__ import annotations

from runner.schedule.drafting import ModelTurns
from runner.schedule.drafting.length import LENGTHS
from runner.schedule.drafting.proposals import FIRST_PAUSE, LONGEST_PAUSE

COSTS = [1.0 + 0.05 * length for length in LENGTHS]


def length_of(turns: ModelTurns, room: int = 32, left: int = 1000) -> int:
    draft, gain = turns.choose(room, left)
    assert (draft is None) == (gain == 1.0)
    return 0 if draft is None else draft.length


def test_more_right_guesses_make_longer_drafts_and_a_dear_draft_model_none() -> None:
    turns = ModelTurns(COSTS, 0.1, behind=0)
    before = length_of(turns)
    for _ in range(9):
        turns.learn(8, 8)
    assert length_of(turns) > before > 0 and length_of(turns, room=3) == 3
    assert length_of(ModelTurns(COSTS, 0.8, behind=0)) == 0


def test_a_head_guesses_no_more_than_its_depth() -> None:
    assert [length_of(ModelTurns(COSTS, 0.1, 0, most=depth)) for depth in (1, 2, 5)] == [1, 2, 4]
    assert length_of(ModelTurns(COSTS, 0.8, 0, most=1)) == 0


def test_a_long_prompt_is_only_computed_if_enough_answer_may_follow() -> None:
    assert length_of(ModelTurns(COSTS, 0.2, behind=2000), left=300) > 0
    assert length_of(ModelTurns(COSTS, 0.2, behind=2000), left=40) == 0
    assert length_of(ModelTurns(COSTS, 0.2, behind=9000)) == 0


def test_wrong_guesses_end_in_pauses_that_become_longer() -> None:
    turns, pauses = ModelTurns(COSTS, 0.1, behind=0), list[int]()
    for _ in range(7):
        while length_of(turns):
            turns.learn(4, 0)
        pause = 0
        while not length_of(turns):
            turns.take()
            pause += 1
        pauses.append(pause)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_draft_model_that_guesses_nothing_is_not_asked_for_some_tokens() -> None:
    turns = ModelTurns(COSTS, 0.1, behind=50)
    assert length_of(turns) > 0
    turns.learn(0, 0)
    assert length_of(turns) == 0 and turns.behind == 50
