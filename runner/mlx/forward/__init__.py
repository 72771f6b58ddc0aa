"""Talks to MLX: runs the forward passes of one model, for prompts and for batches of decoding rows,
with the proposers that guess tokens for these rows.

All calls come from the engine's thread. Only the engine enters this room.
"""

from runner.mlx.forward.forward import Forward, try_model
from runner.mlx.forward.microbatch import FULL_ROWS, microbatch_for
from runner.mlx.forward.proposers import MtpSource, ProposerSource, with_proposer

__all__ = [
    "FULL_ROWS",
    "Forward",
    "MtpSource",
    "ProposerSource",
    "microbatch_for",
    "try_model",
    "with_proposer",
]
