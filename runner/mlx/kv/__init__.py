"""Talks to MLX: stores the KV of rows: alone, in a padded batch or in a slab of all decoding rows,
or as a prefix, also on disk.

The codec decides the precision. A window keeps only part of a row's KV. All arrays belong to the
engine's thread. In this package one "cache" is one layer of KV: keys and values of shape (rows,
heads, tokens, width).
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
