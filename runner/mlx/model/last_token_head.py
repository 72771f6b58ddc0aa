# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: computes logits only for the positions from which a token is sampled.

A model projects every position of a prompt onto the vocabulary, but only the last position is
needed. `LastTokenHead` finds the projection of a loaded model (an `lm_head`, or tied embeddings)
and makes it select the needed positions first. If it finds no projection, it selects positions from
the finished logits, at full cost. `narrows` says which of the two happens; a trial at load checks
that the results are right.

It can also keep the hidden states before the projection, from which an MTP head guesses tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn


class LastTokenHead:
    """Selects the needed positions of a forward pass before they are projected onto the vocabulary.
    If `narrows` is False, it selects the same positions from the finished logits instead. `taps`:
    keep the hidden states of each forward pass until `take_hidden`."""

    def __init__(self, model: nn.Module) -> None:
        self.taps = False
        self._hidden: list[mx.array] = []
        self._rows: mx.array | None = None
        self._positions: mx.array | None = None
        self._project: Callable[[mx.array], mx.array] | None = None
        self._embedding = _embedding_of(model)
        self.narrows = self._attach(model)

    @property
    def can_tap(self) -> bool:
        """Return whether the model's embedding and projection were found."""
        return self._project is not None and self._embedding is not None

    def embedded(self, tokens: mx.array) -> mx.array:
        """Return the model's embeddings of tokens, (..., width)."""
        assert self._embedding is not None, "embedded was called although can_tap is False"
        return self._embedding(tokens)

    def projected(self, hidden: mx.array) -> mx.array:
        """Return the logits of hidden states, (..., vocabulary)."""
        assert self._project is not None, "projected was called although can_tap is False"
        return self._project(hidden)

    def take_hidden(self) -> list[mx.array]:
        """Return the hidden states (rows, tokens, width) of the last forward pass, and forget them.
        The list is empty if they were not kept."""
        hidden, self._hidden = self._hidden, []
        return hidden

    def put(self, hidden: list[mx.array]) -> None:
        """Keep the hidden states that a compiled trace of the forward pass returned."""
        self._hidden = hidden

    def logits(
        self, forward: Callable[[], mx.array], rows: list[int], positions: list[int]
    ) -> mx.array:
        """Run `forward`, and return the logits of each row `rows[i]` at position `positions[i]`,
        (len(rows), vocabulary)."""
        row_array, position_array = mx.array(rows), mx.array(positions)
        if not self.narrows:
            return forward()[row_array, position_array]
        self._rows, self._positions = row_array, position_array
        try:
            return forward()[:, -1]
        finally:
            self._rows = self._positions = None

    def _narrowed(self, hidden: mx.array) -> mx.array:
        if self.taps and hidden.ndim == 3:
            self._hidden = [hidden]
        if self._rows is None or self._positions is None or hidden.ndim != 3:
            return hidden
        return hidden[self._rows, self._positions][:, None]

    def _attach(self, model: nn.Module) -> bool:
        heads: list[tuple[str, Any]] = [
            (path, module)
            for path, module in model.named_modules()
            if path.split(".")[-1] == "lm_head"
        ]
        if len(heads) == 1:
            parent: Any = model
            *above, _ = heads[0][0].split(".")
            for name in above:
                parent = parent[name] if isinstance(parent, dict) else parent[int(name)]
            self._project = heads[0][1]
            parent.lm_head = _Narrowing(heads[0][1], self._narrowed)
            return True
        embedding = self._embedding
        if heads or embedding is None:
            return False
        self._project = project = embedding.as_linear
        embedding.as_linear = lambda hidden: project(self._narrowed(hidden))
        return True


def _embedding_of(model: nn.Module) -> Any | None:
    """Return the module that embeds tokens; None if the model has none or several."""
    embeddings = [
        module
        for path, module in model.named_modules()
        if hasattr(module, "as_linear") and path.split(".")[-1].startswith(("embed", "wte"))
    ]
    return embeddings[0] if len(embeddings) == 1 else None


class _Narrowing(nn.Module):
    """A projection layer that first selects positions of its input."""

    def __init__(self, inner: nn.Module, narrowed: Callable[[mx.array], mx.array]) -> None:
        super().__init__()
        self.inner = inner
        self._narrowed = narrowed

    def __call__(self, hidden: mx.array) -> mx.array:
        return self.inner(self._narrowed(hidden))
