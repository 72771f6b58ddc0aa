# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: draws the model's own tokens at all positions of a draft.

Position j is drawn as it would be without drafts, given that the first j drafted tokens are right:
with the random key of its own position, and with penalties that count those tokens. All positions
are drawn at once, like the rows of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import mlx.core as mx

from bus.wire.ids import TokenId
from runner.mlx.sampling.batch_sampler import BatchSampler, Drawn, RowDraw


def draw_drafted(
    draw: RowDraw, drafted: Sequence[TokenId], logits: mx.array, vocabulary: int
) -> Drawn:
    """Return the tokens of a row at len(drafted) + 1 positions, unevaluated, from logits
    (positions, vocabulary). `draw` stays as it is until `advance`. A position after a wrong guess
    has a token of no use."""
    ahead = copy.copy(draw)
    draws = [copy.copy(ahead)]
    for token in drafted:
        advance(ahead, [token])
        draws.append(copy.copy(ahead))
    return BatchSampler(draws, vocabulary, alike=1).draw(logits)


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
