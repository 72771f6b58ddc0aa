"""Decides which prefixes are kept, in memory and on disk, and which one serves a prompt best.

Pure: works on tokens, bytes and seconds, never on KV or files.
"""

from bus.models.kv import BLOCK_TOKENS, TokenChain, kept_apart
from runner.schedule.prefixes.index import PrefixIndex, PrefixMatch
from runner.schedule.prefixes.on_disk import DiskFigures, DiskIndex, DiskMatch
from runner.schedule.prefixes.seeking import MoveFigures, RunSeeks

__all__ = [
    "BLOCK_TOKENS",
    "DiskFigures",
    "DiskIndex",
    "DiskMatch",
    "MoveFigures",
    "PrefixIndex",
    "PrefixMatch",
    "RunSeeks",
    "TokenChain",
    "kept_apart",
]
