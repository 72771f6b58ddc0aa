"""Adapters in a model's folder are on its card and in its memory; others are told the reason."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from tests.harness.families import MODELS, write_model
from tests.harness.lora import as_peft, draw_adapter
from worker.models.file_hashes import Hashes, held_files
from worker.models.manifest import belongs, manifest_of, problem_of
from worker.models.weights import Shelf, Weights


def look(home: Path) -> tuple[Weights, ModelCard]:
    weights = Weights(Shelf({}, (home,), None, float32=True))
    (card,) = weights.look()
    return weights, card


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "models" / "m", MODELS["qwen3"])


def test_adapters_are_on_the_card_and_their_bytes_in_each_layer(model: Path) -> None:
    _, before = look(model.parent)
    draw_adapter(model, model / "adapters" / "one", seed=1, rank=4)
    as_peft(
        draw_adapter(model, model.parent.parent / "two", seed=2, rank=8),
        model / "adapters" / "two",
    )
    weights, card = look(model.parent)
    assert [(one.name, one.rank) for one in card.adapters] == [("one", 4), ("two", 8)]
    assert not weights.passed_over
    config = json.loads((model / "config.json").read_text())
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    heads, groups, width = (
        config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    sides = (hidden + heads * width) + (hidden + groups * width) + (wide + hidden)
    each = 3 * 8 * sides * 4
    assert card.weights_bytes - before.weights_bytes == each * card.layers
    pairs = zip(card.layer_bytes, before.layer_bytes, strict=True)
    assert {now - then for now, then in pairs} == {each}
    files = [model / "adapters/one/adapters.safetensors"]
    files.append(model / "adapters/two/adapter_model.safetensors")
    assert card.size_bytes - before.size_bytes == sum(one.stat().st_size for one in files)
    assert (card.digest, card.parameters) == (before.digest, before.parameters)


def test_adapters_of_like_shapes_have_digests_of_their_own(model: Path) -> None:
    for seed in (1, 2):
        draw_adapter(model, model / "adapters" / f"a{seed}", seed=seed)
    _, card = look(model.parent)
    assert len({one.digest for one in card.adapters}) == 2


def test_an_adapter_that_comes_or_is_mended_is_seen_at_the_next_look(model: Path) -> None:
    weights, card = look(model.parent)
    assert not card.adapters
    folder = draw_adapter(model, model / "adapters" / "one", seed=1)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "fine_tune_type": "dora"}))
    (card,) = weights.look()
    (said,) = weights.passed_over
    assert not card.adapters and card.model == "m"
    assert (said.name, said.taken, said.path) == ("m:one", False, str(folder))
    assert "dora" in said.why and said.remedy
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (card,) = weights.look()
    assert [one.name for one in card.adapters] == ["one"] and not weights.passed_over


@pytest.mark.parametrize("name", ["latest", "a blank", "größe", "-a"])
def test_an_adapter_whose_name_no_request_can_say_is_refused(model: Path, name: str) -> None:
    draw_adapter(model, model / "adapters" / name, seed=1)
    weights, card = look(model.parent)
    (said,) = weights.passed_over
    assert not card.adapters and "name" in said.why


def test_more_adapters_than_a_model_may_have_are_refused_by_name(model: Path) -> None:
    first = draw_adapter(model, model / "adapters" / "a00", seed=1, rank=1)
    for count in range(1, 18):
        twin = model / "adapters" / f"a{count:02}"
        twin.mkdir()
        for file in first.iterdir():
            (twin / file.name).write_bytes(file.read_bytes())
    weights, card = look(model.parent)
    assert len(card.adapters) == 16
    assert [one.name for one in weights.passed_over] == ["m:a16", "m:a17"]


def test_adapters_are_part_of_what_other_nodes_copy(model: Path, tmp_path: Path) -> None:
    folder = draw_adapter(model, model / "adapters" / "one", seed=1)
    mx.save_safetensors(str(folder / "0000100_adapters.safetensors"), {"a": mx.zeros(1)})
    held = held_files(model)
    assert [one.path for one in held if one.path.startswith("adapters/")] == [
        "adapters/one/adapter_config.json",
        "adapters/one/adapters.safetensors",
    ]
    hashes = Hashes(tmp_path / "hashes")
    files = [hashes.of(one, lambda _: None, lambda: False) for one in held]
    assert problem_of(manifest_of(ModelId("m"), files), ModelId("m")) is None
    twisted = [*files, files[0].model_copy(update={"path": "adapters/one"})]
    assert problem_of(manifest_of(ModelId("m"), twisted), ModelId("m")) is not None
    for path in (
        "adapters/../x.json",
        "adapters/one/run.py",
        "a/one/adapter_config.json",
        "adapters/one/two/adapter_config.json",
        "adapters/.x/adapter_config.json",
    ):
        assert not belongs(path), path


def test_a_card_says_which_are_loaded_and_which_answers_for_the_model(model: Path) -> None:
    _, before = look(model.parent)
    for seed, name in enumerate(("one", "two")):
        draw_adapter(model, model / "adapters" / name, seed=seed)
    _, both = look(model.parent)
    (model / "card.toml").write_text('adapters = ["two"]\nadapter = "two"\n')
    weights, card = look(model.parent)
    assert [one.name for one in card.adapters] == ["two"] and not weights.passed_over
    assert before.weights_bytes < card.weights_bytes < both.weights_bytes
    assert card.defaults is not None and card.defaults.adapter == "two"
    (model / "card.toml").write_text('adapters = ["two", "three"]\nadapter = "three"\n')
    weights, card = look(model.parent)
    assert [one.name for one in card.adapters] == ["two"]
    assert card.defaults is None, "what does not lie there answers for nothing"
    (said,) = weights.passed_over
    assert said.taken and "names adapters that cannot be loaded: three" in said.why
