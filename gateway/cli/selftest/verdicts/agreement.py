"""Compares greedy tokens with those of a reference.

Pure. Two correct computations may round differently, for example because a batch has another shape.
So tokens may differ at a near tie: there, the log-probability of the reference's likeliest token
exceeds that of the other token by at most `gap_of(precision)`. Later tokens follow a different text
and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

GAPS: Mapping[str, float] = {"float32": 0.02}
"""Largest gap of a near tie, in nats. NVIDIA's float32 products round to 10 bits."""
GAP_16_BITS = 0.25

Steps = Sequence[Sequence[Sequence[float]]]
"""For each position of an answer: the likeliest tokens as [token, logprob], likeliest first."""


@dataclass(frozen=True, slots=True)
class TokenAgreement:
    """The comparison of some rows, which have `compared` tokens. `equal` counts the tokens before
    the first difference of each row.

    Each row that differs adds one gap, in nats: by how much its first different token is less
    likely than the reference's. Gaps of near ties are in `ties`, larger ones in `wrong`."""

    rows: int
    compared: int
    equal: int
    ties: tuple[float, ...]
    wrong: tuple[float, ...]

    @property
    def is_good(self) -> bool:
        """Return whether no row is wrong, and at least half of all tokens are equal."""
        return not self.wrong and 2 * self.equal >= self.compared


def gap_of(precision: str) -> float:
    """Return the largest gap of a near tie, in nats, for a precision such as "float32"."""
    return GAPS.get(precision, GAP_16_BITS)


def agreement(rows: Iterable[tuple[Sequence[int], Steps]], gap: float) -> TokenAgreement:
    """Compare rows of tokens with the steps of the reference. `gap`: the largest gap of a near tie,
    in nats. If a row is shorter than its reference, its first missing token is a difference with an
    infinite gap, so the row is wrong."""
    count = compared = equal = 0
    ties: list[float] = []
    wrong: list[float] = []
    for tokens, steps in rows:
        count, compared = count + 1, compared + len(steps)
        at = next((n for n, step in enumerate(steps) if _token(tokens, n) != step[0][0]), None)
        equal += len(steps) if at is None else at
        if at is not None:
            behind = behind_by(_token(tokens, at), steps[at])
            (ties if behind <= gap else wrong).append(behind)
    return TokenAgreement(count, compared, equal, tuple(ties), tuple(wrong))


def behind_by(token: int | None, step: Sequence[Sequence[float]]) -> float:
    """Return by how many nats a token is less likely than the likeliest token; infinite if `step`
    does not list the token."""
    own = next((logprob for listed, logprob in step if listed == token), float("-inf"))
    return step[0][1] - own


def agreement_words(result: TokenAgreement, gap: float) -> str:
    """Return the comparison and its rule as text."""
    ties = f", {len(result.ties)} near ties" if result.ties else ""
    wrong = f", {len(result.wrong)} rows differ" if result.wrong else ""
    return (
        f"{result.rows} rows, {result.equal} of {result.compared} tokens equal{ties}{wrong} "
        f"(rule: equal, or the first difference of a row within {gap:g} nats)"
    )


def _token(tokens: Sequence[int], at: int) -> int | None:
    return tokens[at] if at < len(tokens) else None
