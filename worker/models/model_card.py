"""What a model's own files say about it, as the card that placement reads.

Pure. Field names are those of Hugging Face configurations; a multimodal model keeps its
language part under `text_config`. KV bytes per token are layers x 2 x KV heads x head size x
bytes per value, counting only layers whose KV grows; windows and recurrent states are fixed
per row. What each layer has of it is in `worker.models.layers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from worker.models.layers import (
    FETCHED_IN_PARTS,
    TensorBytes,
    expert_share,
    layer_kv,
    placed_bytes,
    tensor_sizes,
    why_unsplit,
)

DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
CONFIG_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as the file's header gives it: `count` stored values in `bytes_`."""

    name: str
    dtype: str
    count: int
    bytes_: int


@dataclass(frozen=True, slots=True)
class Notes:
    """What a `card.toml` may say of a model beyond its own files. None: nothing said.

    `context_tokens` may lower, never raise, what the model was made for. Backends are
    `<engine>-<compute>` tags: those that can run it (empty: any), and which are better, in order.
    """

    thinking_default: bool | None = None
    context_tokens: int | None = None
    keep_alive_s: float | None = None
    compatible_backends: tuple[str, ...] = ()
    backend_preference: tuple[str, ...] = ()


def notes_from(table: Mapping[str, Any]) -> Notes:
    """Return the notes in a `card.toml`; what it says for people is left to people. Raises
    ValueError for a value of the wrong type."""
    thinking, context = table.get("thinking_default"), table.get("context_tokens")
    keep = table.get("keep_alive_s")
    if not (thinking is None or isinstance(thinking, bool)):
        raise ValueError("card.toml: thinking_default is true or false")
    if not (context is None or (isinstance(context, int) and context > 0)):
        raise ValueError("card.toml: context_tokens is a whole number above 0")
    if not (keep is None or isinstance(keep, int | float)):
        raise ValueError("card.toml: keep_alive_s is a number of seconds")
    return Notes(
        thinking,
        context,
        None if keep is None else float(keep),
        _tags(table, "compatible_backends"),
        _tags(table, "backend_preference"),
    )


def model_card(
    model: ModelId,
    *,
    path: str,
    config: Mapping[str, Any],
    tensors: Sequence[Tensor],
    template: str,
    notes: Notes,
    size_bytes: int,
    digest: str,
    modified_at_s: int,
    float32: bool,
    bundled: bool,
) -> ModelCard:
    """Return the card. A model whose template can think does so unless asked not to, as Qwen3's
    convention has it, or unless its notes say otherwise. `float32`: floating-point weights are cast
    to 32 bits when loaded.

    Raises KeyError or ValueError for a configuration that lacks what placement needs.
    """
    text = cast(Mapping[str, Any], config.get("text_config") or config)
    stored = _stored_bytes(config, tensors)
    value_bytes = 4 if float32 else stored
    layers = _layers(text)
    per_token, fixed = kv_bytes(text, value_bytes)
    caches = layer_kv(text, layers, value_bytes)
    parts = placed_bytes(
        [TensorBytes(one.name, _bytes(one, float32=float32)) for one in tensors],
        layers,
        expert_share(text),
    )
    family = str(config.get("model_type", "unknown"))
    return ModelCard(
        model=model,
        path=path,
        family=family,
        layers=layers,
        weights_bytes=weights_bytes(tensors, float32=float32),
        size_bytes=size_bytes,
        kv_bytes_per_token=per_token,
        kv_bytes_fixed=fixed,
        context_tokens=min(_context(text), notes.context_tokens or _context(text)),
        vocabulary=int(text["vocab_size"]),
        quantization=_quantization(config),
        dtype="float32" if float32 else "auto",
        parameters=_parameters(config, tensors),
        digest=digest,
        modified_at_s=modified_at_s,
        capabilities=_capabilities(template),
        keep_alive_s=notes.keep_alive_s,
        thinking=_thinks(template) if notes.thinking_default is None else notes.thinking_default,
        bundled=bundled,
        layer_bytes=parts.layers,
        layer_active_bytes=parts.active,
        layer_kv=tuple(grows for grows, _ in caches),
        layer_kv_fixed=tuple(fixed for _, fixed in caches),
        embedding_bytes=parts.embedding,
        head_bytes=parts.head,
        activation_bytes=int(text.get("hidden_size") or 0) * value_bytes,
        tensor_sizes=tensor_sizes(family, text, int(_quant(config).get("group_size") or 0)),
        tensor_splits_kv=not text.get("kv_lora_rank"),
        unsplit_because=why_unsplit(family, text),
        fetched_in_parts=family in FETCHED_IN_PARTS,
        compatible_backends=notes.compatible_backends,
        backend_preference=notes.backend_preference,
    )


def weights_bytes(tensors: Sequence[Tensor], *, float32: bool) -> int:
    """Return bytes in memory after the cast; integers (packed quantized weights) stay as they
    are."""
    return sum(_bytes(tensor, float32=float32) for tensor in tensors)


def _bytes(tensor: Tensor, *, float32: bool) -> int:
    return tensor.count * 4 if float32 and tensor.dtype in DTYPE_BYTES else tensor.bytes_


def _tags(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of backend tags. Raises ValueError for anything else."""
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):  # pyright: ignore[reportUnknownVariableType]
        raise ValueError(f"card.toml: {name} is a list of backends such as mlx-metal")
    return tuple(cast(list[str], found))


def kv_bytes(text: Mapping[str, Any], value_bytes: int) -> tuple[int, int]:
    """Return (bytes per token, fixed bytes per row) of the KV cache at `value_bytes` per value."""
    by_layer = layer_kv(text, _layers(text), value_bytes)
    return sum(grows for grows, _ in by_layer), sum(fixed for _, fixed in by_layer)


def _layers(text: Mapping[str, Any]) -> int:
    for name in ("num_hidden_layers", "n_layers", "n_layer", "num_layers"):
        if name in text:
            return int(text[name])
    raise KeyError("num_hidden_layers")


def _context(text: Mapping[str, Any]) -> int:
    for name in ("max_position_embeddings", "max_seq_len", "n_positions", "max_sequence_length"):
        if text.get(name):
            return int(text[name])
    return DEFAULT_CONTEXT


def _stored_bytes(config: Mapping[str, Any], tensors: Sequence[Tensor]) -> int:
    """Return bytes per value as stored: of most floating-point tensors, else the config's word."""
    counts: dict[int, int] = {}
    for tensor in tensors:
        if tensor.dtype in DTYPE_BYTES:
            size = DTYPE_BYTES[tensor.dtype]
            counts[size] = counts.get(size, 0) + tensor.count
    if counts:
        return max(counts, key=lambda size: counts[size])
    word = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    return CONFIG_DTYPES.get(word, 2)


def _quant(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in ("quantization", "quantization_config"):
        if config.get(name):
            return cast(Mapping[str, Any], config[name])
    return {}


def _quantization(config: Mapping[str, Any]) -> str:
    quant = _quant(config)
    if "bits" not in quant:
        return "none"
    return f"{int(quant['bits'])}-bit"


def _parameters(config: Mapping[str, Any], tensors: Sequence[Tensor]) -> int:
    """Return the count of weights. A packed U32 holds 32/bits of them; scales and biases of the
    quantization are none."""
    bits = int(_quant(config).get("bits") or 0)
    total = 0
    for tensor in tensors:
        if bits and tensor.dtype == "U32":
            total += tensor.count * 32 // bits
        elif not (bits and tensor.name.endswith((".scales", ".biases"))):
            total += tensor.count
    return total


def _thinks(template: str) -> bool:
    return "enable_thinking" in template or "<think>" in template


def _capabilities(template: str) -> tuple[str, ...]:
    """Return Ollama's words for what a model can do here (text only, images are not read)."""
    found = ["completion"]
    if "tools" in template:
        found.append("tools")
    if _thinks(template):
        found.append("thinking")
    return tuple(found)
