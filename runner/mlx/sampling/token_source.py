# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: gets the next token of each row, by sampling or from the lead of the group.

The lead of a group, or an engine without a group, samples tokens and applies grammars. For a row
with a grammar, it first waits for the row's last token. A follower receives the tokens from the
lead.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from bus.wire.ids import TokenId
from runner.engine import RowFailure
from runner.mlx.ranks.comm import Comm
from runner.mlx.sampling.batch_sampler import Allowed, BatchSampler, Drawn, RowDraw
from runner.mlx.sampling.drafted import DraftedRow, draw_drafted
from runner.mlx.sampling.pending_step import DrawnRows, PendingStep
from runner.mlx.sampling.row import EngineRow
from runner.text import DeadEnd

Rows = Sequence[EngineRow | None]


@dataclass(frozen=True, slots=True)
class RowDraft:
    """The drafted tokens of a row that a step verifies, and the row's slot in the batch. The row's
    grammar must allow these tokens."""

    slot: int
    row: EngineRow
    tokens: Sequence[TokenId]


def drawn_drafts(drafts: Sequence[RowDraft], logits: mx.array, vocabulary: int) -> list[DrawnRows]:
    """Draw the model's own tokens at all positions of the rows' drafts, all at once, from logits
    (slots, positions, vocabulary). Raises DeadEnd if the grammar of a row allows no token."""
    columns = logits.shape[1]
    rows: list[DraftedRow] = []
    places: list[int] = []
    for draft in drafts:
        tokens, allowed = draft.tokens, None
        if draft.row.matcher is not None:
            allowed = draft.row.matcher.allowed_along(tokens)
            tokens = tokens[: len(allowed) - 1]
        rows.append(DraftedRow(draft.row.draw, tokens, allowed))
        first = draft.slot * columns
        places += range(first, first + 1 + len(tokens))
    flat = logits.reshape(-1, vocabulary)
    if places != list(range(len(flat))):
        flat = flat[mx.array(places)]
    drawn = draw_drafted(rows, flat, vocabulary)
    drawn_rows: list[DrawnRows] = []
    first = 0
    for draft, row in zip(drafts, rows, strict=True):
        after = first + 1 + len(row.drafted)
        top = draft.row.spec.logprobs or 0
        listed = tuple((at, draft.row.name, top) for at in range(first, after))
        drawn_rows.append(DrawnRows(drawn, listed, tuple(row.drafted)))
        first = after
    return drawn_rows


class SamplingSource:
    """Samples tokens on this rank. If sampling fails for a row, only this row fails."""

    def __init__(self, vocabulary: int, comm: Comm) -> None:
        self._vocabulary = vocabulary
        self._comm = comm
        self._sampler: BatchSampler | None = None

    def draw(self, rows: Rows, out: mx.array, pending: PendingStep) -> Drawn:
        """Return one sampled token per row, and write the sampling state back to the rows at
        once."""
        allowed = self._allowed(rows, pending, after=out)
        try:
            sampler = self._sampler_of(rows)
            drawn = sampler.draw(out, allowed)
            sampler.close()
        except Exception:
            drawn = self._draw_apart(rows, out, allowed, pending)
        return drawn if self._comm.size == 1 else self._sent(drawn)

    def draw_again(self, rows: Rows, out: mx.array, pending: PendingStep) -> Drawn:
        """Return one sampled token per row. `rows` must be the same as in the last call, unless
        `write_back` was called since. Until then, this object keeps the rows' sampling state."""
        allowed = self._allowed(rows, pending, after=out)
        try:
            if self._sampler is None:
                self._sampler = self._sampler_of(rows)
            drawn = self._sampler.draw(out, allowed)
        except Exception:
            self.write_back()
            drawn = self._draw_apart(rows, out, allowed, pending)
        return drawn if self._comm.size == 1 else self._sent(drawn)

    def draw_drafted(
        self, drafts: Sequence[RowDraft], logits: mx.array, pending: PendingStep
    ) -> list[DrawnRows]:
        """Return the model's own tokens at all positions of the rows' drafts, from logits (slots,
        positions, vocabulary). If sampling fails for a row, the row fails and is left out.
        Positions at which the row's grammar allows no token are left out too."""
        self.write_back()
        if any(draft.row.matcher is not None for draft in drafts):
            self._comm.submit([logits])
        return self._drawn_drafts(drafts, logits, pending)

    def _drawn_drafts(
        self, drafts: Sequence[RowDraft], logits: mx.array, pending: PendingStep
    ) -> list[DrawnRows]:
        try:
            return drawn_drafts(drafts, logits, self._vocabulary)
        except Exception as error:
            if len(drafts) > 1:
                apart = [self._drawn_drafts([draft], logits, pending) for draft in drafts]
                return [drawn for drawn_rows in apart for drawn in drawn_rows]
            what = (
                "grammar: " if isinstance(error, DeadEnd) else f"sampling: {type(error).__name__}: "
            )
            failures = (
                RowFailure(draft.row.name, "internal", f"{what}{error}") for draft in drafts
            )
            pending.failures.extend(failures)
            return []

    def write_back(self) -> None:
        """Write the token counts (for the penalties) that `draw_again` keeps back to its rows."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def _sampler_of(self, rows: Rows) -> BatchSampler:
        return BatchSampler(
            [row.draw if row is not None else None for row in rows], self._vocabulary
        )

    def _sent(self, drawn: Drawn) -> Drawn:
        return replace(drawn, tokens=self._comm.send_tokens(drawn.tokens))

    def _allowed(self, rows: Rows, pending: PendingStep, after: mx.array) -> Allowed | None:
        """Return the tokens that grammars allow next; None if no row has a grammar.

        Submits `after` (the logits) to the device first, so that the device computes while this
        waits for the last tokens of rows with a grammar. A row whose grammar cannot continue fails.
        """
        bound = [
            (slot, row, row.matcher)
            for slot, row in enumerate(rows)
            if row is not None and row.matcher is not None
        ]
        if not bound:
            return None
        self._comm.submit([after])
        masks: list[NDArray[np.bool_]] = []
        slots: list[int] = []
        for slot, row, matcher in bound:
            try:
                if row.unread is not None:
                    self._comm.wait_for([row.unread[0]])
                row.read_token()
                masks.append(matcher.allowed())
                slots.append(slot)
            except DeadEnd as error:
                pending.failures.append(RowFailure(row.name, "internal", f"grammar: {error}"))
        if not slots:
            return None
        tokens = mx.array(np.stack(masks))  # pyright: ignore[reportArgumentType]
        return Allowed(tuple(slots), tokens)

    def _draw_apart(
        self, rows: Rows, logits: mx.array, allowed: Allowed | None, pending: PendingStep
    ) -> Drawn:
        """After an error in sampling the batch, try each row alone. Rows that cause an error fail;
        all other rows are then sampled together."""
        sound: list[RowDraw | None] = []
        for slot, row in enumerate(rows):
            try:
                trial = copy.copy(row.draw) if row is not None else None
                BatchSampler([trial], self._vocabulary).draw(logits[slot : slot + 1])
                sound.append(row.draw if row is not None else None)
            except Exception as error:
                sound.append(None)
                if row is not None:
                    message = f"sampling: {type(error).__name__}: {error}"
                    pending.failures.append(RowFailure(row.name, "internal", message))
        sampler = BatchSampler(sound, self._vocabulary)
        drawn = sampler.draw(logits, allowed)
        sampler.close()
        return drawn


class ReceivingSource:
    """Receives the tokens that the lead sampled."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def draw(self, rows: Rows, out: mx.array, pending: PendingStep) -> Drawn:
        """Return the lead's tokens. The caller must pass them to `Comm.await_tokens` before it
        waits for them."""
        for row in rows:
            if row is not None:
                row.draw.position += 1
        return Drawn(self._comm.recv_tokens(len(rows), out))

    draw_again = draw

    def draw_drafted(
        self, drafts: Sequence[RowDraft], logits: mx.array, pending: PendingStep
    ) -> list[DrawnRows]:
        """Fail the rows: no group verifies drafts."""
        message = "the plan has a draft, but the ranks of a group cannot verify drafts"
        failures = (RowFailure(draft.row.name, "internal", message) for draft in drafts)
        pending.failures.extend(failures)
        return []

    def write_back(self) -> None:
        """Do nothing: a follower's rows have no sampling state."""


TokenSource = SamplingSource | ReceivingSource
"""Returns one token per row, unevaluated, after a forward pass with the output `out`. On a rank
that samples, `out` is logits, (rows, vocabulary). None among the rows is a hole, whose token is not
read. `draw` can be called with any rows. `draw_again` needs the same rows as in the last call;
before the rows change, `write_back` must be called."""
