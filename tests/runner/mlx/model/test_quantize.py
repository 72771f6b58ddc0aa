"""A model in fewer bits: what mlx-lm makes of it, written tensor by tensor, or nothing at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model

from bus.wire.ids import ModelId
from bus.wire.messages.weights import DISK_MARGIN_BYTES, UNFINISHED, Quantizing
from runner.engine import LoadProgress, NotMade
from runner.mlx.model import quantize
from runner.mlx.model.quantize import ModelMaker
from tests.harness.small_disks import needs_mounts, small_disk
from worker.models.local_models import LocalModels
from worker.models.weights import Shelf, Weights
from worker.slots.beside import sweep_unfinished

SOURCE, MADE = ModelId("someone/full"), ModelId("fewer")
NO_LIMIT = 1 << 40


def maker(source: Path, models: Path, bits: Any = 4, group: Any = 32, **more: Any) -> ModelMaker:
    order = Quantizing(source=SOURCE, bits=bits, group_size=group)
    return ModelMaker(source, models, MADE, order, more.get("limit", NO_LIMIT))


def made(source: Path, models: Path, bits: Any = 4, group: Any = 32) -> list[LoadProgress]:
    told: list[LoadProgress] = []
    maker(source, models, bits, group).make(told.append, lambda: False)
    return told


def left(models: Path) -> list[str]:
    return sorted(str(p.relative_to(models)) for p in models.rglob("*") if p.name != UNFINISHED)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "qwen3"])
@pytest.mark.parametrize("bits", [4, 6, 8])
def test_it_is_what_mlx_lm_makes(model_folder: Any, tmp_path: Path, family: str, bits: int) -> None:
    made(model_folder(family), tmp_path, bits)
    ours, config = load_model(tmp_path / MADE)
    module, before = load_model(model_folder(family))
    theirs, _ = quantize_model(module, before, 32, bits)
    wanted = dict(tree_flatten(theirs.parameters()))
    found = dict(tree_flatten(ours.parameters()))
    assert found.keys() == wanted.keys()
    assert all(mx.array_equal(found[name], wanted[name]) for name in wanted)
    assert config["quantization"]["bits"] == bits


def test_an_engine_computes_with_it_and_its_card_says_what_it_came_from(
    load: Any, model_folder: Any, tmp_path: Path
) -> None:
    told = made(model_folder("llama"), tmp_path)
    assert load(tmp_path / MADE).facts.vocabulary == 260
    done = [one.done_bytes for one in told]
    assert done == sorted(done)
    assert (told[-1].phase, told[-1].done_bytes) == ("ready", told[-1].total_bytes)
    models = LocalModels(Weights(Shelf({}, (tmp_path,), None, float32=True)), tmp_path)
    models.take(models.scan())
    assert list(models.cards) == [MADE]
    card = models.cards[MADE]
    assert (card.made_from, card.quantization) == (SOURCE, "4-bit")
    assert (card.origin, card.sources) == ("derived", (SOURCE,))
    assert models.passed_over == ()


def test_weights_go_into_several_files_where_one_would_be_too_large(
    model_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "FILE_BYTES", 20_000)
    made(model_folder("llama"), tmp_path)
    files = sorted(path.name for path in (tmp_path / MADE).glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / MADE / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    ours, _ = load_model(tmp_path / MADE)
    assert len(tree_flatten(ours.parameters())) == len(index["weight_map"])


def test_what_is_quantised_or_does_not_divide_is_refused_in_words(
    model_folder: Any, tmp_path: Path
) -> None:
    made(model_folder("llama"), tmp_path)
    with pytest.raises(NotMade, match="already quantised"):
        maker(tmp_path / MADE, tmp_path)
    with pytest.raises(NotMade, match="--group-size"):
        maker(model_folder("qwen3_next"), tmp_path, group=128)
    cut = tmp_path / "cut"
    shutil.copytree(model_folder("llama"), cut)
    with open(cut / "model.safetensors", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(NotMade, match=r"model\.safetensors is truncated"):
        maker(cut, tmp_path)


def test_stopped_in_the_middle_it_leaves_nothing(model_folder: Any, tmp_path: Path) -> None:
    told: list[LoadProgress] = []
    maker(model_folder("llama"), tmp_path).make(told.append, lambda: len(told) > 5)
    assert told[-1].done_bytes < told[-1].total_bytes
    assert left(tmp_path) == []


def test_two_processes_do_not_make_one_model_at_once(model_folder: Any, tmp_path: Path) -> None:
    first, second = (maker(model_folder("llama"), tmp_path) for _ in range(2))
    refused: list[str] = []

    def beside(progress: LoadProgress) -> None:
        if progress.done_bytes and not refused:
            with pytest.raises(NotMade) as caught:
                second.make(lambda _: None, lambda: False)
            refused.append(str(caught.value))
            assert sweep_unfinished(tmp_path) == [], "it is still being made"

    first.make(beside, lambda: False)
    assert "another process" in refused[0]
    assert (tmp_path / MADE / "config.json").exists()


def test_what_lies_in_its_place_is_not_touched(model_folder: Any, tmp_path: Path) -> None:
    (tmp_path / MADE).mkdir()
    (tmp_path / MADE / "mine").write_text("mine")
    with pytest.raises(NotMade, match="already exists"):
        made(model_folder("llama"), tmp_path)
    assert left(tmp_path) == [MADE, f"{MADE}/mine"]


@needs_mounts
def test_a_full_disk_is_found_before_and_one_that_fills_leaves_nothing(
    model_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path, "200k") as models:
        with pytest.raises(NotMade, match="free some space"):
            maker(model_folder("llama"), models)
        monkeypatch.setattr(quantize, "DISK_MARGIN_BYTES", -DISK_MARGIN_BYTES)
        with pytest.raises(NotMade, match="could not be written"):
            made(model_folder("llama"), models, bits=8)
        assert left(models) == []


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    folder = tmp_path / UNFINISHED / "owner--name" / "files"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(100))
    assert sweep_unfinished(tmp_path) == ["owner--name"]
    assert sweep_unfinished(tmp_path) == []
    assert left(tmp_path) == []
