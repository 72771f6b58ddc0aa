"""Select the listed models of a hub that run here, and extract their facts.

Pure. A hub's list has fewer facts than a model's files, so a later pull can still refuse a model
that was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from bus.models.embedding_models import is_encoder
from bus.wire.ids import ModelId, is_model_id
from bus.wire.messages.gateways import MOST_QUANTIZATIONS, FoundModel
from worker.pulling.choosing import gguf_offers

MLX = "mlx"
SAFETENSORS = "safetensors"
GGUF = "gguf"
TASKS = {
    "": "text",
    "text-generation": "text",
    "conversational": "text",
    "image-text-to-text": "text",
    "feature-extraction": "embedding",
    "sentence-similarity": "embedding",
}
"""The hub's names of the tasks that shoal serves, each with shoal's name."""
WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2,
          "I16": 2, "U16": 2}  # fmt: skip
"""Bytes per value, by safetensors type names; other types have one byte."""
WORDS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp64"}
_BITS = re.compile(r"(?i)(?:^|[-_. /])(?:int|q)?([2-8])[-_]?bits?(?=$|[-_. ])")
_FORMAT = re.compile(r"(?i)(?:^|[-_. ])(mxfp4|nvfp4|fp8|awq|gptq)(?=$|[-_. ])")
MOST_BITS = 16
Runs = Callable[[Mapping[str, Any]], bool]
"""Returns whether a language model with this configuration belongs to a supported family."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model in a hub's list. `task` is its purpose; `counts` are its numbers of values, by
    safetensors type. `files` are the paths of its files, `gguf` the facts of its GGUF files."""

    name: str
    tags: frozenset[str]
    library: str
    task: str
    config: Mapping[str, Any]
    counts: Mapping[str, int]
    downloads: int
    likes: int
    gated: bool
    changed_at: str
    files: tuple[str, ...] = ()
    gguf: Mapping[str, Any] = field(default_factory=dict[str, Any])


def found_models(
    listed: Iterable[HubModel], runs: Runs, limit: int
) -> tuple[tuple[FoundModel, ...], int]:
    """Return the first `limit` models that run here, those for MLX first, then by downloads; and
    the number of models that do not run here."""
    by_name = {model.name: model for model in listed}
    judged = [_judge(model, runs) for model in by_name.values()]
    runnable = sorted(
        (model for model in judged if model is not None),
        key=lambda model: (not model.for_mlx, -model.downloads, model.model),
    )
    return tuple(runnable[:limit]), sum(model is None for model in judged)


def _judge(model: HubModel, runs: Runs) -> FoundModel | None:
    """Return the facts about a model; None if it does not run here."""
    for_mlx = MLX in model.tags or model.library.casefold() == MLX
    has_weights = for_mlx or SAFETENSORS in model.tags or bool(model.counts)
    offers = gguf_offers(dict.fromkeys(model.files, 0))
    makes = TASKS.get(model.task)
    if not (has_weights or offers) or makes is None or not is_model_id(model.name):
        return None
    config = model.config if has_weights else {"model_type": model.gguf.get("architecture")}
    model_type = config.get("model_type")
    family = model_type if isinstance(model_type, str) else ""
    is_vectors = makes == "embedding" or is_encoder(family)
    if not has_weights and is_vectors:
        return None  # shoal runs embedding models in MLX only
    if has_weights and not is_encoder(family) and not runs(config):
        return None
    bits = _bits(model)
    return FoundModel(
        model=ModelId(model.name),
        for_mlx=for_mlx,
        family=family[:100],
        makes="embedding" if is_vectors else "text",
        quantization=_quantization(model, bits)[:100],
        size_bytes=sum(count * WIDTHS.get(kind, 1) for kind, count in model.counts.items()),
        parameters=_parameters(model, bits) or _count(model.gguf.get("total")),
        downloads=max(0, model.downloads),
        likes=max(0, model.likes),
        gated=model.gated,
        changed_at=model.changed_at[:40],
        quantizations=tuple(
            dict.fromkeys(offer.quantization for offer in offers if offer.quantization)
        )[:MOST_QUANTIZATIONS],
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _quant(model: HubModel) -> Mapping[str, Any]:
    settings: object = model.config.get("quantization_config") or model.config.get("quantization")
    return cast(Mapping[str, Any], settings) if isinstance(settings, dict) else {}


def _bits(model: HubModel) -> int:
    """Return the bits per weight from the configuration, a tag, or the name; 0 if unknown."""
    bits: object = _quant(model).get("bits")
    if isinstance(bits, int) and 0 < bits < MOST_BITS:
        return bits
    named = (_BITS.search(text) for text in (*sorted(model.tags), model.name))
    return next((int(match[1]) for match in named if match), 0)


def _quantization(model: HubModel, bits: int) -> str:
    method: object = _quant(model).get("quant_method") or _quant(model).get("mode") or ""
    match = _FORMAT.search(model.name.rpartition("/")[2])
    kind = str(method) if method and method != "affine" else (match[1].lower() if match else "")
    if bits:
        return f"{bits}-bit {kind}".rstrip()
    if kind or not model.counts:
        return kind
    most = max(model.counts, key=lambda kind: model.counts[kind])
    return WORDS.get(most, most.lower())


def _parameters(model: HubModel, bits: int) -> int:
    """Return the count of weights: a U32 holds 32/bits of them; 0 if unknown."""
    packed = model.counts.get("U32", 0)
    if not packed:
        return sum(model.counts.values())
    return packed * 32 // bits if bits else 0
