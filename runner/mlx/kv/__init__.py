"""Talks to MLX: stores the KV of single rows, of batches of rows and of kept prefixes, in memory
and on disk.

A row has its own KV until it decodes; then its KV is in the slab of all decoding rows. A codec
decides in which precision KV is stored. A window keeps only part of a row's KV. All arrays belong
to the engine's thread. In this package a "cache" is the KV of one layer: keys and values of shape
(rows, heads, tokens, width).
"""

from runner.mlx.kv.batch import DecodeBatch, open_draft_step
from runner.mlx.kv.codec import FULL_WIDTH, Codec, FullWidth, Parts, codec_for
from runner.mlx.kv.kv_slab import SlabShape
from runner.mlx.kv.layout import Shape, new_caches
from runner.mlx.kv.padded_batch import GroupKV, GroupShape
from runner.mlx.kv.prefixes import PrefixStore, copy_of, evaluated
from runner.mlx.kv.row_kv import RowKV
from runner.mlx.kv.run_files import RunFiles
from runner.mlx.kv.window import SinkWindow, WindowKV

__all__ = [
    "FULL_WIDTH",
    "Codec",
    "DecodeBatch",
    "FullWidth",
    "GroupKV",
    "GroupShape",
    "Parts",
    "PrefixStore",
    "RowKV",
    "RunFiles",
    "Shape",
    "SinkWindow",
    "SlabShape",
    "WindowKV",
    "codec_for",
    "copy_of",
    "evaluated",
    "new_caches",
    "open_draft_step",
]
