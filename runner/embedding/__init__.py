"""Serves an embedding model: takes requests of gateways, computes batches, returns vectors.

Pure, except the server and the engine's loop. The server talks to gateways and to the text thread.
Each vector belongs to one input, and the other inputs of its batch do not change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.embedding.batches import Batch, BatchPace, next_batch
from runner.embedding.inputs import InputsReader, InputsText, PreparedInputs
from runner.embedding.open_embedding import OpenEmbedding

if TYPE_CHECKING:
    from runner.embedding.loop import Embedded, EmbeddingLoop
    from runner.embedding.server import EmbeddingServer

__all__ = [
    "Batch",
    "BatchPace",
    "Embedded",
    "EmbeddingLoop",
    "EmbeddingServer",
    "InputsReader",
    "InputsText",
    "OpenEmbedding",
    "PreparedInputs",
    "next_batch",
]

_HOMES = {
    "Embedded": "runner.embedding.loop",
    "EmbeddingLoop": "runner.embedding.loop",
    "EmbeddingServer": "runner.embedding.server",
}
"""Names that come from modules that are not pure, loaded on first use."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
