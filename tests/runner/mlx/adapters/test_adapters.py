"""Rows of several adapters and of none in one forward say what each says by itself in mlx-lm."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from bus.models.lora import adapter_files, shapes_in, stacked_bytes
from runner.engine import EntryId, PrefillChunk, PrefixInsert
from runner.mlx.engine import MlxEngine
from tests.harness.families import MODELS, QUANTISED, write_model
from tests.harness.lora import KEYS, adapted, as_peft, draw_adapter
from tests.harness.variants import mostly_proof
from tests.runner.mlx.conftest import Drive

generate_step = sys.modules["mlx_lm.generate"].generate_step
NEAR_TIE = 1e-4
FAMILIES = {
    "qwen3": ({**MODELS["qwen3"]}, KEYS),
    "llama": ({**MODELS["llama"]}, (*KEYS, "self_attn.o_proj", "mlp.gate_proj")),
    "llama, 4 bits": ({**QUANTISED["llama, 4 bits"]}, KEYS),
    "gemma3_text": ({**MODELS["gemma3_text"]}, KEYS),
    "qwen3_moe": ({**MODELS["qwen3_moe"]}, KEYS[:2]),
    "qwen3_next": ({**MODELS["qwen3_next"]}, ("linear_attn.out_proj", "self_attn.q_proj")),
}
ROWS = 24 if os.environ.get("SHOAL_PROVE") else 12
GATE = ("llama", "llama, 4 bits", "qwen3_next")


Adapted = tuple[Path, MlxEngine]


@pytest.fixture(scope="module")
def adapted_model(
    load: Callable[..., MlxEngine], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Adapted]:
    """A random model with two adapters of unlike ranks and scales."""
    made: dict[str, Adapted] = {}

    def model(family: str) -> Adapted:
        if family not in made:
            settings, keys = FAMILIES[family]
            folder = write_model(tmp_path_factory.mktemp("adapted") / "model", settings)
            own = folder / "adapters"
            draw_adapter(folder, own / "one", seed=1, rank=4, scale=20.0, keys=keys)
            draw_adapter(folder, own / "two", seed=2, rank=8, scale=12.5, keys=keys[:2])
            made[family] = folder, load(folder)
        return made[family]

    return model


def raw(model: Path, name: str, prompt: Sequence[int], count: int) -> list[tuple[int, float]]:
    """What mlx-lm says, with the margin of each choice."""
    module = adapted(model, model / "adapters" / name if name else None)
    made: list[tuple[int, float]] = []
    for token, logprobs in generate_step(mx.array(list(prompt)), module, max_tokens=count):
        best: Any = mx.sort(logprobs)[-2:].tolist()
        made.append((int(token), best[1] - best[0]))
    return made


def same(got: list[int], wanted: list[tuple[int, float]]) -> bool:
    for token, (should, margin) in zip(got, wanted, strict=True):
        if token != should:
            return margin < NEAR_TIE
    return True


@pytest.mark.parametrize("family", mostly_proof(FAMILIES, GATE))
def test_each_adapter_says_what_mlx_lm_says_with_it(adapted_model, new_row, family):
    folder, engine = adapted_model(family)
    assert engine.facts.adapters == {"one", "two"} and not engine.facts.refused_adapters
    prompt = [5 + 7 * at % 250 for at in range(40)]
    said = {}
    for name in ("", "one", "two"):
        player = Drive(engine)
        said[name] = player.alone(new_row(prompt, adapter=name), 20)
        assert same(said[name], raw(folder, name, prompt, 20)), name
    assert len({tuple(tokens) for tokens in said.values()}) == 3, "the adapters are heard"


@pytest.mark.parametrize("family", mostly_proof(FAMILIES, GATE))
def test_rows_of_both_and_of_none_in_one_batch_say_what_each_says_alone(
    adapted_model, new_row, monkeypatch, family
):
    folder, engine = adapted_model(family)
    names = ["", "one", "two"]
    prompts = [
        [3 + (5 + at) * step % 250 for step in range(9 + 4 * (at % 5))] for at in range(ROWS)
    ]
    rows = [new_row(prompt, adapter=names[at % 3]) for at, prompt in enumerate(prompts)]
    alone = []
    for row in rows:
        player = Drive(engine)
        alone.append(player.alone(new_row(row.tokens, adapter=row.adapter), 12))
    calls = []
    kind = type(engine._forward._model)
    plain = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda *a, **k: (calls.append(1), plain(*a, **k))[1])
    player = Drive(engine)
    groups = [
        tuple(PrefillChunk(row.row, 0, len(row.tokens)) for row in rows[at : at + 8])
        for at in range(0, ROWS, 8)
    ]
    player.step(admit=tuple(rows), prefill=tuple(groups))
    before = len(calls)
    for _ in range(11):
        player.step(decode=tuple(row.row for row in rows))
    assert len(calls) - before == 11, "one forward a step"
    player.finish(*(row.row for row in rows))
    assert not player.failures
    for row, wanted in zip(rows, alone, strict=True):
        got = player.ids(row.row)
        assert got == wanted or same(got, raw(folder, row.adapter, row.tokens, 12)), row


def test_rows_of_the_base_run_as_if_there_were_no_adapters(adapted_model, load, new_row, tmp_path):
    folder, engine = adapted_model("qwen3")
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("adapters"))
    plain = load(bare)
    assert not plain.facts.adapters
    prompt = list(range(9, 70))
    assert Drive(engine).alone(new_row(prompt), 30) == Drive(plain).alone(new_row(prompt), 30)


def test_a_row_that_leaves_and_joins_keeps_its_adapter(adapted_model, new_row):
    folder, engine = adapted_model("qwen3")
    rows = [
        new_row(range(10 + at, 40 + at), adapter=name)
        for at, name in enumerate(["one", "", "two", "one"])
    ]
    player = Drive(engine)
    chunks = tuple((PrefillChunk(row.row, 0, len(row.tokens)),) for row in rows)
    player.step(admit=tuple(rows), prefill=chunks)
    names = [row.row for row in rows]
    for count in range(24):
        player.step(decode=tuple(name for at, name in enumerate(names) if count % 4 != at))
    player.finish(*names)
    for row in rows:
        got = player.ids(row.row)
        assert same(got, raw(folder, row.adapter, row.tokens, len(got)))


def test_a_kept_prefix_of_an_adapter_gives_its_rows_the_same_text(adapted_model, new_row):
    _, engine = adapted_model("qwen3")
    prompt = list(range(3, 93))
    wanted = Drive(engine).alone(new_row(prompt, adapter="one"), 8)
    player = Drive(engine)
    giver = new_row(prompt, adapter="one")
    player.step(
        admit=(giver,),
        prefill=((PrefillChunk(giver.row, 0, 90),),),
        insert=(PrefixInsert(EntryId(5), giver.row, 80),),
    )
    from runner.engine import PrefixHit

    taker = new_row(prompt, adapter="one")
    player.step(
        admit=(taker,),
        hits=(PrefixHit(taker.row, EntryId(5), 80),),
        prefill=((PrefillChunk(taker.row, 80, 90),),),
    )
    for _ in range(7):
        player.step(decode=(taker.row,))
    player.finish(giver.row, taker.row)
    player.step(evict=(EntryId(5),))
    player.finish()
    assert player.ids(taker.row) == wanted


def test_pefts_file_of_the_same_matrices_says_the_same(adapted_model, load, new_row, tmp_path):
    folder, engine = adapted_model("qwen3")
    twin = tmp_path / "twin"
    shutil.copytree(folder, twin, ignore=shutil.ignore_patterns("adapters"))
    as_peft(folder / "adapters" / "one", twin / "adapters" / "peft")
    as_peft(
        folder / "adapters" / "one",
        twin / "adapters" / "stabilised",
        use_rslora=True,
        lora_alpha=20.0 * 2,
    )
    other = load(twin)
    assert other.facts.adapters == {"peft", "stabilised"}, other.facts.refused_adapters
    prompt = list(range(20, 60))
    wanted = Drive(engine).alone(new_row(prompt, adapter="one"), 16)
    for name in ("peft", "stabilised"):
        assert Drive(other).alone(new_row(prompt, adapter=name), 16) == wanted


def test_what_adapters_take_is_counted_and_known_before(adapted_model):
    folder, engine = adapted_model("qwen3")
    known = []
    for name in ("one", "two"):
        file = folder / "adapters" / name / "adapters.safetensors"
        data = file.read_bytes()
        config = json.loads(file.with_name("adapter_config.json").read_text())
        known.append(adapter_files(config, shapes_in(data, len(data))))
    wanted = sum(stacked_bytes(known, float32=True).values())
    weights = sum(one.nbytes for one in mx.load(str(folder / "model.safetensors")).values())
    assert engine.facts.weights_bytes == weights + wanted


def broken(**said: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **said}))

    return change


def rewritten(make: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = str(folder / "adapters.safetensors")
        arrays = {name: mx.array(one) for name, one in mx.load(path).items()}
        mx.eval(list(arrays.values()))
        mx.save_safetensors(path, make(arrays))

    return change


def cut(folder: Path) -> None:
    path = folder / "adapters.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


A = "model.layers.0.self_attn.q_proj.lora_a"
BAD = {
    "dora": (broken(fine_tune_type="dora"), "dora"),
    "full": (broken(fine_tune_type="full"), "full"),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json"),
    "no json": (lambda folder: (folder / "adapter_config.json").write_text("{"), "Expecting"),
    "no weights": (lambda folder: (folder / "adapters.safetensors").unlink(), "neither"),
    "cut": (cut, "are truncated"),
    "rank": (broken(lora_parameters={"rank": 5, "scale": 1.0}), "rank 4"),
    "scale": (broken(lora_parameters={"rank": 4, "scale": "big"}), "scale"),
    "nan": (rewritten(lambda all_: {**all_, A: all_[A] * float("nan")}), "finite"),
    "half": (rewritten(lambda all_: {n: a for n, a in all_.items() if n != A}), "one of its two"),
    "shape": (
        rewritten(lambda all_: {**all_, A: mx.zeros((7, 4))}),
        "to another model",
    ),
    "stranger": (rewritten(lambda all_: {**all_, "model.norm.weight": mx.zeros((4,))}), "not part"),
    "layer": (
        rewritten(lambda all_: {n.replace("layers.0.", "layers.99."): a for n, a in all_.items()}),
        "no layer",
    ),
    "experts": (
        rewritten(lambda all_: {n: a[None] for n, a in all_.items()}),
        "experts",
    ),
    "embedding": (
        rewritten(
            lambda _: {
                "model.embed_tokens.lora_a": mx.zeros((260, 4)),
                "model.embed_tokens.lora_b": mx.zeros((4, 64)),
            }
        ),
        "embeddings",
    ),
}


def test_what_cannot_be_applied_is_refused_by_name_and_the_others_are_applied(
    adapted_model, load, new_row, tmp_path
):
    folder, engine = adapted_model("qwen3")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for name, (spoil, _) in BAD.items():
        bad = other / "adapters" / f"bad-{name.replace(' ', '-')}"
        shutil.copytree(folder / "adapters" / "one", bad)
        spoil(bad)
    loaded = load(other)
    assert loaded.facts.adapters == {"one", "two"}
    refused = loaded.facts.refused_adapters
    for name, (_, word) in BAD.items():
        assert word in refused[f"bad-{name.replace(' ', '-')}"], name
    prompt = list(range(20, 60))
    for name in ("", "one", "two"):
        row = new_row(prompt, adapter=name)
        wanted = Drive(engine).alone(new_row(prompt, adapter=name), 10)
        assert Drive(loaded).alone(row, 10) == wanted
    player = Drive(loaded)
    stranger, friend = new_row(prompt, adapter="bad-cut"), new_row(prompt, adapter="one")
    player.step(
        admit=(stranger, friend),
        prefill=tuple((PrefillChunk(row.row, 0, 40),) for row in (stranger, friend)),
    )
    player.finish(stranger.row, friend.row)
    assert player.failures[stranger.row].reason == "bad_request"
    assert len(player.ids(friend.row)) == 1
