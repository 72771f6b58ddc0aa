# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: draws the model's own tokens at all positions of a draft.

The token at position j of a draft is drawn as it would be without drafts if the first j drafted
tokens were right. It is drawn with the random key of its own position, and with penalties that
count these tokens. All positions are drawn at once, like the rows of a batch. Drafted tokens are
accepted as long as they equal the model's own tokens. So an answer has only the model's own tokens,
with greedy and with sampled decoding. (The rejection sampling of Leviathan and Chen keeps the
distribution, not the tokens.)
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
    """Return the items of the valid tokens of a verified draft: 1 to len(drafted) + 1 items.

    `drafted` is (k,). `verified` is (k + 1,): the model's own token after the row's last token, and
    after each drafted token. `items` has one item for each token in `verified`. Such a token is
    valid if all drafted tokens before it equal the model's own tokens.
    """
    count = 1
    for guess, own in zip(drafted, verified, strict=False):
        if guess != own:
            break
        count += 1
    return list(items[:count])


@dataclass(frozen=True, slots=True)
class DraftedRow:
    """A row's sampling state and the tokens of its draft. `allowed`: which tokens the row's grammar
    allows at each of len(drafted) + 1 positions; None: the row has no grammar."""

    draw: RowDraw
    drafted: Sequence[TokenId]
    allowed: Sequence[NDArray[np.bool_]] | None = None


def draw_drafted(rows: Sequence[DraftedRow], logits: mx.array, vocabulary: int) -> Drawn:
    """Draw the model's own tokens at len(drafted) + 1 positions of each row, unevaluated. The
    positions of all rows follow each other in the result, as in `logits`, (positions, vocabulary).
    A token after a wrong guess is useless. The rows' sampling states do not change before
    `advance`."""
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
    # Truncation depends on the number of random rows; a plain step would have this many.
    alike = max(1, sum(row.draw.draws for row in rows))
    return BatchSampler(draws, vocabulary, alike=alike).draw(logits, allowed)


def advance(draw: RowDraw, tokens: Sequence[TokenId]) -> None:
    """Record in a row's sampling state that these tokens were generated. The arrays of `draw` are
    replaced, not changed, because copies of `draw` share them."""
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
