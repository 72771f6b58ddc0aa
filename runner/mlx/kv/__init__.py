"""Talks to MLX: the KV of rows: single, in padded batches, in slabs, and as kept prefixes, each in
its codec's precision; or a window of it.

All arrays belong to the engine's thread. A model's cache is here one layer of KV with keys and
values of (rows, heads, tokens, width).
"""

from runner.mlx.kv.batch import DecodeBatch
from runner.mlx.kv.codec import FULL_WIDTH, Codec, FullWidth, Parts, codec_for
from runner.mlx.kv.kv_slab import SlabShape
from runner.mlx.kv.padded_batch import GroupKV, GroupShape
from runner.mlx.kv.prefixes import PrefixStore, copy_of, evaluated
from runner.mlx.kv.row_kv import RowKV
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
    "SinkWindow",
    "SlabShape",
    "WindowKV",
    "codec_for",
    "copy_of",
    "evaluated",
]
