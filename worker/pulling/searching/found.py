"""Which models that a hub lists run here, and what its list tells of each.

Pure. A list tells less than a model's files: what a pull finds out later may still refuse one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from bus.wire.embedding_models import is_encoder
from bus.wire.ids import ModelId, is_model_id
from bus.wire.messages.gateways import FoundModel

MLX = "mlx"
SAFETENSORS = "safetensors"
TASKS = {
    "": "text",
    "text-generation": "text",
    "conversational": "text",
    "image-text-to-text": "text",
    "feature-extraction": "embedding",
    "sentence-similarity": "embedding",
}
"""What a hub calls what a model is for, where that is something that runs here."""
WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2,
          "I16": 2, "U16": 2}  # fmt: skip
"""Bytes of a value, by safetensors' names; of all others one."""
WORDS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp64"}
_BITS = re.compile(r"(?i)(?:^|[-_. /])(?:int|q)?([2-8])[-_]?bits?(?=$|[-_. ])")
_FORMAT = re.compile(r"(?i)(?:^|[-_. ])(mxfp4|nvfp4|fp8|awq|gptq)(?=$|[-_. ])")
MOST_BITS = 16
Runs = Callable[[Mapping[str, Any]], bool]
"""Tells whether a language model of this configuration is of a family that runs here."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model as a hub's list has it. `task` is what it is for, `counts` are its values by their
    types, as safetensors calls those."""

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


def found_models(
    listed: Iterable[HubModel], runs: Runs, limit: int
) -> tuple[tuple[FoundModel, ...], int]:
    """Return the first `limit` of the models that run here, those for MLX first, then by downloads;
    and how many do not run here."""
    by_name = {one.name: one for one in listed}
    judged = [_found(one, runs) for one in by_name.values()]
    found = sorted(
        (one for one in judged if one is not None),
        key=lambda one: (not one.for_mlx, -one.downloads, one.model),
    )
    return tuple(found[:limit]), sum(one is None for one in judged)


def _found(one: HubModel, runs: Runs) -> FoundModel | None:
    """Return what is told of a model; None for one that does not run here."""
    for_mlx = MLX in one.tags or one.library.casefold() == MLX
    has_weights = for_mlx or SAFETENSORS in one.tags or bool(one.counts)
    makes = TASKS.get(one.task)
    if not has_weights or makes is None or not is_model_id(one.name):
        return None
    said = one.config.get("model_type")
    family = said if isinstance(said, str) else ""
    is_vectors = makes == "embedding" or is_encoder(family)
    if not is_encoder(family) and not runs(one.config):
        return None
    bits = _bits(one)
    return FoundModel(
        model=ModelId(one.name),
        for_mlx=for_mlx,
        family=family[:100],
        makes="embedding" if is_vectors else "text",
        quantization=_quantization(one, bits)[:100],
        size_bytes=sum(count * WIDTHS.get(kind, 1) for kind, count in one.counts.items()),
        parameters=_parameters(one, bits),
        downloads=max(0, one.downloads),
        likes=max(0, one.likes),
        gated=one.gated,
        changed_at=one.changed_at[:40],
    )


def _quant(one: HubModel) -> Mapping[str, Any]:
    said: object = one.config.get("quantization_config") or one.config.get("quantization")
    return cast(Mapping[str, Any], said) if isinstance(said, dict) else {}


def _bits(one: HubModel) -> int:
    """Return the bits of a weight by the configuration, a tag, or the name; 0 where none says."""
    said: object = _quant(one).get("bits")
    if isinstance(said, int) and 0 < said < MOST_BITS:
        return said
    named = (_BITS.search(text) for text in (*sorted(one.tags), one.name))
    return next((int(found[1]) for found in named if found), 0)


def _quantization(one: HubModel, bits: int) -> str:
    method: object = _quant(one).get("quant_method") or _quant(one).get("mode") or ""
    found = _FORMAT.search(one.name.rpartition("/")[2])
    kind = str(method) if method and method != "affine" else (found[1].lower() if found else "")
    if bits:
        return f"{bits}-bit {kind}".rstrip()
    if kind or not one.counts:
        return kind
    most = max(one.counts, key=lambda kind: one.counts[kind])
    return WORDS.get(most, most.lower())


def _parameters(one: HubModel, bits: int) -> int:
    """Return the count of weights: a U32 holds 32/bits of them; 0 where that is not known."""
    packed = one.counts.get("U32", 0)
    if not packed:
        return sum(one.counts.values())
    return packed * 32 // bits if bits else 0
