"""What a model's own files say about it, as the card that placement reads.

Pure. Field names are those of Hugging Face configurations; a multimodal model keeps its
language part under `text_config`. KV bytes per token are layers x 2 x KV heads x head size x
bytes per value, counting only layers whose KV grows; windows and recurrent states are fixed
per row. Multi-head latent attention keeps (rank + rope) values per layer instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bus.cards import ModelCard
from bus.ids import ModelId

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

    `context_tokens` may lower, never raise, what the model was made for.
    """

    thinking_default: bool | None = None
    context_tokens: int | None = None
    keep_alive_s: float | None = None


def notes_from(table: Mapping[str, Any]) -> Notes:
    """The notes in a `card.toml`; what it says for people is left to people. Raises ValueError
    for a value of the wrong type."""
    thinking, context = table.get("thinking_default"), table.get("context_tokens")
    keep = table.get("keep_alive_s")
    if not (thinking is None or isinstance(thinking, bool)):
        raise ValueError("card.toml: thinking_default is true or false")
    if not (context is None or (isinstance(context, int) and context > 0)):
        raise ValueError("card.toml: context_tokens is a whole number above 0")
    if not (keep is None or isinstance(keep, int | float)):
        raise ValueError("card.toml: keep_alive_s is a number of seconds")
    return Notes(thinking, context, None if keep is None else float(keep))


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
    """The card. A model whose template can think does so unless asked not to, as Qwen3's
    convention has it, or unless its notes say otherwise. `float32`: floating-point weights
    are cast to 32 bits when loaded.

    Raises KeyError or ValueError for a configuration that lacks what placement needs.
    """
    text = cast(Mapping[str, Any], config.get("text_config") or config)
    stored = _stored_bytes(config, tensors)
    value_bytes = 4 if float32 else stored
    per_token, fixed = kv_bytes(text, value_bytes)
    return ModelCard(
        model=model,
        path=path,
        family=str(config.get("model_type", "unknown")),
        layers=_layers(text),
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
    )


def weights_bytes(tensors: Sequence[Tensor], *, float32: bool) -> int:
    """Bytes in memory after the cast; integers (packed quantized weights) stay as they are."""
    total = 0
    for tensor in tensors:
        floating = tensor.dtype in DTYPE_BYTES
        total += tensor.count * 4 if float32 and floating else tensor.bytes_
    return total


def kv_bytes(text: Mapping[str, Any], value_bytes: int) -> tuple[int, int]:
    """(bytes per token, fixed bytes per row) of the KV cache at `value_bytes` per value."""
    layers = _layers(text)
    if text.get("kv_lora_rank"):
        values = int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim") or 0)
        return layers * values * value_bytes, 0
    heads = int(text.get("num_attention_heads") or 1)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head_dim = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
    one = 2 * kv_heads * head_dim * value_bytes
    growing, windowed, recurrent = _kinds(text, layers)
    window = int(text.get("sliding_window") or 0)
    state = int(text["hidden_size"]) * int(text.get("state_size") or 128) * value_bytes
    return growing * one, windowed * window * one + recurrent * state


def _kinds(text: Mapping[str, Any], layers: int) -> tuple[int, int, int]:
    """How many layers keep growing KV, a window of it, a recurrent state."""
    named = cast(Sequence[str], text.get("layer_types") or ())
    if named:
        full = sum(kind == "full_attention" for kind in named)
        sliding = sum(kind == "sliding_attention" for kind in named)
        return full, sliding, len(named) - full - sliding
    if every := int(text.get("full_attention_interval") or 0):
        return layers // every, 0, layers - layers // every
    if every := int(text.get("sliding_window_pattern") or 0):
        return layers // every, layers - layers // every, 0
    return layers, 0, 0


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
    """Bytes per value as stored: what most floating-point tensors are, else the config's word."""
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
    """Weights of the model. A packed U32 holds 32/bits of them; scales and biases of the
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
    """Ollama's words for what a model can do here (text only, images are not read)."""
    found = ["completion"]
    if "tools" in template:
        found.append("tools")
    if _thinks(template):
        found.append("thinking")
    return tuple(found)
