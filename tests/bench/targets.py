"""What `make bench` aims at, line by line, from the rows that it measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

SINGLE = "mlx-lm stream_generate"
SERVER = "mlx_lm.server"
SHOAL = "shoal"


def verdicts(results: Sequence[dict[str, Any]]) -> Iterator[tuple[str, float, float, bool]]:
    """For each target whose rows are there: what, the figure, the aim, whether it is met."""
    rows = {(r["model"], r["level"], r["mix"], r["who"]): r for r in results}

    def ratio(model: str, level: int, mix: str, other: str, key: str = "tok_s") -> float | None:
        mine, theirs = (rows.get((model, level, mix, who)) for who in (SHOAL, other))
        return None if mine is None or theirs is None else mine[key] / theirs[key]

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
