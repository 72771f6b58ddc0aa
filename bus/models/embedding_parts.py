"""The parts of an embedding model or a reranker, as its files describe them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["bert", "roberta", "decoder"]
"""Kinds of transformer: `bert`; `roberta`, whose positions begin after the padding token's id;
`decoder`, a language model of mlx-lm without its head."""
PoolingMode = Literal["cls", "mean", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]


@dataclass(frozen=True, slots=True)
class DenseStep:
    """A linear layer after the pooling; its weights are in the subfolder `folder`. Those of a
    reranker are with the other weights, where `folder` begins their names."""

    folder: str
    inputs: int
    outputs: int
    has_bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class NormaliseStep:
    """Divide the vector by its length."""


Step = DenseStep | NormaliseStep


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """An embedding model, as its files describe it.

    `pooling`: vectors of these kinds are joined in this order; `steps` follow. A vector has `width`
    numbers and is truncated to `dimensions` by default. A request may choose one of
    `dimension_choices`, or with `any_dimensions` any count up to `width`. An input has at most
    `max_tokens`, special tokens included. `prompt` precedes each text. `ranks`: the model is a
    reranker, whose vector is the score of a document.
    """

    architecture: Architecture
    family: str
    pooling: tuple[PoolingMode, ...]
    steps: tuple[Step, ...]
    width: int
    dimensions: int
    max_tokens: int
    dimension_choices: tuple[int, ...] = ()
    any_dimensions: bool = False
    prompt: str = ""
    lower_case: bool = False
    ranks: bool = False

    @property
    def normalises(self) -> bool:
        """Return whether the model normalises its vectors to length 1."""
        return bool(self.steps) and isinstance(self.steps[-1], NormaliseStep)

    def allows(self, dimensions: int) -> bool:
        """Return whether a request may have vectors of this size."""
        listed = dimensions in (*self.dimension_choices, self.dimensions)
        return listed or (self.any_dimensions and 1 <= dimensions <= self.width)
