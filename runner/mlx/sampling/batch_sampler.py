# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `eval`, `state` and their kin untyped)
"""Talks to MLX: samples one token per row from a step's logits, on the device.

A `BatchSampler` is made for a fixed set of rows, one per slot. Each operation is done at once for
all rows that need it: bias, penalties, grammar mask, temperature, truncation, random draw. For
greedy rows without any of these, one argmax is enough. A draw adds Gumbel noise whose random key
depends only on (seed, position), so a row's tokens do not depend on the other rows of the batch.

Penalties need the counts of earlier tokens. These are on the device, and the sampled token updates
them there. So penalties are exact although the host is one step behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.mlx.sampling.rng import key_words
from runner.mlx.sampling.truncation import Cuts, Truncation


@dataclass(slots=True)
class RowDraw:
    """Sampling settings and state of one row.

    `position` is the index of the next token in the row. `top`: how many likeliest tokens to list;
    None: no log-probabilities. `generated`, (vocabulary,), counts output tokens; `seen` marks all
    tokens of the row. Both exist only if penalties need them. The end tokens `held_ends` are not
    drawn before `position` reaches `held_until`. `forced` replaces the next drawn token.
    """

    sampling: Sampling
    seed: int
    position: int
    top: int | None = None
    generated: mx.array | None = None
    seen: mx.array | None = None
    held_ends: frozenset[int] = frozenset()
    held_until: int = 0
    forced: TokenId | None = None

    @property
    def holds(self) -> bool:
        """Return whether the row is too short to end, so that it must not draw an end token."""
        return self.position < self.held_until and bool(self.held_ends)

    @property
    def counts(self) -> bool:
        """Return whether output tokens are counted, for the frequency and presence penalties."""
        return self.sampling.frequency_penalty != 0.0 or self.sampling.presence_penalty != 0.0

    @property
    def repeats(self) -> bool:
        """Return whether seen tokens are marked, for the repetition penalty."""
        return self.sampling.repetition_penalty != 1.0

    @property
    def is_plain(self) -> bool:
        """Return whether only the model's likeliest token is wanted."""
        changes = self.draws or self.counts or self.repeats or self.sampling.logit_bias
        return not changes and self.top is None

    @property
    def draws(self) -> bool:
        """Return whether the row draws tokens at random; otherwise it takes the likeliest one."""
        return self.sampling.temperature > 0.0


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that the rows in `slots` may draw, for example because of a grammar: `tokens`,
    (len(slots), vocabulary), is true for each allowed token. Other rows may draw any token."""

    slots: tuple[int, ...]
    tokens: mx.array


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens that were drawn in a step, one per slot. For the slots in `listed`: `chosen` are
    their log-probabilities; `top_ids` and `top_logprobs` are the likeliest tokens, if requested."""

    tokens: mx.array
    listed: tuple[int, ...] = ()
    chosen: mx.array | None = None
    top_ids: mx.array | None = None
    top_logprobs: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """Return all arrays of this object, the tokens first."""
        maybe = (self.tokens, self.chosen, self.top_ids, self.top_logprobs)
        return [array for array in maybe if array is not None]


@dataclass(frozen=True, slots=True)
class Listing:
    """Log-probabilities of one token per row, (rows,), and of each row's k likeliest tokens, (rows,
    k), likeliest first; None if k is 0."""

    chosen: mx.array
    top_ids: mx.array | None = None
    top_logprobs: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        maybe = (self.chosen, self.top_ids, self.top_logprobs)
        return [array for array in maybe if array is not None]


def listing_of(rows: mx.array, tokens: mx.array, most: int) -> Listing:
    """Return the log-probabilities of `tokens` (one per row) and of each row's `most` likeliest
    tokens, unevaluated, from float32 logits (rows, vocabulary). Equal tokens have equal values."""
    total = mx.logsumexp(rows, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(rows, tokens[:, None], axis=-1) - total
    most = min(most, rows.shape[-1])
    if most == 0:
        return Listing(chosen[:, 0])
    if most == 1:
        top_ids = mx.argmax(rows, axis=-1, keepdims=True)
        values = mx.take_along_axis(rows, top_ids, axis=-1)
        return Listing(chosen[:, 0], top_ids.astype(mx.int32), values - total)
    best = mx.argpartition(-rows, most - 1, axis=-1)[:, :most]
    values = mx.take_along_axis(rows, best, axis=-1)
    order = mx.argsort(-values, axis=-1)
    top_ids = mx.take_along_axis(best, order, axis=-1).astype(mx.int32)
    top_logprobs = mx.take_along_axis(values, order, axis=-1) - total
    return Listing(chosen[:, 0], top_ids, top_logprobs)


def start_draw(
    sampling: Sampling,
    *,
    seed: int,
    tokens: Sequence[TokenId],
    made: int,
    top: int | None,
    vocabulary: int,
) -> RowDraw:
    """Return the sampling state of a row. The last `made` of its `tokens` are output tokens."""
    draw = RowDraw(sampling=sampling, seed=seed, position=len(tokens), top=top)
    if draw.counts:
        generated = np.bincount(
            np.asarray(tokens[len(tokens) - made :], dtype=np.int64), minlength=vocabulary
        )
        draw.generated = mx.array(generated.astype(np.float32))
    if draw.repeats:
        seen = np.zeros(vocabulary, dtype=np.bool_)
        seen[np.asarray(tokens, dtype=np.int64)] = True
        draw.seen = mx.array(seen)  # pyright: ignore[reportArgumentType]
    return draw


class BatchSampler:
    """Samples tokens for a fixed tuple of rows. `close` writes the token counts back to them."""

    def __init__(
        self, draws: Sequence[RowDraw | None], vocabulary: int, alike: int | None = None
    ) -> None:
        """`draws[slot]` is None for a hole (a slot without a row), whose token is not read.
        `alike`: compute as for this many rows (see `Truncation`)."""
        self._draws = tuple(draws)
        self._alike = alike
        self._vocabulary = vocabulary
        self._generated: mx.array | None = None
        self._seen: mx.array | None = None
        self._holds = any(draw is not None and draw.holds for draw in draws)  # later fewer, no more
        self._holding: tuple[int, ...] = ()
        self._not_held: Allowed | None = None
        self._greedy = all(draw is None or draw.is_plain for draw in draws)
        if not self._greedy:
            self._prepare(len(draws))

    def _prepare(self, slots: int) -> None:
        self._biased = _Subset(self._where(lambda d: bool(d.sampling.logit_bias)), slots)
        self._bias = self._bias_rows() if self._biased else None
        self._counted = _Subset(self._where(lambda d: d.counts), slots)
        self._repeated = _Subset(self._where(lambda d: d.repeats), slots)
        self._generated = self._stack([d.generated for d in self._of(self._counted)])
        self._seen = self._stack([d.seen for d in self._of(self._repeated)])
        self._drawn = _Subset(self._where(lambda d: d.draws), slots)
        self._listed = self._where(lambda d: d.top is not None)
        counted, repeated = self._of(self._counted), self._of(self._repeated)
        self._frequency = _column([d.sampling.frequency_penalty for d in counted])
        self._presence = _column([d.sampling.presence_penalty for d in counted])
        self._repetition = _column([d.sampling.repetition_penalty for d in repeated])
        drawn = self._of(self._drawn)
        self._sharpness = _column([1.0 / d.sampling.temperature for d in drawn])
        cuts = Cuts(
            tuple(d.sampling.top_k for d in drawn),
            tuple(d.sampling.top_p for d in drawn),
            tuple(d.sampling.min_p for d in drawn),
        )
        cut = bool(drawn) and not cuts.none
        self._truncation = Truncation(cuts, self._vocabulary, self._alike) if cut else None

    def draw(self, logits: mx.array, allowed: Allowed | None = None) -> Drawn:
        """Return the sampled token of each slot, (slots,) int32, from logits (slots, vocabulary),
        unevaluated. `allowed` has the tokens that grammars allow; None: no row has a grammar."""
        held = self._mask_of_ends() if self._holds else None
        if self._greedy:
            scores = logits if allowed is None else self._masked(logits, allowed)
            scores = scores if held is None else self._masked(scores, held)
            return Drawn(self._advance(mx.argmax(scores, axis=-1).astype(mx.int32)))
        own = logits.astype(mx.float32)
        scores = self._penalised(own)
        if allowed is not None:
            scores = self._masked(scores, allowed)
        if held is not None:
            scores = self._masked(scores, held)
        tokens = self._advance(self._choose(scores).astype(mx.int32))
        self._count(tokens)
        return self._listing(own, tokens) if self._listed else Drawn(tokens)

    def close(self) -> None:
        """Write each row's token counts (for the penalties) back into the row's own state."""
        if self._generated is not None:
            for index, draw in enumerate(self._of(self._counted)):
                draw.generated = self._generated[index]
        if self._seen is not None:
            for index, draw in enumerate(self._of(self._repeated)):
                draw.seen = self._seen[index]

    def _masked(self, scores: mx.array, allowed: Allowed) -> mx.array:
        bound = _Subset(allowed.slots, len(self._draws))
        return bound.put(scores, mx.where(allowed.tokens, bound.of(scores), -mx.inf))

    def _mask_of_ends(self) -> Allowed | None:
        """Return the allowed tokens of the rows that have not reached their minimum length: all
        tokens except end tokens. Return None if there are no such rows."""
        slots = tuple(i for i, d in enumerate(self._draws) if d is not None and d.holds)
        if slots != self._holding:
            self._holding = slots
            tokens = np.ones((len(slots), self._vocabulary), dtype=np.bool_)
            for index, draw in enumerate(self._of_slots(slots)):
                tokens[index, list(draw.held_ends)] = False
            self._not_held = Allowed(slots, mx.array(tokens))  # pyright: ignore[reportArgumentType]
        return self._not_held if slots else None

    def _penalised(self, scores: mx.array) -> mx.array:
        if self._seen is not None:
            rows = self._repeated.of(scores)
            pushed = mx.where(rows > 0, rows / self._repetition, rows * self._repetition)
            scores = self._repeated.put(scores, mx.where(self._seen, pushed, rows))
        if self._generated is not None:
            rows = self._counted.of(scores)
            rows = rows - self._generated * self._frequency
            rows = rows - (self._generated > 0) * self._presence
            scores = self._counted.put(scores, rows)
        if self._bias is not None:
            scores = self._biased.put(scores, self._biased.of(scores) + self._bias)
        return scores

    def _choose(self, scores: mx.array) -> mx.array:
        if not self._drawn:
            return mx.argmax(scores, axis=-1)
        rows = self._drawn.of(scores) * self._sharpness
        if self._truncation is not None:
            rows = mx.where(rows >= self._truncation.threshold(rows), rows, -mx.inf)
        keys = [key_words(d.seed, d.position) for d in self._of(self._drawn)]
        noise = _gumbel(mx.array(np.array(keys, dtype=np.uint32)), self._vocabulary)
        picked = mx.argmax(rows + noise, axis=-1)
        if self._drawn.whole:
            return picked
        return self._drawn.put(mx.argmax(scores, axis=-1), picked)

    def _advance(self, tokens: mx.array) -> mx.array:
        """Advance all rows. Return the drawn tokens, a row's forced token in place of its own."""
        forced: dict[int, TokenId] = {}
        for slot, draw in enumerate(self._draws):
            if draw is not None:
                draw.position += 1
                if draw.forced is not None:
                    forced[slot], draw.forced = draw.forced, None
        if not forced:
            return tokens
        subset = _Subset(tuple(forced), len(self._draws))
        return subset.put(tokens, mx.array(list(forced.values()), mx.int32))

    def _count(self, tokens: mx.array) -> None:
        if self._generated is not None:
            at = mx.arange(self._generated.shape[0])
            self._generated = self._generated.at[at, self._counted.of(tokens)].add(1.0)
        if self._seen is not None:
            at = mx.arange(self._seen.shape[0])
            self._seen[at, self._repeated.of(tokens)] = mx.array(True)

    def _listing(self, own: mx.array, tokens: mx.array) -> Drawn:
        at = mx.array(self._listed)
        most = max(d.top or 0 for d in self._of_slots(self._listed))
        listing = listing_of(own[at], tokens[at], most)
        return Drawn(tokens, self._listed, listing.chosen, listing.top_ids, listing.top_logprobs)

    def _bias_rows(self) -> mx.array:
        bias = np.zeros((len(self._biased.slots), self._vocabulary), dtype=np.float32)
        for index, draw in enumerate(self._of(self._biased)):
            for token, value in draw.sampling.logit_bias.items():
                bias[index, token] = value
        return mx.array(bias)

    def _where(self, wanted: Callable[[RowDraw], bool]) -> tuple[int, ...]:
        return tuple(i for i, draw in enumerate(self._draws) if draw is not None and wanted(draw))

    def _of(self, subset: _Subset) -> list[RowDraw]:
        return self._of_slots(subset.slots)

    def _of_slots(self, slots: Sequence[int]) -> list[RowDraw]:
        return [draw for slot in slots if (draw := self._draws[slot]) is not None]

    @staticmethod
    def _stack(arrays: Sequence[mx.array | None]) -> mx.array | None:
        present = [array for array in arrays if array is not None]
        return mx.stack(present) if present else None


class _Subset:
    """Some slots of the batch. Selects the rows in these slots from an array of all slots, and
    writes changed rows into a copy of that array."""

    def __init__(self, slots: tuple[int, ...], total: int) -> None:
        self.slots = slots
        self.whole = len(slots) == total
        self._index = mx.array(slots) if slots and not self.whole else None

    def __bool__(self) -> bool:
        return bool(self.slots)

    def of(self, array: mx.array) -> mx.array:
        """Return the subset's rows of (slots, ...)."""
        return array if self._index is None else array[self._index]

    def put(self, array: mx.array, rows: mx.array) -> mx.array:
        """Return (slots, ...) with the subset's rows replaced; `array` is unchanged."""
        if self._index is None:
            return rows
        new = mx.array(array)
        new[self._index] = rows
        return new


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(list(values), mx.float32)[:, None] if values else mx.zeros((0, 1))


def _gumbel(keys: mx.array, vocabulary: int) -> mx.array:
    """Return Gumbel noise, (rows, vocabulary). The noise of row i depends only on key i."""

    def noise_of(key: mx.array) -> mx.array:
        """Return one row's noise, (vocabulary,)."""
        return mx.random.gumbel((vocabulary,), key=key)

    return mx.vmap(noise_of)(keys)
