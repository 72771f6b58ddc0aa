"""Make the model card of a model whose weights are not on this node. The code for models on disk
makes the card, from placeholder tensors.

Pure. The real tensors are unknown until the weight files have arrived. So each file is represented
by one or two placeholder tensors, which together have the file's size. The model's configuration
tells which bytes of a file may be cast to another number type. All layers count as equally large.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from bus.models.cards import Notes
from bus.models.embedding_parts import EmbeddingModel
from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from bus.wire.kv import KvKind
from worker.models.files import Tensor
from worker.models.layers import expert_share
from worker.models.model_card import CONFIG_DTYPES, FoundAdapters, embedding_card, model_card

MIXTURE = (
    "the bytes read per token depend on its experts and are unknown until the weights are here"
)
_NUMBERS = {2: "BF16", 4: "F32", 8: "F64"}
PACKED = "U32"
OPAQUE = "U8"
"""The type of values that are never cast."""


def listed_tensors(config: Mapping[str, Any], sizes: Sequence[int]) -> list[Tensor]:
    """Return placeholder tensors for weight files of these sizes, so that memory can be estimated
    before a download."""
    return [tensor for size in sizes for tensor in _tensors(config, size)]


def listed_card(
    model: ModelId,
    config: Mapping[str, Any],
    sizes: Sequence[int],
    *,
    path: str,
    float32: bool,
    kv: KvKind,
    embeds: EmbeddingModel | None = None,
) -> ModelCard:
    """Return the card that a node would announce with the model; `sizes` are those of its weight
    files. Raises KeyError, ValueError, TypeError, AttributeError or ArithmeticError if the
    configuration lacks what placement needs."""
    card = model_card(
        model,
        path=path,
        config=config,
        tensors=listed_tensors(config, sizes),
        template="",
        notes=Notes(),
        adapters=FoundAdapters(),
        size_bytes=sum(sizes),
        digest="",
        modified_at_s=0,
        float32=float32,
        bundled=False,
        kv=kv,
    )
    return card if embeds is None else embedding_card(card, embeds)


def why_no_speed(config: Mapping[str, Any]) -> str:
    """Return why no speed can be predicted from such a card; empty if it can."""
    text = cast(Mapping[str, Any], config.get("text_config") or config)
    return MIXTURE if expert_share(text) < 1.0 else ""


def _tensors(config: Mapping[str, Any], size: int) -> Iterator[Tensor]:
    """Yield the placeholder tensors of one file."""
    quant = cast(
        Mapping[str, Any], config.get("quantization") or config.get("quantization_config") or {}
    )
    word = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    width = CONFIG_DTYPES.get(word, 2)
    scales = size
    if quant:
        scales = int(size * _share_of_scales(quant, width))
        kind = PACKED if "bits" in quant else OPAQUE
        packed = size - scales
        yield Tensor("packed", kind, packed // (4 if kind == PACKED else 1), 0, packed)
    if scales:
        name = "numbers.scales" if quant else "numbers"
        yield Tensor(name, _NUMBERS[width], scales // width, 0, scales)


def _share_of_scales(quant: Mapping[str, Any], width: int) -> float:
    """Return the share of a quantised model's bytes that are scales and offsets. MLX's affine kind
    has one of each per group. Other kinds have none that is cast to 32 bits."""
    bits, group = int(quant.get("bits") or 0), int(quant.get("group_size") or 0)
    if not bits or not group or quant.get("mode", "affine") != "affine":
        return 0.0
    beside = 2 * 8 * width
    return beside / (bits * group + beside)
