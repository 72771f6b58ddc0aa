from __future__ import annotations

import json
import os
from pathlib import Path

from bus.wire.cards import ModelCard
from tests.harness.embedding_folders import write_decoder, write_encoder
from worker.models.weights import Shelf, Weights


def weights(home: Path) -> Weights:
    return Weights(Shelf({}, (home,), None, float32=True))


def card_of(home: Path) -> ModelCard:
    (card,) = weights(home).look()
    return card


def test_the_card_of_an_encoder_says_what_serving_needs(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "embedder")
    card = card_of(tmp_path)
    assert (card.makes, card.dimensions, card.context_tokens) == ("embedding", 32, 40)
    assert (card.dimension_choices, card.dimensions_at_most) == ((), 0)
    assert card.capabilities == ("embedding",) and card.family == "bert"
    assert card.kv_bytes_per_token == 0 and card.tensor_sizes == {}
    assert "single rank" in card.unsplit_because
    assert card.size_bytes == (folder / "model.safetensors").stat().st_size


def test_a_decoder_is_carded_by_its_modules_and_is_a_model_of_text_without_them(
    tmp_path: Path,
) -> None:
    folder = write_decoder(tmp_path / "embedder", max_position_embeddings=64)
    looks = weights(tmp_path)
    (card,) = looks.look()
    assert (card.makes, card.kv_bytes_per_token, card.context_tokens) == ("embedding", 0, 40)
    (folder / "modules.json").unlink()
    (text,) = looks.look()
    assert (text.makes, text.dimensions, text.capabilities) == ("text", 0, ("completion",))
    assert text.kv_bytes_per_token > 0


def test_dimensions_that_may_be_asked_for_are_on_the_card(tmp_path: Path) -> None:
    write_encoder(tmp_path / "a", matryoshka_dimensions=[8, 16])
    write_encoder(tmp_path / "b", is_matryoshka=True)
    listed, free = weights(tmp_path).look()
    assert (listed.dimension_choices, listed.dimensions_at_most) == ((8, 16), 0)
    assert (free.dimension_choices, free.dimensions_at_most) == ((), 32)


def test_notes_may_lower_how_long_an_input_is(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "embedder")
    (folder / "card.toml").write_text("context_tokens = 12\n")
    assert card_of(tmp_path).context_tokens == 12


def test_another_pooling_is_another_model_and_is_seen_at_the_next_look(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "embedder")
    looks = weights(tmp_path)
    (before,) = looks.look()
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"word_embedding_dimension": 32, "pooling_mode": "max"}))
    os.utime(path, ns=(1, 1))
    (after,) = looks.look()
    assert before.digest != after.digest


def test_one_that_cannot_be_run_as_it_is_meant_is_passed_over_with_the_reason(
    tmp_path: Path,
) -> None:
    write_encoder(tmp_path / "rel", position_embedding_type="relative_key")
    (write_encoder(tmp_path / "torn") / "modules.json").write_text("{")
    looks = weights(tmp_path)
    assert looks.look() == ()
    relative, torn = looks.passed_over
    assert "relative_key" in relative.why and "BERT" in relative.remedy
    assert torn.why.startswith("the model cannot be loaded as an embedding model: ")
