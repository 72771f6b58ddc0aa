"""The card of a model that is not here yet, held against the card of the same model on a disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullForecast
from conf.paths import bundled_models
from tests.harness.nodes import MODEL
from tests.harness.pulling import REPOSITORY, tiny
from worker.models.weights import Shelf, Weights
from worker.pulling.forecast import Shelving, forecast_of, listed_card, listed_tensors
from worker.pulling.listing import HubFile, HubListing, PullFailed

FROM_CONFIG = (
    "family", "layers", "kv_bytes_per_token", "kv_bytes_fixed", "context_tokens", "vocabulary",
    "layer_kv", "layer_kv_fixed", "activation_bytes", "tensor_sizes", "dtype", "kv", "kv_group",
    "kv_value_bytes", "kv_full_because", "quantization", "fetched_in_parts", "unsplit_because",
)  # fmt: skip
"""Of a card, what placement reads and a configuration says whole."""
QUANTISED: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 1000,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "torch_dtype": "bfloat16",
    "quantization": {"bits": 4, "group_size": 64},
}  # fmt: skip


class Hub:
    """Files that are read by their listing, and which of them were."""

    def __init__(self, files: dict[str, bytes], sizes: dict[str, int] | None = None) -> None:
        self.files = files
        self.read: list[str] = []
        listed = {name: len(content) for name, content in files.items()} | (sizes or {})
        entries = [HubFile(name, size, "git", "0" * 40) for name, size in sorted(listed.items())]
        self.listing = HubListing(ModelId(REPOSITORY), "f" * 40, tuple(entries))

    def content(self, file: HubFile) -> bytes:
        self.read.append(file.path)
        return self.files[file.path]

    def forecast(self, models: Path, *, float32: bool = False) -> PullForecast:
        return forecast_of(self.listing, self.content, Shelving(models, float32, "full"))


def known_card(*, float32: bool) -> ModelCard:
    shelf = Shelf({MODEL: bundled_models()[MODEL]}, (), None, float32)
    return next(card for card in Weights(shelf).look() if card.model == MODEL)


@pytest.mark.parametrize("float32", [False, True])
def test_the_card_is_the_one_that_the_model_gets_once_it_is_here(
    tmp_path: Path, float32: bool
) -> None:
    hub = Hub(tiny())
    found = hub.forecast(tmp_path, float32=float32)
    card, known = found.card, known_card(float32=float32)
    assert card is not None and not found.why and not found.no_speed
    for name in FROM_CONFIG:
        assert getattr(card, name) == getattr(known, name), name
    # a file has its header besides: some 10 kB
    assert known.weights_bytes <= card.weights_bytes <= known.weights_bytes * 1.01
    assert (card.model, card.size_bytes) == (REPOSITORY, known.size_bytes)
    assert hub.read == ["config.json"]
    assert found.lacking_bytes == sum(map(len, tiny().values())) and found.disk_free_bytes > 0


def test_scales_of_a_quantised_model_are_cast_and_its_packed_values_are_not() -> None:
    # a matrix of 512 x 256 in 4 bits, in groups of 64, each with a scale and an offset of 16 bits
    packed, beside = 512 * 256 // 2, 2 * 2 * 512 * 256 // 64
    both = listed_tensors(QUANTISED, [packed + beside])
    assert sum(one.loaded_bytes(float32=False) for one in both) == packed + beside
    assert sum(one.loaded_bytes(float32=True) for one in both) == packed + 2 * beside
    card = listed_card(
        ModelId("a/b"), QUANTISED, [packed + beside], path="", float32=True, kv="full"
    )
    assert card.weights_bytes == packed + 2 * beside and card.quantization == "4-bit"
    assert card.parameters == 512 * 256


@pytest.mark.parametrize(
    "quantization", [{"quant_method": "fp8"}, {"bits": 4, "group_size": 32, "mode": "mxfp4"}]
)
def test_weights_of_other_kinds_count_as_they_lie(quantization: dict[str, Any]) -> None:
    config = {**QUANTISED, "quantization": quantization}
    found = listed_tensors(config, [1000, 24])
    assert sum(one.loaded_bytes(float32=True) for one in found) == 1024


def test_a_mixture_has_a_bill_and_no_speed(tmp_path: Path) -> None:
    config = {**QUANTISED, "num_experts": 64, "num_experts_per_tok": 4}
    hub = Hub({"config.json": json.dumps(config).encode(), "model.safetensors": b""})
    found = hub.forecast(tmp_path)
    assert found.card is not None and "experts" in found.no_speed


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (b'{"model_type": "unheard_of"}', "does not support the model family 'unheard_of'"),
        (b'{"model_type": "qwen3"}', "config.json has no num_hidden_layers"),
        (b'{"model_type": "qwen3", "num_hidden_layers": "many"}', "cannot be read"),
        (b"[]", "not a JSON object"),
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_what_cannot_be_reckoned_is_said(tmp_path: Path, config: bytes, why: str) -> None:
    found = Hub({"config.json": config, "model.safetensors": b"x"}).forecast(tmp_path)
    assert found.card is None and why in found.why
    assert found.lacking_bytes == len(config) + 1


def test_no_configuration_a_huge_one_and_one_that_does_not_come_are_said(tmp_path: Path) -> None:
    assert "config.json is missing" in Hub({"model.safetensors": b"x"}).forecast(tmp_path).why
    huge = Hub({"config.json": b"{}"}, {"config.json": 1 << 27})
    assert "larger than" in huge.forecast(tmp_path).why and not huge.read
    hub = Hub({"config.json": b"{}", "model.safetensors": b"x"})

    def fails(_file: HubFile) -> bytes:
        raise PullFailed("unreachable", "the hub broke off")

    said = forecast_of(hub.listing, fails, Shelving(tmp_path, False, "full"))
    assert said.why == "the hub broke off"


def test_an_embedding_model_keeps_no_kv(tmp_path: Path) -> None:
    config = {
        "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 4, "max_position_embeddings": 512, "intermediate_size": 128,
        "hidden_act": "gelu", "architectures": ["BertModel"],
    }  # fmt: skip
    hub = Hub({"config.json": json.dumps(config).encode(), "model.safetensors": b"x" * 100})
    found = hub.forecast(tmp_path)
    assert found.card is not None, found.why
    assert (found.card.makes, found.card.kv_bytes_per_token) == ("embedding", 0)
