"""A card asks for an MTP head, in the model's own files or in a folder inside the model's, or for a
block drafter in such a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bus.models.block_drafters import BlockShape
from bus.models.cards import BadCard, notes_from
from bus.models.cards.resolved import resolved
from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from tests.worker.models.test_weights import CONFIG, write_model
from worker.models.files.draft_models import with_draft
from worker.models.weights import Shelf, Weights

QWEN = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0.mlp.up_proj")
BYTES = 4 * 8 * len(QWEN)
"""Of tensors of eight values each, cast to 32 bits."""


def write_tensors(path: Path, names: list[str]) -> None:
    """A file of sparse tensors of eight 16-bit values each."""
    path.parent.mkdir(exist_ok=True)
    header = {
        name: {"dtype": "BF16", "shape": [8], "data_offsets": [16 * at, 16 * at + 16]}
        for at, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16 * len(names)))


def looked(weights: Weights) -> ModelCard:
    (card,) = weights.look()
    return card


def test_a_head_is_found_in_its_folder_or_missed_with_a_notice(tmp_path: Path) -> None:
    weights = Weights(Shelf({}, (tmp_path,), None, float32=True))
    write_model(tmp_path / "big", CONFIG)
    plain = looked(weights)
    (tmp_path / "big" / "card.toml").write_text('mtp_folder = "mtp"\nmtp_depth = 3\n')
    draft = looked(weights).draft
    assert draft is not None and draft.path == "" and draft.weights_bytes == 0
    assert draft.why_not == "the MTP head cannot be used: the folder mtp is missing"
    (notice,) = weights.passed_over
    assert notice.taken and "the MTP head has no effect: the folder mtp is missing" in notice.why
    file = tmp_path / "big" / "mtp" / "model.safetensors"
    write_tensors(file, [f"mtp.{name}.weight" for name in QWEN])
    card = looked(weights)
    draft = card.draft
    assert weights.passed_over == () and draft is not None and not draft.why_not
    assert (draft.drafter, draft.folder, draft.depth) == ("mtp", "mtp", 3)
    assert draft.path == str(file.parent) and draft.weights_bytes == BYTES
    assert draft.kv_bytes_per_token == max(card.layer_kv) > 0
    assert card.weights_bytes == plain.weights_bytes
    shown = {name: value for name, value, _, _ in resolved(card)}
    assert (shown["mtp_folder"], shown["mtp_depth"]) == ("mtp", 3)
    file.write_bytes(file.read_bytes()[:-1])
    looked(weights)
    (notice,) = weights.passed_over
    assert "mtp/model.safetensors is truncated" in notice.why
    write_tensors(file, ["model.layers.0.mlp.up_proj.weight"])
    looked(weights)
    assert "has no tensors of an MTP head" in weights.passed_over[0].why


def test_a_head_in_the_models_own_files_is_billed_only_if_the_card_asks_for_it(
    tmp_path: Path,
) -> None:
    weights = Weights(Shelf({}, (tmp_path,), None, float32=True))
    write_model(tmp_path / "big", CONFIG)
    (tmp_path / "big" / "card.toml").write_text('speculate = "mtp"\n')
    bare = looked(weights)
    assert bare.draft is not None and "the folder big has no tensors" in bare.draft.why_not
    names = [f"mtp.{name}.weight" for name in QWEN]
    write_tensors(tmp_path / "big" / "model-mtp.safetensors", names)
    card = looked(weights)
    assert card.draft is not None and card.draft.weights_bytes == BYTES
    assert card.draft.path == card.path and card.draft.folder == ""
    assert (card.weights_bytes, card.head_bytes) == (bare.weights_bytes, bare.head_bytes)
    (tmp_path / "big" / "card.toml").unlink()
    without = looked(weights)
    assert without.draft is None and without.weights_bytes == bare.weights_bytes


def test_a_card_names_a_draft_model_or_a_head(tmp_path: Path) -> None:
    weights = Weights(Shelf({}, (tmp_path,), None, float32=True))
    write_model(tmp_path / "big", CONFIG)
    (tmp_path / "big" / "card.toml").write_text('draft_model = "small"\nmtp_depth = 1\n')
    assert "the card names a draft model" in " ".join(
        (looked(weights), *(notice.why for notice in weights.passed_over))[1:]
    )
    other = looked(weights).model_copy(
        update={"dtype": "gguf", "noted": ("mtp_depth",), "draft": None}
    )
    changed = with_draft(other, {ModelId("big"): other})
    assert (
        changed is not None
        and changed[1] is not None
        and "mtp_depth has no effect" in changed[1].why
    )


def test_a_block_drafter_is_found_in_its_folder_or_missed_with_a_notice(tmp_path: Path) -> None:
    def notice() -> str:
        draft = looked(weights).draft
        assert draft is not None and draft.drafter == "block" and not draft.path
        (notice,) = weights.passed_over
        assert notice.taken and "the block drafter has no effect: " in notice.why
        assert draft.why_not.removeprefix("the block drafter cannot be used: ") in notice.why
        return notice.why

    weights = Weights(Shelf({}, (tmp_path,), None, float32=True))
    model, folder = tmp_path / "big", tmp_path / "big" / "fast"
    write_model(model, CONFIG)
    (model / "card.toml").write_text('speculate = "block"\n')
    assert "the card sets no block_folder" in notice()
    (model / "card.toml").write_text('block_folder = "fast"\n')
    assert "the folder fast has no config.json" in notice()
    shape = BlockShape(
        drafter="block", hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=4, vocab_size=50, block_length=4,
        window=6,
    )  # fmt: skip
    write_tensors(folder / "model.safetensors", list(shape.tensors()))
    (folder / "config.json").write_text("[1]")
    assert "fast/config.json has no" in notice()
    (folder / "config.json").write_text(shape.model_dump_json())
    card = looked(weights)
    assert weights.passed_over == () and card.draft is not None and not card.draft.why_not
    assert (card.draft.drafter, card.draft.path) == ("block", str(folder))
    assert card.draft.weights_bytes == 4 * 8 * len(shape.tensors()) + 2 * 4 * 6 * 8
    assert card.draft.kv_bytes_per_token == 0
    assert ("block_folder", "fast") in [setting[:2] for setting in resolved(card)]
    write_tensors(folder / "model.safetensors", [*list(shape.tensors())[1:], "other"])
    assert "the tensor other has no place in it" in notice()
    (folder / "model.safetensors").unlink()
    assert f"its tensor {next(iter(shape.tensors()))} is missing" in notice()
    (model / "card.toml").write_text('block_folder = "fast"\nmtp_depth = 1\n')
    assert looked(weights).draft is None
    assert "the card sets mtp_depth too" in weights.passed_over[0].why


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("mtp_folder", "../mtp", "is not the name of a folder"),
        ("mtp_folder", "adapters", "is not the name of a folder"),
        ("block_folder", "../block", "is not the name of a folder"),
        ("mtp_depth", 0, "from 1 to 8"),
        ("mtp_depth", 9, "from 1 to 8"),
        ("mtp_depth", True, "from 1 to 8"),
    ],
)
def test_a_wrong_key_is_refused_by_name(key: str, value: object, why: str) -> None:
    with pytest.raises(BadCard, match=why) as caught:
        notes_from({key: value})
    assert caught.value.key == key
