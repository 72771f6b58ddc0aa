"""Rows bound by a grammar: what they say matches, and nobody else notices."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer

from bus.wire.messages.requests import Sampling
from runner.engine import GrammarSpec, PrefillChunk
from runner.mlx.sampling.grammar_mask import GrammarMasks
from runner.text import DeadEnd

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
        "mood": {"enum": ["calm", "storm"]},
    },
    "required": ["n", "ok", "mood"],
    "additionalProperties": False,
}
END = 2


def schema_grammar(schema: dict) -> GrammarSpec:
    text = LLMatcher.grammar_from_json_schema(
        json.dumps(schema), overrides={"whitespace_flexible": False}
    )
    return GrammarSpec(key=json.dumps(schema), compiled=text)


def said(folder, ids: list[int]) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode(ids[: ids.index(END)] if END in ids else ids)


def play(player, rows, count):
    names = tuple(row.row for row in rows)
    player.step(
        admit=tuple(rows),
        prefill=tuple((PrefillChunk(row.row, 0, len(row.tokens)),) for row in rows),
    )
    for _ in range(count - 1):
        player.step(decode=names)
    player.finish(*names)


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text"])
def test_bound_rows_say_valid_json_and_end_while_others_go_on_undisturbed(
    drive, new_row, model_folder, name
):
    player = drive(name)
    free = new_row(range(30, 50))
    wanted = player.alone(free, 60)
    grammar = schema_grammar(SCHEMA)
    bound = [
        new_row(
            range(60 + i, 70 + i),
            grammar=grammar,
            seed=i,
            sampling=Sampling(temperature=1.0 if i else 0.0),
        )
        for i in range(4)
    ]
    again = new_row(free.tokens)
    play(player, [*bound, again], 60)
    assert not player.failures
    assert player.ids(again.row) == wanted
    for row in bound:
        ids = player.ids(row.row)
        assert END in ids
        answer = json.loads(said(model_folder(name), ids))
        assert set(answer) == {"n", "ok", "mood"}
        assert 0 <= answer["n"] <= 99


def test_a_bound_row_goes_on_after_a_preemption_where_it_stopped(drive, new_row, model_folder):
    player = drive("qwen3")
    grammar = schema_grammar(SCHEMA)
    sampling = Sampling(temperature=1.0)
    first = new_row(range(60, 70), grammar=grammar, seed=4, sampling=sampling)
    play(player, [first], 45)
    whole = player.ids(first.row)
    whole = whole[: whole.index(END) + 1]
    cut = len(whole) // 2
    resumed = new_row(
        [*first.tokens, *whole[:cut]], made=cut, grammar=grammar, seed=4, sampling=sampling
    )
    play(player, [resumed], len(whole) - cut)
    assert player.ids(resumed.row) == whole[cut:]


def test_a_grammar_that_does_not_compile_fails_its_row_alone(drive, new_row):
    player = drive("qwen3")
    good, bad = new_row([5, 6]), new_row([5, 6], grammar=GrammarSpec("x", "start: nonsense("))
    play(player, [good, bad], 4)
    assert player.failures[bad.row].reason == "bad_request"
    assert set(player.failures) == {bad.row}
    assert len(player.ids(good.row)) == 4
    assert not player.ids(bad.row)


def test_a_row_whose_output_left_the_grammar_before_it_resumed_fails_alone(drive, new_row):
    player = drive("qwen3")
    good = new_row([5, 6])
    bad = new_row([5, 6, 40, 41], made=2, grammar=schema_grammar(SCHEMA))
    play(player, [good, bad], 3)
    assert set(player.failures) == {bad.row}
    assert len(player.ids(good.row)) == 3


def test_a_dead_end_in_the_middle_fails_the_row_and_spares_the_rest(drive, new_row):
    player = drive("qwen3")
    # The end token cannot be said by a grammar over text: ban every way on with a bias
    # instead, which makes the row say something the grammar refuses at its next step.
    word = GrammarSpec("ab", LLMatcher.grammar_from_regex("ab"))
    good, row = new_row([5, 6]), new_row([7, 8], grammar=word)
    names = (good.row, row.row)
    player.step(
        admit=(good, row), prefill=((PrefillChunk(good.row, 0, 2), PrefillChunk(row.row, 0, 2)),)
    )
    engine_row = player.engine._rows.get(row.row)
    engine_row.matcher.consume = refuse  # type: ignore[method-assign]
    for _ in range(4):
        player.step(decode=names)
    player.finish(*names)
    assert "refused" in player.failures[row.row].message
    assert len(player.ids(good.row)) == 5
    assert len(player.ids(row.row)) == 1


def refuse(token: int) -> None:
    raise DeadEnd(f"token {token} refused")


def test_equal_keys_are_compiled_once(model_folder):
    grammars = GrammarMasks(model_folder("qwen3"), vocabulary=260, eos_token_ids=frozenset({END}))
    grammar = schema_grammar(SCHEMA)
    one, other = grammars.start(grammar, ()), grammars.start(grammar, ())
    assert grammars._matchers._compiled.cache_info().currsize == 1
    one.consume(int(one.allowed().nonzero()[0][0]))
    assert (other.allowed() == grammars.start(grammar, ()).allowed()).all()


def test_only_the_end_may_follow_a_finished_text(model_folder):
    grammars = GrammarMasks(model_folder("qwen3"), vocabulary=260, eos_token_ids=frozenset({END}))
    tokenizer = Tokenizer.from_file(str(model_folder("qwen3") / "tokenizer.json"))
    word = GrammarSpec("ab", LLMatcher.grammar_from_regex("ab"))
    row = grammars.start(word, ())
    for token in tokenizer.encode("ab").ids:
        assert row.allowed()[token]
        row.consume(token)
    assert row.allowed().nonzero()[0].tolist() == [END]
    row.consume(END)
    assert row.over
    row.consume(77)
    assert row.allowed().all()


def test_a_draft_is_compared_with_a_grammar_without_advancing_it(model_folder):
    grammars = GrammarMasks(model_folder("qwen3"), vocabulary=260, eos_token_ids=frozenset({END}))
    word = GrammarSpec("abc", LLMatcher.grammar_from_regex("abc[xy]"))
    matcher = grammars.start(word, ())
    whole = matcher.implied()
    assert len(whole) >= 3
    assert matcher.permitted(whole) == len(whole)
    assert matcher.permitted([*whole[:2], whole[0], whole[2]]) == 2
    assert matcher.permitted([*whole, END]) == len(whole)
    masks = matcher.allowed_along(whole)
    assert len(masks) == len(whole) + 1 and masks[-1].sum() >= 2
    assert len(matcher.allowed_along([whole[0], whole[0]])) == 2
    assert (matcher.allowed() == masks[0]).all() and matcher.implied() == whole
    for token, mask in zip(whole, masks, strict=False):
        assert (matcher.allowed() == mask).all()
        matcher.consume(token)
    assert matcher.implied() == ()
