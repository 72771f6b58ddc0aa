"""Talks to MLX: guesses tokens with a model's own networks: its MTP head (multi-token prediction;
decision 0107) or its block drafter (0111).

An MTP head is one more decoder layer of the model's family. A block drafter guesses several tokens
at once. Both read the hidden states that the model's own forward passes compute anyway. They never
change an answer: their guesses are verified like those of a draft model. After an error, they make
no more guesses; the model is not affected.
"""

from runner.mlx.mtp.block import LoadedHead, open_head
from runner.mlx.mtp.block_files import LoadedBlock, open_block
from runner.mlx.mtp.block_guesses import BlockGuesses
from runner.mlx.mtp.guesses import MtpGuesses
from runner.mlx.mtp.hidden import HiddenStates

__all__ = [
    "BlockGuesses",
    "HiddenStates",
    "LoadedBlock",
    "LoadedHead",
    "MtpGuesses",
    "open_block",
    "open_head",
]
