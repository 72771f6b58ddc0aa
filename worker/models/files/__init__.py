"""Talks to the disk: what the files of one model's folder say, read within bounds: headers of
safetensors, the configuration, `card.toml`, and where the folder came from. Nothing here looks for
models, and nothing keeps what it read.
"""

from worker.models.files.card_file import CARD_BYTES, Notes, notes_from, read_card, refused
from worker.models.files.families import Families, installed_families
from worker.models.files.headers import (
    INDEX,
    config_in,
    header_of,
    json_object,
    lacking_shards,
    links_to_nothing,
)
from worker.models.files.origin import ORIGIN_FILE, Origin, note_origin, origin_of
from worker.models.files.shared_cards import reconciled
from worker.models.files.tensors import DTYPE_BYTES, Tensor, tensors_in

__all__ = [
    "CARD_BYTES",
    "DTYPE_BYTES",
    "INDEX",
    "ORIGIN_FILE",
    "Families",
    "Notes",
    "Origin",
    "Tensor",
    "config_in",
    "header_of",
    "installed_families",
    "json_object",
    "lacking_shards",
    "links_to_nothing",
    "note_origin",
    "notes_from",
    "origin_of",
    "read_card",
    "reconciled",
    "refused",
    "tensors_in",
]
