# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# (mlx leaves arguments of `save_safetensors` untyped; the drafter's context is compared inside)
"""A block drafter guesses several tokens at once; the text stays as it is, whatever the guesses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from bus.models.block_drafters import BlockShape
from bus.wire.ids import TokenId
from runner.engine import Proposal
from runner.mlx.engine import MlxEngine, load_engine
from runner.mlx.mtp import BlockGuesses, open_block
from runner.mlx.mtp.block_network import BlockNetwork
from tests.harness.blas_of_tests import of_tests
from tests.harness.block_drafters import random_tensors, shape_of, write_block
from tests.harness.families import MODELS, write_model
from tests.runner.mlx.test_draft_model import LIMIT, TINY, WAYS, played
from tests.tiny_model.blocks import first_turns

ROOT = TINY.parents[1]
PROMPT = tuple(TokenId(10 + 7 * at % 240) for at in range(40))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("small") / "llama", MODELS["llama"])


@pytest.fixture(scope="module")
def drafted(small: Path) -> Iterator[MlxEngine]:
    block = write_block(small.parent / "block", shape_of(small))
    engine = load_engine(small, memory_limit_bytes=LIMIT, block=block)
    yield engine
    engine.close()


def guesses_of(engine: MlxEngine) -> BlockGuesses:
    proposer = engine._forward.proposer
    assert isinstance(proposer, BlockGuesses)
    return proposer


@pytest.mark.parametrize("reads_hidden", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_network_has_the_tensors_of_its_shape(reads_hidden: bool, layers: int) -> None:
    shape = shape_of(TINY, reads_hidden=reads_hidden, num_hidden_layers=layers)
    named: Any = tree_flatten(BlockNetwork(shape).parameters())
    assert {name: array.shape for name, array in named} == shape.tensors()


def test_a_slot_sees_the_whole_block_and_no_slot_depends_on_its_row_number() -> None:
    shape = shape_of(TINY)
    network = BlockNetwork(shape)
    network.load_weights(list(random_tensors(shape).items()))
    mx.random.seed(3)
    embedded, hidden, first = (mx.random.normal((2, count, 192)) for count in (8, 8, 1))
    context = network.context(embedded, hidden)
    masked, shown = network(context, None, 4), network(context, first, 4)
    assert masked.shape == (2, 4, 192)
    assert float(mx.abs(masked[:, 3] - shown[:, 3]).max()) > 1e-3, "it sees the settled token"
    alone = network(network.context(embedded[1:], hidden[1:]), first[1:], 4)
    assert np.allclose(np.array(alone[0]), np.array(shown[1]), atol=1e-4)


@pytest.mark.parametrize("way", ["seeded", "penalties"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_text_is_the_same_with_a_block_drafter(
    drafted: MlxEngine, way: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = guesses_of(drafted)._block
    changed = block.shape.model_copy(update={"steps": steps})
    monkeypatch.setattr(guesses_of(drafted), "_block", _replaced(block, changed))
    plain, finish, none = played(drafted, "off", WAYS[way], tokens=PROMPT)
    text, ended, counts = played(drafted, "block", WAYS[way], tokens=PROMPT)
    assert (text, ended) == (plain, finish) and none.drafts == 0
    passes, peak_bytes = counts.proposals["block"]
    assert set(counts.drafters) == {"block"}
    assert counts.drafts and counts.drafted <= 4 * counts.drafts
    assert counts.drafts * (steps == 2) < passes <= counts.drafts * steps
    assert 4 * 260 * 4 <= peak_bytes < 1 << 24, "at least the logits of a block"


def _replaced(block: Any, shape: BlockShape) -> Any:
    return type(block)(block.network, shape, block.tap, block.weights_bytes, block.context_tokens)


def test_a_drafter_without_hidden_states_needs_none(small: Path, tmp_path: Path) -> None:
    block = write_block(tmp_path / "block", shape_of(small, reads_hidden=False))
    engine = load_engine(small, memory_limit_bytes=LIMIT, block=block)
    assert not engine._head.taps
    plain, finish, _ = played(engine, "off", WAYS["seeded"], tokens=PROMPT)
    text, ended, counts = played(engine, "block", WAYS["seeded"], tokens=PROMPT)
    assert (text, ended) == (plain, finish) and counts.drafts
    engine.close()


def test_the_drafter_sees_what_one_forward_of_the_whole_row_would_show_it(
    drafted: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In prompts, plain steps and steps with right and wrong drafts."""
    plain, _, _ = played(drafted, "off", WAYS["greedy"], tokens=PROMPT, max_tokens=90)
    seen: list[tuple[int, tuple[TokenId, ...], mx.array]] = []

    def guesses(
        self: BlockGuesses, tokens: tuple[TokenId, ...], hidden: mx.array, draw: Any, most: int
    ) -> Proposal:
        made = draw.position - len(PROMPT)
        seen.append((made, tokens, hidden))
        right = tuple(TokenId(token) for token in plain[made : made + most])
        wrong = (right[0], TokenId(1), TokenId(1))[:most] if len(seen) % 3 else right
        return Proposal((TokenId(1),) * most if len(seen) < 20 else wrong, 1, 1)

    monkeypatch.setattr(BlockGuesses, "_guesses", guesses)
    text, _, counts = played(drafted, "block", WAYS["greedy"], tokens=PROMPT, max_tokens=90)
    assert text == plain and 0 < counts.accepted < counts.drafted
    row = (*PROMPT, *map(TokenId, plain))
    drafted._forward._model(mx.array([list(row)]), cache=drafted._forward.new_caches(len(row)))
    (whole,) = drafted._head.take_hidden()
    for made, tokens, hidden in seen:
        end = len(PROMPT) + made
        assert tuple(tokens) == row[end - len(tokens) : end] and len(tokens) == 8
        wanted = whole[:, end - 1 - len(tokens) : end - 1]
        assert np.allclose(np.array(hidden), np.array(wanted), atol=2e-3), made


def test_a_drafter_that_fails_costs_its_guesses_alone(
    drafted: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, finish, _ = played(drafted, "off", WAYS["greedy"], tokens=PROMPT)
    proposer, facts = guesses_of(drafted), drafted.facts

    def broken(*_: Any, **_how: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(type(proposer._block.network), "__call__", broken)
    text, ended, counts = played(drafted, "block", WAYS["greedy"], tokens=PROMPT)
    assert (text, ended) == (plain, finish) and counts.drafts == 0
    assert drafted.facts.no_block == "the block drafter failed: ZeroDivisionError: "
    proposer.failure, drafted.facts = "", facts


def test_a_drafter_is_billed(drafted: MlxEngine, small: Path) -> None:
    bare = load_engine(small, memory_limit_bytes=LIMIT)
    shape = guesses_of(drafted)._block.shape
    values = sum(int(np.prod(size)) for size in shape.tensors().values())
    extra = drafted.facts.weights_bytes - bare.facts.weights_bytes
    assert extra == 4 * values + 2 * 4 * shape.window * shape.hidden_size
    assert drafted.facts.draft_depth == 4 and bare.facts.draft_depth == 0
    assert "asks for no block drafter" in bare.facts.no_block


Change = Callable[[dict[str, mx.array], dict[str, Any]], object]
UNUSABLE: dict[str, tuple[Change, str]] = {
    "missing": (
        lambda tensors, _: tensors.pop("layers.1.mlp.up_proj.weight"),
        "its tensor layers.1.mlp.up_proj.weight is missing",
    ),
    "of another shape": (
        lambda tensors, _: tensors.update({"token_proj.weight": mx.zeros((64, 65))}),
        "its tensor token_proj.weight has the shape [64, 65]; [64, 64] is required",
    ),
    "with a stranger": (
        lambda tensors, _: tensors.update({"layers.2.norm.weight": mx.zeros((4,))}),
        "the tensor layers.2.norm.weight has no place in it",
    ),
    "of another vocabulary": (
        lambda _, config: config.update({"vocab_size": 99}),
        "its vocab_size is 99; that of the model is 260",
    ),
    "of another kind": (
        lambda _, config: config.pop("drafter"),
        'block/config.json has no `"drafter": "block"`',
    ),
    "with a key out of range": (
        lambda _, config: config.update({"block_length": 33}),
        "block/config.json: block_length",
    ),
    "with an unknown key": (
        lambda _, config: config.update({"mask_token_id": 3}),
        "block/config.json: mask_token_id",
    ),
}


@pytest.mark.parametrize("how", UNUSABLE)
def test_an_unusable_drafter_is_left_out_and_named(
    drafted: MlxEngine, small: Path, tmp_path: Path, how: str
) -> None:
    shape = shape_of(small)
    tensors, (change, reason) = random_tensors(shape), UNUSABLE[how]
    config = shape.model_dump(mode="json")
    change(tensors, config)
    folder = write_block(tmp_path / "block", shape, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    why = open_block(folder, drafted.facts, small, drafted._head, "float32")
    assert isinstance(why, str) and why.startswith("the block drafter cannot be used: ")
    assert reason in why


def test_a_drafter_whose_files_are_cut_or_of_another_tokenizer_is_left_out(
    drafted: MlxEngine, small: Path, tmp_path: Path
) -> None:
    def why() -> str:
        loaded = open_block(folder, drafted.facts, small, drafted._head, "float32")
        return loaded if isinstance(loaded, str) else ""

    folder = write_block(tmp_path / "block", shape_of(small))
    shutil.copy(TINY / "tokenizer.json", folder)
    assert "another vocabulary" in why()
    (folder / "tokenizer.json").unlink()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "block/model.safetensors is truncated" in why()
    (folder / "config.json").unlink()
    assert "FileNotFoundError" in why()


@pytest.mark.proof
@pytest.mark.timeout(2400)
def test_a_drafter_that_was_trained_here_guesses_the_models_own_text(tmp_path: Path) -> None:
    """It learns for 240 steps, with the library for products that runners use. Then the model
    answers with and without it."""
    block = tmp_path / "block"
    command = (sys.executable, "-m", "tests.tiny_model.blocks", "--out", str(block))
    learnt = subprocess.run(
        (*command, "--seconds", "900", "--most-steps", "240"),
        env={**os.environ, **of_tests()},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=2000.0,
        check=True,
    )
    sys.stdout.write(learnt.stdout)
    first = float(learnt.stdout.rpartition("by slot: ")[2].partition(",")[0])
    engine = load_engine(TINY, memory_limit_bytes=LIMIT, block=block)
    file = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    drafted = accepted = 0
    prompts = first_turns(lambda text: file.encode(text, add_special_tokens=False).ids)
    for prompt in prompts[:8]:
        for way, sampling in WAYS.items():
            row: dict[str, Any] = {"tokens": tuple(map(TokenId, prompt)), "max_tokens": 24}
            plain, _, _ = played(engine, "off", sampling, **row)
            text, _, counts = played(engine, "block", sampling, **row)
            assert text == plain, (prompt, way)
            drafted, accepted = drafted + counts.drafted, accepted + counts.accepted
    sys.stdout.write(f"accepted {accepted} of {drafted}\n")
    assert first > 0.3 and accepted > 0.15 * drafted, "it has learned"
    engine.close()
