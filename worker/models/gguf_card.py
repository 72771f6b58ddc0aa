"""Talks to the disk: makes the model card of a folder with one GGUF file.

The file's header has all that placement needs. llama-server runs the model on one node, with the
weights as they are in the file. Settings of a `card.toml` that only MLX can follow get a notice.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from bus.models.cards import Notes
from bus.models.gguf import (
    DTYPE,
    ENGINE,
    LLAMA_TAG,
    BadGguf,
    CutGguf,
    GgufFacts,
    gguf_facts,
    read_header,
)
from bus.models.lora import FOLDER
from bus.wire.cards import ModelCard
from bus.wire.ids import ModelId
from worker.models.files import refuse_pointer
from worker.models.folders import Found
from worker.models.model_card import (
    FoundAdapters,
    can_think,
    capabilities_of,
    kv_notice,
    no_more_context,
    without_lacking,
)
from worker.models.passed_over import Unfit, UnfitModel

BACKENDS = tuple(f"{LLAMA_TAG}{name}" for name in ("cpu", "cuda", "vulkan", "rocm", "metal"))
"""Tags of the backends that run GGUF files; this version announces the first of them only."""
WHOLE = f"{ENGINE} runs a model on one node"
KV_IN_FULL = f"{ENGINE} keeps its KV in 16 bits"
ANEW = "download it again, or use another quantisation of the model"


def gguf_card(entry: Found, file: str, notes: Notes) -> tuple[ModelCard, tuple[Unfit | None, ...]]:
    """Return the card of a folder's model, whose weights are in `file`, and the notices about its
    `card.toml` (`notes`). Raises OSError, UnfitModel."""
    path = entry.path / file
    facts, digest = read_facts(path)
    notes, lacking = without_lacking(notes, FoundAdapters())
    stat, model = path.stat(), ModelId(entry.name)
    thinks = can_think(facts.template)
    card = ModelCard(
        model=model,
        path=str(entry.path),
        family=facts.architecture,
        layers=facts.layers,
        weights_bytes=facts.weights_bytes,
        size_bytes=stat.st_size,
        kv_bytes_per_token=sum(facts.kv_bytes),
        context_tokens=min(facts.context_tokens, notes.context_tokens or facts.context_tokens),
        vocabulary=facts.vocabulary,
        quantization=facts.quantization,
        dtype=DTYPE,
        parameters=facts.parameters,
        digest=digest,
        modified_at_s=int(stat.st_mtime),
        capabilities=capabilities_of(facts.template),
        keep_alive_s=notes.keep_alive_s,
        default_max_tokens=notes.default_max_tokens,
        thinking=thinks if notes.thinking_default is None else notes.thinking_default,
        layer_kv=facts.kv_bytes,
        unsplit_because=WHOLE,
        compatible_backends=_backends(notes),
        backend_preference=notes.backend_preference,
        aliases=notes.aliases,
        defaults=notes.defaults(model, can_think=thinks),
        noted=notes.said,
        pin=notes.pin,
        memory_bytes=notes.memory_bytes,
        tool_parser=notes.tool_parser,
        reasoning_parser=notes.reasoning_parser,
        special_tokens_in_messages=notes.special_tokens_in_messages,
        kv_value_bytes=2,
        kv_full_because=KV_IN_FULL,
    )
    kv = kv_notice(notes, card, "full")
    return card, (lacking, no_more_context(notes, card), kv, _unused(entry))


def read_facts(path: Path) -> tuple[GgufFacts, str]:
    """Return the facts of a file's header and the digest of the header. Raises OSError,
    UnfitModel."""
    refuse_pointer(path)
    try:
        with open(path, "rb") as file:
            header = read_header(file, os.fstat(file.fileno()).st_size)
            file.seek(0)
            digest = sha256(file.read(header.data_at)).hexdigest()
        return gguf_facts(header), digest
    except CutGguf as error:
        raise UnfitModel("cut", f"{path.name} cannot be used: {error}", ANEW) from error
    except BadGguf as error:
        raise UnfitModel("bad_weights", f"{path.name} cannot be used: {error}", ANEW) from error


def _backends(notes: Notes) -> tuple[str, ...]:
    """Return the backends that may run the model; a `card.toml` may exclude some."""
    allowed = tuple(tag for tag in notes.compatible_backends if tag.startswith(LLAMA_TAG))
    return allowed or BACKENDS


def _unused(entry: Found) -> Unfit | None:
    """Return the notice about adapters beside the file; None without any."""
    if FOLDER not in entry.entries:
        return None
    why = f"{FOLDER}/ has no effect: shoal applies adapters to MLX models only"
    return Unfit("no_effect", why, "use the MLX version of the model, or delete the folder")
