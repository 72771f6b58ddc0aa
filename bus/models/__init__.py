"""Reads the files of models, and the files that operators write: model cards, adapters, embedding
models, GGUF files, KV on disk, tasks and clients. Module `role_plan` derives the roles of models
from node cards.

Several services read these files, so the rules are in this one package. Nothing in it is sent to
other processes: it imports `bus.wire`, and `bus.wire` never imports it. The names below are its
modules and packages. Importing `bus.models` loads none of them: each is loaded when it is imported
itself.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bus.models import (
        block_drafters,
        cards,
        embedding_models,
        embedding_parts,
        gguf,
        held_models,
        kv,
        lora,
        model_folders,
        mtp_heads,
        role_plan,
        tasks,
    )

__all__ = [
    "block_drafters",
    "cards",
    "embedding_models",
    "embedding_parts",
    "gguf",
    "held_models",
    "kv",
    "lora",
    "model_folders",
    "mtp_heads",
    "role_plan",
    "tasks",
]
