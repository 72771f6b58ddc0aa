"""What `make bench` aims at, line by line, from the rows that it measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

SINGLE = "mlx-lm stream_generate"
SERVER = "mlx_lm.server"
SHOAL = "shoal"
FAST = "shoal, fast"
PLAIN = "shoal, plain BLAS"
"""Nodes that differ in how a CPU multiplies matrices: by `runner.parity` "fast" instead of "exact",
and by OpenBLAS on one thread without anything that was measured."""


BLAS_AIMS = ((SHOAL, 1, 1.25), (FAST, 1, 1.7), (SHOAL, 16, 1.35), (SHOAL, 32, 1.35))
"""Who, at how many streams, is to be how much faster than a plain BLAS."""


def verdicts(results: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float, float, bool]]:
    """For each target whose rows are there: what, the figure, the aim, whether it is met."""
    rows = {(r["model"], r["level"], r["mix"], r["who"]): r for r in results}

    def ratio(
        model: str, level: int, mix: str, other: str, key: str = "tok_s", who: str = SHOAL
    ) -> float | None:
        mine, theirs = (rows.get((model, level, mix, name)) for name in (who, other))
        known = mine is not None and theirs is not None and key in mine and key in theirs
        return mine[key] / theirs[key] if known else None

    for model in sorted({r["model"] for r in results}):
        aims = [
            (1, "equal", SINGLE, 0.92 if model == "a" else 0.97),
            (1, "equal", SERVER, 1.0),
            (16, "equal", SERVER, 1.0),
            (32, "equal", SERVER, 1.0),
            (16, "mix", SERVER, 1.2),
            (32, "mix", SERVER, 1.2),
        ]
        for level, mix, other, aim in aims:
            found = ratio(model, level, mix, other)
            if found is not None:
                yield f"({model}) {level} {mix}: tokens/s, x {other}", found, aim, found >= aim
        for level in (16, 32):
            found = ratio(model, level, "mix", SERVER, "ttft_ms_p50")
            if found is not None:
                yield f"({model}) {level} mix: TTFT p50, x {SERVER}", found, 1.0, found <= 1.0
        if model != "a":
            for who, level, aim in BLAS_AIMS:
                found = ratio(model, level, "equal", PLAIN, who=who)
                if found is not None:
                    what = f"({model}) {level} equal: tokens/s of {who!r}, x {PLAIN!r}"
                    yield what, found, aim, found >= aim
            found = ratio(model, 1, "prompt", SHOAL, "ttft_ms_p50", who=PLAIN)
            if found is not None:
                yield f"({model}) prompts read, x {PLAIN!r}", found, 1.35, found >= 1.35
            for level in (16, 32):
                found = ratio(model, level, "mix", PLAIN, "ttft_ms_p99")
                if found is not None:
                    yield f"({model}) {level} mix: TTFT p99, x {PLAIN!r}", found, 1.0, found <= 1.0
