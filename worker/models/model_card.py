"""Derive a model's card from the model's own files. Placement reads this card.

Pure. Field names are those of Hugging Face configurations; a multimodal model keeps its language
part under `text_config`. KV bytes per token are layers x 2 x KV heads x head size x bytes per
value, counting only layers whose KV grows. Windows and recurrent states are fixed per row.
`worker.models.layers` has the share of each layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bus.models.cards import Notes
from bus.models.embedding_parts import EmbeddingModel
from bus.models.gguf import DTYPE, ENGINE, LLAMA_TAG, GgufFacts
from bus.models.lora import FOLDER
from bus.wire.cards import AdapterCard, ModelCard
from bus.wire.ids import ModelId, is_model_id
from bus.wire.kv import KvKind, kind_for
from bus.wire.messages.weights import MADE_FROM
from worker.models import layers
from worker.models.files import DTYPE_BYTES, Tensor
from worker.models.passed_over import Unfit

CONFIG_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
DEFAULT_CONTEXT = 4096
WHOLE = "an embedding model or a reranker runs on a single rank"
GGUF_INPUT_TOKENS = 2_048
"""The longest input of an embedding model in a GGUF file: llama-server computes it in one piece,
and reserves the memory for that."""
MAX_LAYERS = 4096
THINKING_WORDS = (
    "enable_thinking", "<think>", "[THINK]", "<seed:think>", "<|START_THINKING|>",
    "<|channel|>analysis", "reasoning_effort",
)  # fmt: skip
"""A model whose template contains one of these words can think."""
GGUF_BACKENDS = tuple(f"{LLAMA_TAG}{name}" for name in ("cpu", "cuda", "vulkan", "rocm", "metal"))
"""Tags of the backends that run GGUF files. Nodes announce `cpu`, and `cuda` and `rocm` if their
llama-server is built for the GPUs there."""


@dataclass(frozen=True, slots=True)
class FoundAdapters:
    """The adapters in a model's folder. `cards` are those of usable adapters. `unfit` has the
    folders of other adapters, with the reason. `layer_bytes` is the memory of all usable ones, by
    layer."""

    cards: tuple[AdapterCard, ...] = ()
    unfit: tuple[tuple[Path, Unfit], ...] = ()
    layer_bytes: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def size_bytes(self) -> int:
        """Return the total size in bytes of the usable adapters' files on disk."""
        return sum(card.size_bytes for card in self.cards)


def no_more_context(notes: Notes, card: ModelCard) -> Unfit | None:
    """Return a notice if a `card.toml` sets a longer context than the model has; otherwise None."""
    if notes.context_tokens is None or notes.context_tokens <= card.context_tokens:
        return None
    why = f"card.toml: context_tokens = {notes.context_tokens} has no effect"
    return Unfit(
        "no_effect",
        why,
        f"the card can lower the model's own {card.context_tokens}, but not raise it",
    )


def model_card(
    model: ModelId,
    *,
    path: str,
    config: Mapping[str, Any],
    tensors: Sequence[Tensor],
    template: str,
    notes: Notes,
    adapters: FoundAdapters,
    size_bytes: int,
    digest: str,
    modified_at_s: int,
    float32: bool,
    bundled: bool,
    kv: KvKind = "full",
) -> ModelCard:
    """Return a model's card. A model whose template can think does so by default, following Qwen3's
    convention, unless its `card.toml` (`notes`) says otherwise. `float32`: floating-point weights
    are cast to 32 bits on loading. `adapters` are in the model's folder. `kv` is the KV kind unless
    `notes` names one.

    Raises KeyError or ValueError if the configuration lacks what placement needs.
    """
    text = cast(Mapping[str, Any], config.get("text_config") or config)
    stored = _stored_bytes(config, tensors)
    value_bytes = 4 if float32 else stored
    count = _layers(text)
    caches = layers.layer_kv(text, count, value_bytes)
    grows, fixed = tuple(cost for cost, _ in caches), tuple(cost for _, cost in caches)
    sizes = [(tensor.name, tensor.loaded_bytes(float32=float32)) for tensor in tensors]
    sizes += adapters.layer_bytes.items()
    parts = layers.placed_bytes(sizes, count, layers.expert_share(text))
    family = str(config["model_type"])
    group, in_full = layers.kv_group(family, text, count)
    windows = not layers.why_whole(family, text, count)
    thinks = can_think(template)
    return ModelCard(
        model=model,
        path=path,
        family=family,
        layers=count,
        weights_bytes=sum(size for _, size in sizes),
        size_bytes=size_bytes + adapters.size_bytes,
        kv_bytes_per_token=sum(grows),
        kv_bytes_fixed=sum(fixed),
        context_tokens=min(_context(text), notes.context_tokens or _context(text)),
        vocabulary=int(text["vocab_size"]),
        quantization=_quantization(config),
        dtype="float32" if float32 else "auto",
        parameters=_parameters(config, tensors),
        digest=digest,
        modified_at_s=modified_at_s,
        capabilities=capabilities_of(template),
        keep_alive_s=notes.keep_alive_s,
        default_max_tokens=notes.default_max_tokens,
        thinking=thinks if notes.thinking_default is None else notes.thinking_default,
        aliases=notes.aliases,
        defaults=notes.defaults(model, can_think=thinks),
        noted=notes.said,
        pin=notes.pin,
        memory_bytes=notes.memory_bytes,
        tool_parser=notes.tool_parser,
        reasoning_parser=notes.reasoning_parser,
        special_tokens_in_messages=notes.special_tokens_in_messages,
        speculate=notes.speculate,
        draft=notes.draft_model,
        prefill_on=notes.prefill_on,
        bundled=bundled,
        layer_bytes=parts.layers,
        layer_active_bytes=parts.active,
        layer_kv=grows,
        layer_kv_fixed=fixed,
        embedding_bytes=parts.embedding,
        head_bytes=parts.head,
        activation_bytes=int(text.get("hidden_size") or 0) * value_bytes,
        tensor_sizes=layers.tensor_sizes(family, text, int(_quant(config).get("group_size") or 0)),
        tensor_splits_kv=not text.get("kv_lora_rank"),
        unsplit_because=layers.why_unsplit(family, text),
        fetched_in_parts=family in layers.FETCHED_IN_PARTS,
        compatible_backends=notes.compatible_backends,
        backend_preference=notes.backend_preference,
        made_from=source_of(config),
        adapters=adapters.cards,
        kv=kind_for(notes.kv or kv, group, windows=windows),
        kv_group=group,
        kv_value_bytes=value_bytes,
        kv_full_because=in_full,
        kv_windows=windows,
    )


def gguf_card(
    model: ModelId,
    facts: GgufFacts,
    *,
    path: str,
    notes: Notes,
    size_bytes: int,
    digest: str,
    modified_at_s: int,
    has_adapters: bool,
) -> tuple[ModelCard, tuple[Unfit | None, ...]]:
    """Return the card of a GGUF model and the notices about settings that only MLX can follow.
    The engine llama-server runs the model on one node, with the weights as they are in the file.
    `has_adapters`: there are adapters beside the file."""
    notes, lacking = without_lacking(notes, FoundAdapters())
    thinks = can_think(facts.template)
    card = ModelCard(
        model=model,
        path=path,
        family=facts.architecture,
        layers=facts.layers,
        weights_bytes=facts.weights_bytes,
        size_bytes=size_bytes,
        kv_bytes_per_token=sum(facts.kv_bytes),
        context_tokens=min(facts.context_tokens, notes.context_tokens or facts.context_tokens),
        vocabulary=facts.vocabulary,
        quantization=facts.quantization,
        dtype=DTYPE,
        parameters=facts.parameters,
        digest=digest,
        modified_at_s=modified_at_s,
        capabilities=capabilities_of(facts.template),
        keep_alive_s=notes.keep_alive_s,
        default_max_tokens=notes.default_max_tokens,
        thinking=thinks if notes.thinking_default is None else notes.thinking_default,
        layer_bytes=facts.layer_bytes,
        embedding_bytes=facts.embedding_bytes,
        head_bytes=facts.head_bytes,
        layer_kv=facts.kv_bytes,
        unsplit_because=f"{ENGINE} runs a model on one node",
        compatible_backends=_gguf_backends(notes),
        backend_preference=notes.backend_preference,
        aliases=notes.aliases,
        defaults=notes.defaults(model, can_think=thinks),
        noted=notes.said,
        pin=notes.pin,
        memory_bytes=notes.memory_bytes,
        tool_parser=notes.tool_parser,
        reasoning_parser=notes.reasoning_parser,
        special_tokens_in_messages=notes.special_tokens_in_messages,
        speculate=notes.speculate,
        draft=notes.draft_model,
        kv_value_bytes=2,
        kv_full_because=f"{ENGINE} keeps its KV in 16 bits",
    )
    unused = _unused_adapters() if has_adapters else None
    others = _other_backends(notes)
    context, kv = no_more_context(notes, card), kv_notice(notes, card, "full")
    card = _gguf_embedding_card(card, facts) if facts.pooling else card
    return card, (lacking, context, kv, others, unused)


def _gguf_embedding_card(card: ModelCard, facts: GgufFacts) -> ModelCard:
    """Return the card of an embedding model or a reranker in a GGUF file. Its longest input is
    computed at once, so its context is at most `GGUF_INPUT_TOKENS`. A decoder keeps the KV of one
    such input."""
    tokens = min(card.context_tokens, GGUF_INPUT_TOKENS)
    return card.model_copy(
        update={
            **_of_vectors(facts.vector_width, ranks=facts.ranks),
            "context_tokens": tokens,
            "kv_bytes_fixed": tokens * sum(facts.kv_bytes),
            "layer_kv_fixed": tuple(tokens * size for size in facts.kv_bytes),
        }
    )


def embedding_card(card: ModelCard, settings: EmbeddingModel) -> ModelCard:
    """Return the card of an embedding model or a reranker; `card` is derived from its config.json
    and weights."""
    return card.model_copy(
        update={
            **_of_vectors(settings.dimensions, ranks=settings.ranks),
            "dimension_choices": settings.dimension_choices,
            "dimensions_at_most": settings.width if settings.any_dimensions else 0,
            "context_tokens": min(card.context_tokens, settings.max_tokens),
            "unsplit_because": WHOLE,
        }
    )


def _of_vectors(dimensions: int, *, ranks: bool) -> dict[str, Any]:
    """Return the card entries that all embedding models and rerankers share."""
    return {
        "makes": "reranker" if ranks else "embedding",
        "dimensions": 0 if ranks else dimensions,
        "capabilities": ("rerank",) if ranks else ("embedding",),
        "thinking": False,
        "kv_bytes_per_token": 0,
        "kv_bytes_fixed": 0,
        "layer_kv": (),
        "layer_kv_fixed": (),
        "tensor_sizes": {},
        "fetched_in_parts": False,
        "default_max_tokens": None,
    }


def without_lacking(notes: Notes, adapters: FoundAdapters) -> tuple[Notes, Unfit | None]:
    """Return the settings of a `card.toml` without a default adapter that is missing. Also return
    the notice about missing adapters that the card names."""
    there = {adapter.name for adapter in adapters.cards}
    named = dict.fromkeys((*(notes.adapters or ()), *filter(None, (notes.adapter,))))
    lacking = [name for name in named if name not in there]
    if not lacking:
        return notes, None
    why = f"card.toml names adapters that cannot be loaded: {', '.join(lacking)}"
    unfit = Unfit(
        "no_effect",
        why,
        "put each one into adapters/NAME of the model, or remove it from card.toml",
    )
    return (notes if notes.adapter in there else replace(notes, adapter="")), unfit


def fast_synch(notes: Notes, operator: bool | None) -> dict[str, Any]:
    """Return the card entries about Metal's fast synchronisation: the operator's setting, else that
    of `card.toml`, else off."""
    if operator is not None:
        return {"metal_fast_synch": operator, "metal_fast_synch_by": "node"}
    if notes.metal_fast_synch is not None:
        return {"metal_fast_synch": notes.metal_fast_synch, "metal_fast_synch_by": "card"}
    return {}


def kv_notice(notes: Notes, card: ModelCard, wanted: KvKind) -> Unfit | None:
    """Return a notice if the KV stays in full precision although `card.toml` or the node's settings
    require another format; else None."""
    if card.kv == (notes.kv or wanted):
        return None
    where = f"card.toml: kv = {notes.kv}" if notes.kv else f"[runner] kv = {wanted}"
    way_out = 'to hide this notice, set kv = "full" in its card.toml'
    return Unfit("no_effect", f"{where} has no effect: {card.kv_full_because}", way_out)


def _gguf_backends(notes: Notes) -> tuple[str, ...]:
    """Return the backends that may run the model; a `card.toml` may exclude some."""
    allowed = tuple(tag for tag in notes.compatible_backends if tag.startswith(LLAMA_TAG))
    return allowed or GGUF_BACKENDS


def _other_backends(notes: Notes) -> Unfit | None:
    """Return the notice about backends in `card.toml` that run no GGUF files."""
    others = [tag for tag in notes.compatible_backends if not tag.startswith(LLAMA_TAG)]
    if not others:
        return None
    why = f"card.toml: compatible_backends = {', '.join(others)} has no effect: {ENGINE} runs GGUF"
    return Unfit("no_effect", why, f"name backends of {', '.join(GGUF_BACKENDS)}, or none")


def _unused_adapters() -> Unfit:
    why = f"{FOLDER}/ has no effect: shoal applies adapters to MLX models only"
    return Unfit("no_effect", why, "use the MLX version of the model, or delete the folder")


def _layers(text: Mapping[str, Any]) -> int:
    for name in ("num_hidden_layers", "n_layers", "n_layer", "num_layers"):
        if name in text:
            if not 0 < (count := int(text[name])) <= MAX_LAYERS:
                raise ValueError(f"{name} is {count}; it must be 1 to {MAX_LAYERS}")
            return count
    raise KeyError("num_hidden_layers")


def _context(text: Mapping[str, Any]) -> int:
    names = ("max_position_embeddings", "max_seq_len", "n_positions", "max_sequence_length")
    return layers.first_of(text, *names) or DEFAULT_CONTEXT


def _stored_bytes(config: Mapping[str, Any], tensors: Sequence[Tensor]) -> int:
    """Return the bytes per value of most floating-point tensors on disk; without such tensors, of
    the dtype in the configuration."""
    counts = Counter[int]()
    for tensor in tensors:
        if tensor.dtype in DTYPE_BYTES:
            counts[DTYPE_BYTES[tensor.dtype]] += tensor.count
    if counts:
        return counts.most_common(1)[0][0]
    word = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    return CONFIG_DTYPES.get(word, 2)


def _quant(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("quantization") or config.get("quantization_config") or {}


def source_of(config: Mapping[str, Any]) -> str:
    """Return the model that a quantised one was made from, by its configuration; "" if unknown."""
    source = config.get(MADE_FROM)
    return source if isinstance(source, str) and is_model_id(source) else ""


def _quantization(config: Mapping[str, Any]) -> str:
    quant = _quant(config)
    return f"{int(quant['bits'])}-bit" if "bits" in quant else "none"


def _parameters(config: Mapping[str, Any], tensors: Sequence[Tensor]) -> int:
    """Return the number of parameters. A packed U32 holds 32/bits of them; scales and biases of the
    quantization do not count."""
    bits = int(_quant(config).get("bits") or 0)
    total = 0
    for tensor in tensors:
        if bits and tensor.dtype == "U32":
            total += tensor.count * 32 // bits
        elif not (bits and tensor.name.endswith((".scales", ".biases"))):
            total += tensor.count
    return total


def can_think(template: str) -> bool:
    """Return whether a model with this chat template can think."""
    return any(words in template for words in THINKING_WORDS)


def capabilities_of(template: str) -> tuple[str, ...]:
    """Return the capabilities with which shoal can run the model, under Ollama's names (text only;
    images are not supported)."""
    capabilities = ["completion"]
    if "tools" in template:
        capabilities.append("tools")
    if can_think(template):
        capabilities.append("thinking")
    return tuple(capabilities)
