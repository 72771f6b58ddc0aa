# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: which token each row says next, here or at the lead of the group.

The lead of a group, or an engine alone, samples; what grammars allow it knows from the tokens
that it waits for. A follower takes the lead's choice: it knows neither sampling nor grammars.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from runner.engine import RowFailure
from runner.mlx.ranks.comm import Company
from runner.mlx.sampling.draws import Allowed, Drawn, RowDraw, Sampler
from runner.mlx.sampling.grammar_mask import DeadEnd
from runner.mlx.sampling.pending_step import Outcome
from runner.mlx.sampling.row import EngineRow

Rows = Sequence[EngineRow | None]


class Chooser(Protocol):
    """One token per row from a forward's output. None among the rows is a hole, whose token
    nobody reads."""

    def choose(self, rows: Rows, out: mx.array, outcome: Outcome) -> Drawn:
        """For rows that may be others next time."""
        ...

    def choose_again(self, rows: Rows, out: mx.array, outcome: Outcome) -> Drawn:
        """For the same rows as last time, until `settle`."""
        ...

    def settle(self) -> None:
        """The rows are about to change: give them their own state back."""
        ...


class LeadingChooser:
    """Samples. Whatever is the matter with a row, that row alone fails."""

    def __init__(self, vocabulary: int, company: Company | None) -> None:
        self._vocabulary = vocabulary
        self._company = company
        self._sampler: Sampler | None = None

    def choose(self, rows: Rows, out: mx.array, outcome: Outcome) -> Drawn:
        allowed = self._allowed(rows, outcome, after=out)
        try:
            sampler = self._sampler_of(rows)
            drawn = sampler.draw(out, allowed)
            sampler.close()
        except Exception:
            drawn = self._draw_apart(rows, out, allowed, outcome)
        return self._shared(drawn)

    def choose_again(self, rows: Rows, out: mx.array, outcome: Outcome) -> Drawn:
        allowed = self._allowed(rows, outcome, after=out)
        try:
            if self._sampler is None:
                self._sampler = self._sampler_of(rows)
            drawn = self._sampler.draw(out, allowed)
        except Exception:
            self.settle()
            drawn = self._draw_apart(rows, out, allowed, outcome)
        return self._shared(drawn)

    def settle(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    def _sampler_of(self, rows: Rows) -> Sampler:
        return Sampler([row.draw if row is not None else None for row in rows], self._vocabulary)

    def _shared(self, drawn: Drawn) -> Drawn:
        if self._company is None:
            return drawn
        return replace(drawn, tokens=self._company.share(drawn.tokens))

    def _allowed(self, rows: Rows, outcome: Outcome, after: mx.array) -> Allowed | None:
        """What grammars allow next; None when no row has a grammar.

        Waits for the last tokens of such rows, after starting on `after`. A row whose
        grammar has come to a dead end fails.
        """
        bound = [
            (slot, row, row.matcher)
            for slot, row in enumerate(rows)
            if row is not None and row.matcher is not None
        ]
        if not bound:
            return None
        if self._company is None:
            mx.async_eval(after)
        else:
            self._company.launch()
            self._company.give([after])
        masks: list[NDArray[np.bool_]] = []
        slots: list[int] = []
        for slot, row, matcher in bound:
            try:
                row.read_token()
                masks.append(matcher.allowed())
                slots.append(slot)
            except DeadEnd as error:
                outcome.failures.append(RowFailure(row.name, "internal", f"grammar: {error}"))
        if not slots:
            return None
        tokens = mx.array(np.stack(masks))  # pyright: ignore[reportArgumentType]
        return Allowed(tuple(slots), tokens)

    def _draw_apart(
        self, rows: Rows, logits: mx.array, allowed: Allowed | None, outcome: Outcome
    ) -> Drawn:
        """One of the rows cannot be drawn: find out which, and let it alone fail."""
        sound: list[RowDraw | None] = []
        for slot, row in enumerate(rows):
            try:
                trial = copy.copy(row.draw) if row is not None else None
                Sampler([trial], self._vocabulary).draw(logits[slot : slot + 1])
                sound.append(row.draw if row is not None else None)
            except Exception as error:
                sound.append(None)
                if row is not None:
                    message = f"sampling: {type(error).__name__}: {error}"
                    outcome.failures.append(RowFailure(row.name, "internal", message))
        sampler = Sampler(sound, self._vocabulary)
        drawn = sampler.draw(logits, allowed)
        sampler.close()
        return drawn


class FollowingChooser:
    """Takes what the lead has sampled."""

    def __init__(self, company: Company) -> None:
        self._company = company

    def choose(self, rows: Rows, out: mx.array, outcome: Outcome) -> Drawn:
        for row in rows:
            if row is not None:
                row.draw.position += 1
        return Drawn(self._company.hear(len(rows), out))

    def choose_again(self, rows: Rows, out: mx.array, outcome: Outcome) -> Drawn:
        return self.choose(rows, out, outcome)

    def settle(self) -> None:
        return
