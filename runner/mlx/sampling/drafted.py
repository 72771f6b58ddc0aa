# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: draws the model's own tokens at all positions of a draft.

Position j is drawn as it would be without drafts if the first j drafted tokens are right. It has
the random key of its own position, and penalties that count those tokens. All positions are drawn
at once, like the rows of a batch. A drafted token is accepted while it is equal. So the kept tokens
are always the model's own, with greedy and with sampled decoding. (Leviathan's and Chen's rejection
sampling keeps the distribution, not the tokens.)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from bus.wire.ids import TokenId
from runner.mlx.sampling.batch_sampler import Allowed, BatchSampler, Drawn, RowDraw

T = TypeVar("T")


def accepted(
    drafted: Sequence[TokenId], verified: Sequence[TokenId], items: Sequence[T]
) -> list[T]:
    """Return the items to keep after one verified draft: 1 to len(drafted) + 1 of them.

    `drafted` is (k,). `verified` is (k + 1,): the model's own token after the row's last token and
    after each drafted one. `items` belong to `verified`, one each. A token is valid while all
    drafted tokens before it equal the model's.
    """
    count = 1
    for guess, own in zip(drafted, verified, strict=False):
        if guess != own:
            break
        count += 1
    return list(items[:count])


@dataclass(frozen=True, slots=True)
class DraftedRow:
    """The sampling state of a row and the tokens of its draft. `allowed`: the tokens that its
    grammar allows at each of len(drafted) + 1 positions; None: it has no grammar."""

    draw: RowDraw
    drafted: Sequence[TokenId]
    allowed: Sequence[NDArray[np.bool_]] | None = None


def draw_drafted(rows: Sequence[DraftedRow], logits: mx.array, vocabulary: int) -> Drawn:
    """Return the rows' own tokens at len(drafted) + 1 positions of each row, one row after the
    other, unevaluated, from logits (positions, vocabulary). The rows' states stay as they are until
    `advance`. A position after a wrong guess has a token of no use."""
    draws: list[RowDraw] = []
    slots: list[int] = []
    masks: list[NDArray[np.bool_]] = []
    for row in rows:
        if row.allowed is not None:
            slots += range(len(draws), len(draws) + len(row.allowed))
            masks += row.allowed
        ahead = copy.copy(row.draw)
        draws.append(copy.copy(ahead))
        for token in row.drafted:
            advance(ahead, [token])
            draws.append(copy.copy(ahead))
    allowed = None
    if slots:
        flags = mx.array(np.stack(masks))  # pyright: ignore[reportArgumentType]
        allowed = Allowed(tuple(slots), flags)
    # A plain step draws as many rows at random as these, so that it truncates them alike.
    alike = max(1, sum(row.draw.draws for row in rows))
    return BatchSampler(draws, vocabulary, alike=alike).draw(logits, allowed)


def advance(draw: RowDraw, tokens: Sequence[TokenId]) -> None:
    """Record that these tokens were generated. The arrays of `draw` are replaced, not changed."""
    draw.position += len(tokens)
    if not tokens:
        return
    at = mx.array(list(tokens))
    if draw.generated is not None:
        draw.generated = draw.generated.at[at].add(1.0)
    if draw.seen is not None:
        seen = mx.array(draw.seen)
        seen[at] = mx.array(True)
        draw.seen = seen
