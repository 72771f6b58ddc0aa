# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# (mlx leaves arguments of `save_safetensors` untyped; the head's outputs are compared inside)
"""An MTP head guesses tokens from the hidden states of the model's own forwards; the text stays as
it is, whatever the guesses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from bus.wire.ids import TokenId
from runner.mlx.engine import MlxEngine, load_engine
from runner.mlx.forward import ProposerSource
from runner.mlx.kv import RowKV
from runner.mlx.mtp import MtpGuesses, open_head
from runner.mlx.mtp.guesses import _Followed
from tests.harness.families import MODELS, QUANTISED, write_model
from tests.harness.mtp_heads import as_deepseek, head_of, write_head
from tests.runner.mlx.test_draft_model import LIMIT, TINY, WAYS, played

PROMPT = tuple(TokenId(10 + 7 * at % 240) for at in range(40))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, MlxEngine]]:
    folder = write_model(tmp_path_factory.mktemp("small") / "llama", MODELS["llama"])
    engine = load_engine(folder, memory_limit_bytes=LIMIT)
    yield folder, engine
    engine.close()


@pytest.fixture(scope="module")
def headed(small: tuple[Path, MlxEngine]) -> Iterator[MlxEngine]:
    folder = write_head(small[0].parent / "mtp", head_of(small[0]))
    engine = load_engine(small[0], memory_limit_bytes=LIMIT, mtp=(folder, 2))
    yield engine
    engine.close()


def guesses_of(engine: MlxEngine) -> MtpGuesses:
    proposer = engine._forward.proposer
    assert isinstance(proposer, MtpGuesses)
    return proposer


def recomputed(engine: MlxEngine, tokens: tuple[TokenId, ...]) -> mx.array:
    """The head's output at the last but one of these tokens, from a forward of all of them, with
    the embedding of the next token first."""
    head = guesses_of(engine)._head
    block = head.block
    caches = engine._forward.new_caches(len(tokens))
    engine._forward._model(mx.array([list(tokens)]), cache=caches)
    (hidden,) = head.tap.take_hidden()
    embedded = head.tap.embedded(mx.array([tokens[1:]]))
    parts = [(embedded, block.embedding_norm.weight), (hidden[:, :-1], block.hidden_norm.weight)]
    normed = [mx.fast.rms_norm(part, weight, 1e-6) for part, weight in parts]
    both = mx.concatenate(normed, axis=-1) @ block.projection.weight.T
    return block.layer(both, "causal", RowKV())[:, -1]


def test_the_head_sees_what_one_forward_of_the_whole_row_would_show_it(
    headed: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In prompts, plain steps and steps with right and wrong drafts."""
    compare_with_one_forward(headed, monkeypatch)


def compare_with_one_forward(engine: MlxEngine, patch: pytest.MonkeyPatch) -> None:
    """Play a row with right and wrong guesses, and compute the head's outputs again."""
    patch.setattr("runner.mlx.mtp.guesses.MOST_WAITING", 8)
    row: dict[str, Any] = {"tokens": PROMPT, "max_tokens": 120, "beside": PROMPT[::-1] + PROMPT[:3]}
    plain, _, _ = played(engine, "off", WAYS["greedy"], **row)
    computed = MtpGuesses._guesses
    seen: list[tuple[int, mx.array]] = []

    def guesses(
        self: MtpGuesses, followed: _Followed, out: mx.array, draw: Any, most: int
    ) -> tuple[TokenId, ...]:
        computed(self, followed, out, draw, most)
        made = draw.position - len(PROMPT)
        seen.append((made, out[:, -1]))
        right = tuple(TokenId(token) for token in plain[made : made + most])
        if len(seen) < 20:
            return (TokenId(1),) * most
        return (right[0], TokenId(1))[:most] if len(seen) % 3 else right

    patch.setattr(MtpGuesses, "_guesses", guesses)
    text, _, counts = played(engine, "mtp", WAYS["greedy"], **row)
    assert text == plain and 0 < counts.accepted < counts.drafted
    places = [made for made, _ in seen]
    assert max(after - before for before, after in pairwise(places)) > 3, "plain steps between"
    for made, out in seen[::4]:
        wanted = recomputed(engine, (*PROMPT, *map(TokenId, plain[:made])))
        assert np.allclose(np.array(out), np.array(wanted), atol=2e-3), made


def test_a_text_is_the_same_with_an_mtp_head(headed: MlxEngine) -> None:
    plain, finish, none = played(headed, "off", WAYS["penalties"], tokens=PROMPT)
    text, ended, counts = played(headed, "mtp", WAYS["penalties"], tokens=PROMPT)
    assert (text, ended) == (plain, finish) and none.drafts == 0
    assert counts.drafts and counts.drafted <= 2 * counts.drafts
    passes, peak_bytes = counts.proposals["mtp"]
    assert passes >= counts.drafted and peak_bytes > 4 * 260


def test_a_head_that_fails_costs_its_guesses_alone(
    headed: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, finish, _ = played(headed, "off", WAYS["greedy"], tokens=PROMPT)
    guesses = guesses_of(headed)

    def broken(*_: Any, **_how: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(type(guesses._head), "run", broken)
    text, ended, counts = played(headed, "mtp", WAYS["greedy"], tokens=PROMPT)
    assert (text, ended) == (plain, finish) and counts.drafts == 0
    assert "the MTP head failed: ZeroDivisionError" in headed.facts.no_mtp
    monkeypatch.setattr(MtpGuesses, "_follow", None)  # nor does it keep hidden states
    assert played(headed, "mtp", WAYS["greedy"], tokens=PROMPT)[0] == plain
    guesses.failure = ""
    headed.facts = replace(headed.facts, no_mtp="")


def test_a_head_begins_anew_after_positions_that_it_missed(
    headed: MlxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    guesses = guesses_of(headed)
    taken: list[int] = []
    add = guesses.add

    def forgetful(hidden: mx.array) -> list[mx.array]:
        taken.append(hidden.shape[1])
        return [] if len(taken) == 3 else add(hidden)

    starts: list[int] = []
    follow = MtpGuesses._follow

    def followed(self: MtpGuesses, row: Any, start: int) -> _Followed:
        starts.append(start)
        return follow(self, row, start)

    monkeypatch.setattr(guesses, "add", forgetful)
    monkeypatch.setattr(MtpGuesses, "_follow", followed)
    text, _, _ = played(headed, "mtp", WAYS["greedy"], tokens=PROMPT, max_tokens=60)
    assert text == played(headed, "off", WAYS["greedy"], tokens=PROMPT, max_tokens=60)[0]
    assert len(starts) == 2 and starts[0] == 0 < len(PROMPT) < starts[1]


def test_a_head_is_billed(headed: MlxEngine, small: tuple[Path, MlxEngine]) -> None:
    model, bare = small
    tensors: Any = mx.load(str(model / "model.safetensors"))
    layer = sum(array.nbytes for name, array in tensors.items() if ".layers.3." in name)
    extra = headed.facts.weights_bytes - bare.facts.weights_bytes
    assert extra == layer + 4 * (2 * 64 * 64 + 3 * 64)
    assert headed.facts.draft_kv_bytes_per_token == bare.facts.kv_bytes_per_token // 4
    assert headed.facts.draft_depth == 2 and not bare.facts.draft_depth


Change = Callable[[dict[str, mx.array]], object]
UNUSABLE: dict[str, tuple[Change, str]] = {
    "missing": (
        lambda head: head.pop("mtp.layers.0.self_attn.q_proj.weight"),
        "tensor layer.self_attn.q_proj.weight is missing",
    ),
    "without norm": (lambda head: head.pop("mtp.pre_fc_norm_hidden.weight"), "hidden norm"),
    "of another shape": (
        lambda head: head.update({"mtp.fc.weight": mx.zeros((64, 64))}),
        "projection.weight has the shape [64, 64]; [64, 128] is required",
    ),
    "with a stranger": (
        lambda head: head.update({"mtp.layers.0.extra.weight": mx.zeros((4,))}),
        "the model has no counterpart of its tensor layer.extra.weight",
    ),
    "with a second layer": (
        lambda head: head.update({"mtp.layers.1.norm.weight": mx.zeros((4,))}),
        "does not know the purpose of its tensor mtp.layers.1.norm.weight",
    ),
    "of another vocabulary": (
        lambda head: head.update({"mtp.embed_tokens.weight": mx.zeros((99, 64))}),
        "mtp.embed_tokens.weight is for 99 tokens; the model's vocabulary has 260",
    ),
    "no head": (dict.clear, "has no tensors of an MTP head"),
}


@pytest.mark.parametrize("how", UNUSABLE)
def test_an_unusable_head_is_left_out_and_named(
    small: tuple[Path, MlxEngine], tmp_path: Path, how: str
) -> None:
    model, engine = small
    head = head_of(model)
    change, reason = UNUSABLE[how]
    change(head)
    write_head(tmp_path / "mtp", head or {"unrelated": mx.zeros((1,))})
    why = open_head(tmp_path / "mtp", 1, engine.facts, model, engine._head, "float32")
    assert isinstance(why, str) and reason in why and why.startswith("the MTP head cannot be used")


def test_a_head_whose_files_are_cut_or_of_another_tokenizer_is_left_out(
    small: tuple[Path, MlxEngine], tmp_path: Path
) -> None:
    model, engine = small
    head = write_head(tmp_path / "mtp", head_of(model))
    shutil.copy(TINY / "tokenizer.json", head)
    engine.use_proposer(model, "float32", ProposerSource(mtp=(head, 1)))
    assert "another vocabulary" in engine.facts.no_mtp
    (head / "tokenizer.json").unlink()
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    engine.use_proposer(model, "float32", ProposerSource(mtp=(head, 1)))
    assert "mtp/model.safetensors is truncated" in engine.facts.no_mtp
    assert engine._forward.proposer is None


def test_a_quantised_model_quantises_its_head(tmp_path: Path) -> None:
    model = write_model(tmp_path / "packed", QUANTISED["llama, 4 bits"])
    wide = write_model(tmp_path / "wide", MODELS["llama"])
    head = write_head(tmp_path / "mtp", head_of(wide))
    engine = load_engine(model, memory_limit_bytes=LIMIT, mtp=(head, 1))
    block = guesses_of(engine)._head.block
    assert block.projection.bits == block.layer.self_attn.q_proj.bits == 4
    tokens = tuple(TokenId(10 + at) for at in range(30))
    plain = played(engine, "off", WAYS["seeded"], tokens=tokens)
    drafted = played(engine, "mtp", WAYS["seeded"], tokens=tokens)
    assert drafted[:2] == plain[:2] and drafted[2].drafts
    engine.close()


GLM: dict[str, Any] = {
    "model_type": "glm4_moe", "moe_intermediate_size": 32, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": True,
    "attention_bias": False, "partial_rotary_factor": 0.5, "use_qk_norm": True,
    "tie_word_embeddings": False, "rope_scaling": None, "num_nextn_predict_layers": 1,
}  # fmt: skip


def raw_experts(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Tensors as a checkpoint has them: one of each expert, and one for keys and values of MLA."""
    raw: dict[str, mx.array] = {}
    for name, array in tensors.items():
        if ".switch_mlp." in name:
            for expert in range(len(array)):
                raw[name.replace("switch_mlp.", f"experts.{expert}.")] = array[expert]
        elif name.endswith("embed_q.weight"):
            other = tensors[name.replace("embed_q", "unembed_out")]
            both = mx.concatenate([array.swapaxes(-1, -2), other], axis=1)
            raw[name.replace("embed_q", "kv_b_proj")] = both.reshape(-1, both.shape[-1])
        elif not name.endswith("unembed_out.weight"):
            raw[name] = array
    return raw


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_a_head_in_the_checkpoint_itself_is_read_in_its_raw_form(
    tmp_path: Path, family: str
) -> None:
    """With the names of DeepSeek-V3. mlx-lm drops GLM's from the model's own file."""
    model = write_model(tmp_path / family, GLM if family == "glm4_moe" else MODELS[family])
    stacked = as_deepseek(head_of(model), 4)
    raw = raw_experts(stacked)
    raw["model.layers.4.embed_tokens.weight"] = mx.zeros((260, 64))
    assert any(".experts.3." in name for name in raw) and len(raw) > len(stacked)
    own: Any = mx.load(str(model / "model.safetensors"))
    if family == "glm4_moe":
        mx.save_safetensors(str(model / "model.safetensors"), {**own, **raw})
    else:
        mx.save_safetensors(str(model / "mtp.safetensors"), raw)
    engine = load_engine(model, memory_limit_bytes=LIMIT, mtp=(model, 1))
    assert engine.facts.no_mtp == "the MTP head's speed was not measured"
    layer = dict(guesses_of(engine)._head.block.layer.named_modules())
    wanted = own["model.layers.3.mlp.switch_mlp.up_proj.weight"]
    assert np.array_equal(np.array(layer["mlp.switch_mlp.up_proj"].weight), np.array(wanted))
    tokens = tuple(TokenId(10 + at) for at in range(30))
    plain = played(engine, "off", WAYS["seeded"], tokens=tokens)
    drafted = played(engine, "mtp", WAYS["seeded"], tokens=tokens)
    assert drafted[:2] == plain[:2] and drafted[2].drafts
    assert json.loads((model / "config.json").read_text())["num_hidden_layers"] == 4
    engine.close()
