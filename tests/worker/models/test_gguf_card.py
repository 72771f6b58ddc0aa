"""A folder with one GGUF file is a model, and says of itself what placement needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import NodeReading
from master.placement import PlacementSpec, RunnerSizing, place
from master.placement.capacity import NodeCapacity
from tests.harness.gguf_files import SMALL, embedder, parts, small, small_tensors
from worker.models.file_hashes import held_files
from worker.models.manifest import ggufs_of
from worker.models.model_card import GGUF_BACKENDS
from worker.models.weights import Shelf, Weights
from worker.verifying.checks import verify


def looked(folder: Path) -> Weights:
    weights = Weights(Shelf({}, (folder,), None, float32=True))
    weights.look()
    return weights


def card_of(folder: Path) -> ModelCard:
    (card,) = Weights(Shelf({}, (folder,), None, float32=True)).look()
    return card


def made(folder: Path, data: bytes = b"", name: str = "m.Q4_K_M.gguf") -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_bytes(data or small())
    return folder


def test_a_folder_with_one_file_has_a_card(tmp_path: Path) -> None:
    folder = made(tmp_path / "them" / "small")
    card = card_of(tmp_path)
    assert (card.model, card.family, card.layers) == ("them/small", "llama", 2)
    assert (card.quantization, card.dtype, card.context_tokens) == ("Q4_K_M", "gguf", 2048)
    assert card.weights_bytes == 384 and card.kv_bytes_per_token == 2 * 128
    assert card.compatible_backends[0] == "llamacpp-cpu" and card.unsplit_because
    assert card.thinking and card.capabilities == ("completion", "tools", "thinking")
    assert len(card.digest) == 64 and card.path == str(folder)


def test_an_embedding_model_has_the_memory_of_one_input(tmp_path: Path) -> None:
    made(tmp_path / "encoder", embedder(bert__context_length=4096))
    made(tmp_path / "decoder", small(llama__pooling_type=3, llama__context_length=100))
    decoder, encoder = sorted(looked(tmp_path).look(), key=lambda card: card.model)
    assert {card.makes for card in (decoder, encoder)} == {"embedding"}
    assert (encoder.dimensions, encoder.dimensions_at_most, encoder.dimension_choices) == (
        64,
        0,
        (),
    )
    assert (encoder.context_tokens, encoder.kv_bytes_fixed) == (2048, 0)
    assert (decoder.context_tokens, decoder.kv_bytes_fixed) == (100, 100 * 2 * 128)
    assert encoder.capabilities == ("embedding",) and not decoder.kv_bytes_per_token
    assert encoder.compatible_backends[0] == "llamacpp-cpu"


def test_a_card_toml_has_its_effect_or_a_notice(tmp_path: Path) -> None:
    folder = made(tmp_path / "small")
    (folder / "card.toml").write_text(
        'context_tokens = 512\naliases = ["tiny"]\nkv = "8bit"\nadapters = ["mine"]\n'
        'speculate = "ngram"\n'
    )
    (folder / "adapters").mkdir()
    weights = looked(tmp_path)
    card = card_of(tmp_path)
    assert card.context_tokens == 512 and card.aliases == ("tiny",) and card.kv == "full"
    said = " ".join(entry.why for entry in weights.passed_over)
    assert "16 bits" in said and "mine" in said and "adapters/ has no effect" in said
    assert "speculate = ngram has no effect" in said


def test_backends_that_run_no_gguf_have_a_notice(tmp_path: Path) -> None:
    folder = made(tmp_path / "small")
    for listed, right in (('"mlx-cpu"', GGUF_BACKENDS), ('"llamacpp-cpu"', ("llamacpp-cpu",))):
        (folder / "card.toml").write_text(f"compatible_backends = [{listed}]\n")
        assert card_of(tmp_path).compatible_backends == right
        said = [entry.why for entry in looked(tmp_path).passed_over]
        assert any("compatible_backends = mlx-cpu has no effect" in why for why in said) is (
            listed == '"mlx-cpu"'
        )


@pytest.mark.parametrize(
    ("data", "reason", "said"),
    [
        (b"GGUF", "cut", "truncated"),
        (small()[:-1], "cut", "truncated"),
        (b"version https://git-lfs", "lfs_pointer", "pointer"),
        (small(general__type="mmproj"), "bad_weights", "projector"),
        (b"PK\3\4" * 99, "bad_weights", "begins with"),
    ],
)
def test_a_bad_file_is_told_with_its_remedy(
    tmp_path: Path, data: bytes, reason: str, said: str
) -> None:
    made(tmp_path / "bad", data)
    (entry,) = looked(tmp_path).passed_over
    assert entry.reason == reason and said in entry.why and entry.remedy
    assert entry.name == "bad"


def test_the_file_belongs_to_the_model_for_copies_and_checks(tmp_path: Path) -> None:
    folder = made(tmp_path / "small")
    assert [held.path for held in held_files(folder)] == ["m.Q4_K_M.gguf"]
    assert ggufs_of(["a.gguf", "model.safetensors"]) == ()
    assert not verify(folder, lambda _: None, lambda: False).wrong
    (folder / "m.Q4_K_M.gguf").write_bytes(small()[:-5])
    (wrong,) = verify(folder, lambda _: None, lambda: False).wrong
    assert "truncated" in wrong.what


def placed(card: ModelCard, *backends: str) -> object:
    node = NodeCard(
        node=NodeId("n"), name="mini", platform="linux", cores=2, memory_bytes=16 << 30,
        backends=backends, mlx_version="", shoal_version="", slots=2, models=(card,),
        announced_at_s=0.0,
    )  # fmt: skip
    reading = NodeReading.model_construct(
        memory_available_bytes=8 << 30, memory_total_bytes=16 << 30
    )
    return place(PlacementSpec(ModelId("small")), [NodeCapacity(node, reading)], RunnerSizing(), {})


def test_a_node_without_llama_server_says_what_to_install(tmp_path: Path) -> None:
    made(tmp_path / "small")
    refusal = placed(card_of(tmp_path), "mlx-cpu")
    assert isinstance(refusal, Refusal) and refusal.reason == "unsupported"
    assert "mini has no llama-server" in refusal.message
    assert "shoal-llm[llamacpp]" in refusal.message


def test_a_node_with_llama_server_gets_the_model_with_its_own_overhead(tmp_path: Path) -> None:
    made(tmp_path / "small")
    placement = placed(card_of(tmp_path), "mlx-cpu", "llamacpp-cpu")
    assert not isinstance(placement, Refusal)
    (rank,) = placement.ranks  # pyright: ignore
    assert rank.copy.backend == "llamacpp-cpu" and rank.need.overhead == 1.10


def made_in_parts(folder: Path, changed: dict[str, object] | None = None) -> dict[str, Path]:
    folder.mkdir(parents=True)
    files = parts(SMALL, small_tensors(), 3, changed=changed)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in files}


def test_a_model_in_parts_is_one_model_with_the_sizes_of_all(tmp_path: Path) -> None:
    files = made_in_parts(tmp_path / "split")
    card = card_of(tmp_path)
    assert (card.model, card.quantization, card.layers) == ("split", "Q4_K_M", 2)
    assert card.size_bytes == sum(path.stat().st_size for path in files.values())
    assert card.weights_bytes == 2 * 384 + 256 and card.parameters == 2 * 192 + 64
    assert [held.path for held in held_files(tmp_path / "split")] == sorted(files)
    assert not verify(tmp_path / "split", lambda _: None, lambda: False).wrong


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    files = made_in_parts(tmp_path / "split")
    files["m-00002-of-00003.gguf"].unlink()
    (entry,) = looked(tmp_path).passed_over
    assert entry.reason == "missing_shards"
    assert entry.why == "m-00002-of-00003.gguf is missing"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"split.no": 0}, "part 2 of 3 has split.no = 0; the files here need 1"),
        ({"split.count": 4}, "part 1 of 3 has split.count = 4; the files here need 3"),
        ({"split.tensors.count": 9}, "part 1 of 3 has split.tensors.count = 9"),
    ],
)
def test_a_part_of_another_file_is_named(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    made_in_parts(tmp_path / "split", changed)
    (entry,) = looked(tmp_path).passed_over
    assert entry.reason == "bad_weights" and said in entry.why
    (wrong,) = verify(tmp_path / "split", lambda _: None, lambda: False).wrong
    assert said in wrong.what


def test_parts_of_two_models_are_no_model(tmp_path: Path) -> None:
    files = made_in_parts(tmp_path / "split")
    (tmp_path / "split" / "other-00001-of-00001.gguf").write_bytes(small())
    (entry,) = looked(tmp_path).passed_over
    assert entry.reason == "gguf" and "4 GGUF files" in entry.why and len(files) == 3
