"""The figures of a bench.

Pure. TTFT is the time from sending a request to its first token. ITL is the gap between two
consecutive tokens of one answer. Decode tokens per second leave out an answer's first token.
Prefill leaves out cached prompt tokens. The aggregate of a run is all tokens over its wall time.
Spread is the sample standard deviation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer with its times. Instants are in seconds on one clock. `token_at` has an instant
    for each piece of text; a piece may hold several tokens. The node reported the token counts."""

    sent_at: float
    token_at: tuple[float, ...]
    ended_at: float
    prompt_tokens: int
    tokens: int
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Return the seconds to the first token. If the answer has no token, return the time of the
        whole answer."""
        return (self.token_at[0] if self.token_at else self.ended_at) - self.sent_at

    @property
    def gaps_s(self) -> list[float]:
        """Return the seconds between consecutive pieces of text."""
        return [b - a for a, b in zip(self.token_at, self.token_at[1:], strict=False)]

    @property
    def decode_per_s(self) -> float:
        """Return the decode speed in tokens per second, without the answer's first token; 0 if
        there are no further tokens."""
        if self.tokens < 2 or not self.token_at:
            return 0.0
        span_s = self.token_at[-1] - self.token_at[0]
        return (self.tokens - 1) / span_s if span_s > 0 else 0.0

    @property
    def prefill_per_s(self) -> float:
        """Return the prefill speed in tokens per second: the computed prompt tokens over the time
        to the first token."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.ttft_s if self.ttft_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """One round of concurrent requests, with at least one answer."""

    answers: tuple[TimedAnswer, ...]

    @property
    def wall_s(self) -> float:
        """Return the seconds from the first request to the last token."""
        return max(a.ended_at for a in self.answers) - min(a.sent_at for a in self.answers)

    @property
    def per_s(self) -> float:
        """Return the tokens of all answers per second of wall time."""
        return sum(a.tokens for a in self.answers) / self.wall_s if self.wall_s > 0 else 0.0


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of a bench: mean and sample standard deviation over runs, percentiles over
    answers and gaps between tokens."""
    answers = [answer for run in runs for answer in run.answers]
    gaps_ms = [gap * 1000 for answer in answers for gap in answer.gaps_s]
    return {
        "runs": len(runs),
        "answers": len(answers),
        "tokens": sum(answer.tokens for answer in answers),
        "tokens_least": min((answer.tokens for answer in answers), default=0),
        "tokens_most": max((answer.tokens for answer in answers), default=0),
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "cached_tokens": sum(answer.cached_tokens for answer in answers),
        "aggregate_tokens_per_s": spread([run.per_s for run in runs]),
        "decode_tokens_per_s": spread([answer.decode_per_s for answer in answers]),
        "prefill_tokens_per_s": spread([answer.prefill_per_s for answer in answers]),
        "ttft_ms": percentiles([answer.ttft_s * 1000 for answer in answers]),
        "itl_ms": percentiles(gaps_ms),
        "wall_s": spread([run.wall_s for run in runs]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return mean and sample standard deviation (0 for fewer than two values)."""
    if not values:
        return {"mean": 0.0, "std": 0.0}
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": std}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 (nearest rank), mean and sample standard deviation; zeros without
    values."""
    if not values:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0, **spread(values)}
    ordered = sorted(values)
    ranks = {f"p{p}": ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)] for p in (50, 95, 99)}
    return {**ranks, **spread(values)}
