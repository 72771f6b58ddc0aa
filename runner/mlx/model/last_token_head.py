# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: projects only the positions that will be sampled.

A model projects every position of a prompt onto the vocabulary, but only the last is used.
`LastTokenHead` finds the projection of a loaded model (an `lm_head`, or tied embeddings) and lets a
forward select the positions first. If none is found, the logits are selected afterwards, at full
cost; `narrows` says which of the two happens, and a test at load time checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn


class LastTokenHead:
    """Selects the needed positions of a forward before they are projected onto the vocabulary.
    Where that is impossible, it selects the same positions of the finished logits."""

    def __init__(self, model: nn.Module) -> None:
        self._rows: mx.array | None = None
        self._positions: mx.array | None = None
        self.narrows = self._attach(model)

    def logits(
        self, forward: Callable[[], mx.array], rows: list[int], positions: list[int]
    ) -> mx.array:
        """Return (len(rows), vocabulary): the logits of row `rows[i]` at `positions[i]` of the
        forward."""
        row_array, position_array = mx.array(rows), mx.array(positions)
        if not self.narrows:
            return forward()[row_array, position_array]
        self._rows, self._positions = row_array, position_array
        try:
            return forward()[:, -1]
        finally:
            self._rows = self._positions = None

    def _narrowed(self, hidden: mx.array) -> mx.array:
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
            parent.lm_head = _Narrowing(heads[0][1], self._narrowed)
            return True
        tied = [
            module
            for path, module in model.named_modules()
            if hasattr(module, "as_linear") and path.split(".")[-1].startswith(("embed", "wte"))
        ]
        if heads or len(tied) != 1:
            return False
        embedding: Any = tied[0]
        project = embedding.as_linear
        embedding.as_linear = lambda hidden: project(self._narrowed(hidden))
        return True


class _Narrowing(nn.Module):
    """A projection layer that first selects positions of its input."""

    def __init__(self, inner: nn.Module, narrowed: Callable[[mx.array], mx.array]) -> None:
        super().__init__()
        self.inner = inner
        self._narrowed = narrowed

    def __call__(self, hidden: mx.array) -> mx.array:
        return self.inner(self._narrowed(hidden))
