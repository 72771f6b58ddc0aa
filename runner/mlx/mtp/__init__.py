"""Talks to MLX: guesses tokens with a model's MTP head (multi-token prediction; decision 0107).

The head is one more decoder layer of the model's family. It reads the hidden states that the
model's own forward passes compute anyway. It never changes an answer: its guesses are verified like
those of a draft model. After an error, the head makes no more guesses; the model is not affected.
"""

from runner.mlx.mtp.block import LoadedHead, open_head
from runner.mlx.mtp.guesses import MtpGuesses
from runner.mlx.mtp.hidden import HiddenStates

__all__ = ["HiddenStates", "LoadedHead", "MtpGuesses", "open_head"]
