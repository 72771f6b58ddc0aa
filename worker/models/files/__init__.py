"""Talks to the disk: reads the files of one model's folder, within limits.

It reads safetensors headers, the configuration, `card.toml`, the folder's origin, and the pieces of
a model that is still being fetched. It also reads `engines.toml`, which has models without folders.
It does not search for models, and does not cache the contents of their files.
"""

from worker.models.files.card_file import notes_in
from worker.models.files.command_engines import CommandEngines, tags_of
from worker.models.files.families import Families, installed_families
from worker.models.files.gguf import gguf_facts_of, gguf_header_of
from worker.models.files.growing import (
    FILES,
    GrowingFiles,
    grown_bytes,
    is_locked,
    sync_folder,
    try_lock,
)
from worker.models.files.headers import (
    INDEX,
    TEMPLATE_FILES,
    config_in,
    header_of,
    json_object,
    lacking_shards,
    links_to_nothing,
    template_in,
)
from worker.models.files.mtp_head import head_marks, with_head
from worker.models.files.origin import ORIGIN_FILE, Origin, note_origin, origin_of
from worker.models.files.shared_cards import reconciled
from worker.models.files.tensors import DTYPE_BYTES, Tensor, tensors_in

__all__ = [
    "DTYPE_BYTES",
    "FILES",
    "INDEX",
    "ORIGIN_FILE",
    "TEMPLATE_FILES",
    "CommandEngines",
    "Families",
    "GrowingFiles",
    "Origin",
    "Tensor",
    "config_in",
    "gguf_facts_of",
    "gguf_header_of",
    "grown_bytes",
    "head_marks",
    "header_of",
    "installed_families",
    "is_locked",
    "json_object",
    "lacking_shards",
    "links_to_nothing",
    "note_origin",
    "notes_in",
    "origin_of",
    "reconciled",
    "sync_folder",
    "tags_of",
    "template_in",
    "tensors_in",
    "try_lock",
    "with_head",
]
