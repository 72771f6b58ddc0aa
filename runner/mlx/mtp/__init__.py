"""Talks to MLX: guesses tokens with the model's head for multi-token prediction (decision 0107).

The head is one more decoder layer of the model's family. It reads the hidden states that the
model's own forwards compute anyway. It never changes a text: its guesses are verified like those of
a draft model, and an error ends its guesses alone.
"""

from runner.mlx.mtp.block import LoadedHead, open_head
from runner.mlx.mtp.guesses import MtpGuesses
from runner.mlx.mtp.hidden import HiddenStates

__all__ = ["HiddenStates", "LoadedHead", "MtpGuesses", "open_head"]
