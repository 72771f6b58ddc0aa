"""Decoding with KV in 8 and 4 bits, and with a window, against full width, in one run. Run by hand:

    LD_PRELOAD=.../libopenblas.so.0 OPENBLAS_NUM_THREADS=1 \\
        python -P tests/bench/kv.py [--model FOLDER] [--rounds 5]

Without a model it is the bundled one. Rounds alternate between the widths; ratios are those of the
medians, in tokens a second. KV is what the engine holds once its rows have their last token, and
beside it the bill of so many rows as long as the longest.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bus.wire.ids import TokenId  # noqa: E402
from bus.wire.kv import KINDS  # noqa: E402
from bus.wire.messages.requests import Sampling  # noqa: E402
from runner.engine import PrefillChunk, RowId, RowSpec, StepPlan  # noqa: E402
from runner.mlx.engine import MlxEngine, load_engine  # noqa: E402

STEPS, CHUNK = 24, 256
HELD = (*KINDS, "window:256")
SHAPES = ((1, 32), (4, 32), (16, 32), (1, 4_000))
"""Rows and the tokens of their prompts."""
_rows = itertools.count(1)


class Player:
    """One engine, played step by step."""

    def __init__(self, engine: MlxEngine) -> None:
        self.engine = engine
        self._steps = itertools.count(1)

    def step(self, **parts: object) -> None:
        """Issue a plan and read its result."""
        self.engine.issue(StepPlan(next(self._steps), **parts))  # type: ignore[arg-type]
        assert not self.engine.read().failures

    def play(self, rows: int, length: int) -> tuple[float, int]:
        """Return the seconds of a decode step of so many rows, and the bytes of KV at its end."""
        specs = [
            RowSpec(
                RowId(next(_rows)),
                tuple(TokenId(9 + (at * 31 + step * 7) % 200) for step in range(length)),
                Sampling(temperature=0.0),
                seed=1,
            )
            for at in range(rows)
        ]
        self.step(admit=tuple(specs))
        for first in range(0, length, CHUNK):
            last = min(length, first + CHUNK)
            self.step(prefill=(tuple(PrefillChunk(one.row, first, last) for one in specs),))
        names = tuple(one.row for one in specs)
        self.step(decode=names)
        began = time.perf_counter()
        for _ in range(STEPS):
            self.step(decode=names)
        took = (time.perf_counter() - began) / STEPS
        held = self.engine.memory().kv_bytes
        self.step(release=names)
        return took, held


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=ROOT / "conf" / "tiny")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    players = {
        kind: Player(load_engine(asked.model, memory_limit_bytes=8 << 30, kv=kind)) for kind in HELD
    }
    for rows, length in SHAPES:
        took: dict[str, list[float]] = {kind: [] for kind in HELD}
        held: dict[str, int] = {}
        for _ in range(asked.rounds):
            for kind, player in players.items():
                step_s, held[kind] = player.play(rows, length)
                took[kind].append(step_s)
        base = statistics.median(took["full"])
        for kind, times in took.items():
            middle, facts = statistics.median(times), players[kind].engine.facts
            bill = (length + STEPS + 2) * facts.kv_bytes_per_token + facts.kv_bytes_fixed
            print(
                f"{rows:2} rows after {length:4} tokens, {kind:10}"
                f"  {1000 * middle:7.2f} ms a step  {rows / middle:6.0f} tokens/s"
                f"  {base / middle:4.2f} x full"
                f"  KV {held[kind] / 1e6:6.2f} MB, bill {rows * bill / 1e6:6.2f}"
            )


if __name__ == "__main__":
    main()
