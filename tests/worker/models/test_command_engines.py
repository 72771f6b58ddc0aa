"""Programs of `engines.toml` as models of a node."""

from __future__ import annotations

import os
from pathlib import Path

from bus.wire.cards import NodeCard
from bus.wire.ids import ModelId
from master.placement.availability import card_as_computed
from master.placement.capacity import computes_in_vram, resolve_backend
from master.placement.memory_cost import layer_costs
from worker.models.files.command_engines import CommandEngines, tags_of
from worker.models.last_used import LastUsed
from worker.models.local_models import LocalModels
from worker.models.weights import Shelf, Weights

ENGINE = '[engines.{name}]\ncommand = "x --port {{port}}"\nmemory_bytes = {size}\n'


def written(file: Path, text: str, at_s: int) -> None:
    file.write_text(text)
    os.utime(file, (at_s, at_s))


def test_a_program_is_a_model_with_the_memory_that_is_stated(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    written(file, ENGINE.format(name="one", size=3_000_000_000) + "calls_tools = true\n", 1_000)
    (card,) = CommandEngines(file).look({}, {}).cards
    assert (card.model, card.origin, card.modified_at_s) == ("one", "engine", 1_000)
    assert card.capabilities == ("completion", "tools")
    (tag,) = tags_of([card])
    assert resolve_backend(card, ("mlx-cpu", tag)) == tag
    assert resolve_backend(card, ("mlx-cpu", "command-other")) is None
    costs = layer_costs(card_as_computed(card, tag), None, tag)
    assert costs.whole.total == 3_000_000_000 + 256_000_000


def test_the_last_valid_version_is_in_force_and_what_is_wrong_is_told(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    engines = CommandEngines(file)
    assert not engines.look({}, {}).cards
    written(file, ENGINE.format(name="one", size=5), 1_000)
    assert [card.model for card in engines.look({}, {}).cards] == ["one"]
    written(file, ENGINE.format(name="two", size=-5), 1_001)
    look = engines.look({}, {})
    assert [card.model for card in look.cards] == ["one"]
    (notice,) = look.notices
    assert "line 3" in notice.why and "last valid version" in notice.remedy
    written(file, ENGINE.format(name="two", size=5), 1_002)
    look = engines.look({}, {})
    assert [card.model for card in look.cards] == ["two"] and not look.notices
    file.unlink()
    assert not engines.look({}, {}).cards


def test_a_name_that_a_model_has_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(ENGINE.format(name="one", size=5))
    (card,) = CommandEngines(file).look({}, {}).cards
    look = CommandEngines(file).look({ModelId("one"): card}, {})
    assert not look.cards
    (notice,) = look.notices
    assert notice.reason == "same_name" and "another name" in notice.remedy


def test_a_program_does_not_make_a_node_compute_in_vram() -> None:
    card = NodeCard.model_construct(vram_bytes=8 << 30, backends=("mlx-cpu", "command-vllm"))
    assert not computes_in_vram(card)


def test_memory_that_is_not_stated_is_measured(tmp_path: Path) -> None:
    file, numbers = tmp_path / "engines.toml", tmp_path / "memory.json"
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"x" * 1000)
    lines = '[engines.{}]\ncommand = "x --port {{port}}"\nmodel = "{}"\n'
    file.write_text(lines.format("files", weights) + lines.format("none", "x/y"))

    def opened() -> LocalModels:
        shelf = Weights(Shelf({}, (), None, float32=True))
        models = LocalModels(shelf, tmp_path / "models", None, file, LastUsed(numbers))
        models.take(models.scan())
        return models

    models = opened()
    sizes = {name: card.memory_bytes for name, card in models.cards.items()}
    assert sizes == {"files": 1300, "none": 2_000_000_000}
    models.measured(ModelId("none"), 5_000_000_000)
    models.measured(ModelId("none"), 4_000_000_000)
    models.measured(ModelId("else"), 4_000_000_000)
    assert opened().cards[ModelId("none")].memory_bytes == 5_000_000_000


def test_a_program_on_gpus_names_them_and_takes_no_memory_that_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    file.write_text('[engines.one]\ncommand = "x --port {port}"\ngpus = [2, 0]\n')
    (card,) = CommandEngines(file).look({}, {ModelId("one"): 7_000_000_000}).cards
    assert card.gpus == (0, 2)
    assert card.memory_bytes == 2_000_000_000, "what was measured is the machine's memory"
