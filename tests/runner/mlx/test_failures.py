"""Nothing that a row contains may hurt another row, or the engine."""

from __future__ import annotations

import pytest

from bus.wire.messages.requests import Sampling
from runner.engine import EntryId, PrefillChunk, PrefixHit

BAD = {
    "an id beyond the vocabulary": ({"tokens": [5, 260]}, "bad_request"),
    "a negative id": ({"tokens": [-1, 4]}, "bad_request"),
    "no tokens": ({"tokens": []}, "bad_request"),
    "more tokens than the context": ({"tokens": [4] * 2049}, "bad_request"),
    "a bias on an unknown id": (
        {"sampling": Sampling(temperature=0, logit_bias={260: 1.0})},
        "bad_request",
    ),
    "a bias that is no number": (
        {"sampling": Sampling(temperature=0, logit_bias={4: float("nan")})},
        "bad_request",
    ),
    "negative logprobs": ({"logprobs": -1}, "bad_request"),
    "more made than there is": ({"made": 3}, "internal"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_fails_alone(drive, new_row, what):
    parts, reason = BAD[what]
    player = drive("qwen3")
    good = new_row([5, 6, 7])
    bad = new_row(**{"tokens": [5, 6], **parts})
    chunks = [PrefillChunk(good.row, 0, 3), PrefillChunk(bad.row, 0, max(len(bad.tokens), 1))]
    player.step(admit=(good, bad), prefill=(tuple(chunks),))
    for _ in range(3):
        player.step(decode=(good.row, bad.row))
    player.finish(good.row, bad.row)
    assert {row: failure.reason for row, failure in player.failures.items()} == {bad.row: reason}
    assert len(player.ids(good.row)) == 4
    assert not player.ids(bad.row)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=5.0, seed=2**64 - 1),
        Sampling(temperature=1e-30),
        Sampling(top_k=10**9),
        Sampling(top_p=1e-300),
        Sampling(min_p=1.0),
        Sampling(repetition_penalty=1e-30),
        Sampling(logit_bias=dict.fromkeys(range(260), -100.0)),
        Sampling(logit_bias={4: 1e38, 5: -1e38}),
    ],
)
def test_extreme_settings_still_give_tokens(drive, new_row, sampling):
    player = drive("qwen3")
    good, odd = new_row([5, 6, 7]), new_row([5, 6, 7], sampling=sampling, seed=2**64 - 1)
    wanted = player.alone(new_row([5, 6, 7]), 6)
    player.step(
        admit=(good, odd), prefill=((PrefillChunk(good.row, 0, 3), PrefillChunk(odd.row, 0, 3)),)
    )
    for _ in range(5):
        player.step(decode=(good.row, odd.row))
    player.finish(good.row, odd.row)
    assert not player.failures
    assert player.ids(good.row) == wanted
    assert all(0 <= token < 260 for token in player.ids(odd.row))
    assert len(player.ids(odd.row)) == 6


def test_as_many_likeliest_as_there_are_tokens_and_more(drive, new_row):
    player = drive("qwen3")
    row = new_row([5, 6], logprobs=10**6)
    assert len(player.alone(row, 2)) == 2
    assert len(player.tokens[row.row][0].top) == 260


def test_plans_that_make_no_sense_fail_the_rows_they_name(drive, new_row):
    player = drive("qwen3")
    good, unready, gap, late = (new_row([5, 6, 7, 8]) for _ in range(4))
    player.step(
        admit=(good, unready, gap, late),
        hits=(PrefixHit(unready.row, EntryId(12345), 0),),
        prefill=(
            (PrefillChunk(good.row, 0, 4), PrefillChunk(gap.row, 0, 2)),
            (PrefillChunk(late.row, 0, 5),),
        ),
        decode=(unready.row,),
    )
    player.step(prefill=((PrefillChunk(gap.row, 3, 4),),), decode=(good.row,))
    player.step(decode=(good.row, 999_999))
    player.finish(good.row, unready.row, gap.row, late.row)
    assert set(player.failures) == {unready.row, gap.row, late.row, 999_999}
    assert {failure.reason for failure in player.failures.values()} == {"internal"}
    assert len(player.ids(good.row)) == 3


def test_a_failed_row_may_be_named_until_it_is_released(drive, new_row):
    player = drive("qwen3")
    bad = new_row([999])
    player.step(admit=(bad,), prefill=((PrefillChunk(bad.row, 0, 1),),))
    player.step(decode=(bad.row,))
    player.step(decode=(bad.row,))
    player.finish(bad.row)
    assert sum(len(result.failures) for result in player.results) == 1


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text"])
def test_a_row_that_cannot_be_drawn_fails_alone(drive, new_row, name):
    player = drive(name)
    settings = {"sampling": Sampling(temperature=0.9, frequency_penalty=0.5), "seed": 3}
    good, other, odd = new_row([5, 6]), new_row([7, 8], **settings), new_row([7, 8], **settings)
    wanted = [player.alone(new_row([5, 6]), 6), player.alone(new_row([7, 8], **settings), 6)]
    names = (good.row, other.row, odd.row)
    player.step(
        admit=(good, other, odd),
        prefill=(tuple(PrefillChunk(row, 0, 2) for row in names),),
    )
    player.step(decode=names)
    player.engine._rows.get(odd.row).draw.seed = "no number"
    for _ in range(4):
        player.step(decode=names)
    player.finish(*names)
    assert set(player.failures) == {odd.row}
    assert "sampling" in player.failures[odd.row].message
    assert [player.ids(good.row), player.ids(other.row)] == wanted
    assert player.ids(odd.row) == wanted[1][:2]


def test_a_row_that_cannot_be_drawn_first_fails_alone(drive, new_row):
    player = drive("qwen3")
    good, odd = new_row([5, 6]), new_row([7, 8], sampling=Sampling(temperature=0.9))
    wanted = player.alone(new_row([5, 6]), 3)
    player.step(admit=(good, odd))
    player.engine._rows.get(odd.row).draw.seed = "no number"
    player.step(prefill=(tuple(PrefillChunk(row.row, 0, 2) for row in (good, odd)),))
    for _ in range(2):
        player.step(decode=(good.row, odd.row))
    player.finish(good.row, odd.row)
    assert set(player.failures) == {odd.row}
    assert player.ids(good.row) == wanted
