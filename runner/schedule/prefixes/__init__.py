"""Decides which prefixes are kept, in memory and on disk, and which one serves a prompt best.

Pure: works on tokens, bytes and seconds, never on KV or files.
"""

from runner.schedule.prefixes.chain import BLOCK_TOKENS, TokenChain, kept_apart
from runner.schedule.prefixes.index import PrefixIndex, PrefixMatch
from runner.schedule.prefixes.on_disk import DiskFigures, DiskIndex, DiskMatch

__all__ = [
    "BLOCK_TOKENS",
    "DiskFigures",
    "DiskIndex",
    "DiskMatch",
    "PrefixIndex",
    "PrefixMatch",
    "TokenChain",
    "kept_apart",
]
