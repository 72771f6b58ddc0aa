"""What a group's lockstep costs a step: our ranks against a bare loop over as many ranks.

Both hold the same random-weight model in the same shards over MLX's ring on loopback, and decode
equally many rows of equal length. The bare loop (`bare_rank`) is mlx-lm's model and nothing else.
They take turns; the loser of a turn waits on a pipe or a socket and costs nothing.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bus.wire.messages.requests import TokensPrompt
from tests.bench.contestants import cpu_s, environment
from tests.harness.nodes import ROOT
from tests.harness.ports import free_ports
from tests.harness.ranks import ready_group, stages
from tests.harness.slot import FakeGateway, Slot, request

ROWS = (1, 8)
PROMPT = 32
STEPS = 96
LAYERS = 8


class Bare:
    """The loop that needs no telling."""

    def __init__(self, model: Path, sharding: str, folder: Path, ranks: int = 2) -> None:
        hosts = folder / f"bare-{sharding}.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(ranks)]))
        script = ROOT / "tests" / "bench" / "bare_rank.py"
        self.lives = [
            subprocess.Popen(
                [sys.executable, str(script), str(model), sharding],
                env={**environment(), "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            assert {self._line(life) for life in self.lives} == {"ready"}
        except BaseException:
            self.close()
            raise

    def step_s(self, rows: int, turn: int) -> float:
        for life in self.lives:
            assert life.stdin is not None
            life.stdin.write(json.dumps([rows, PROMPT, STEPS]) + "\n")
            life.stdin.flush()
        return max(float(self._line(life)) for life in self.lives) / STEPS

    def ranks(self) -> list[psutil.Process]:
        return [psutil.Process(life.pid) for life in self.lives]

    @staticmethod
    def _line(life: subprocess.Popen[str]) -> str:
        assert life.stdout is not None
        return life.stdout.readline().strip()

    def close(self) -> None:
        for life in self.lives:
            life.kill()
            life.wait()


class Ours:
    """A ready group."""

    def __init__(self, slots: list[Slot]) -> None:
        self._slots = slots

    def step_s(self, rows: int, turn: int) -> float:
        """From the first step that all rows were in to the last token of the first to end."""
        with contextlib.closing(FakeGateway(self._slots[0], f"gw-{turn}-{rows}")) as gateway:
            return self._step_s(gateway, rows, turn)

    def _step_s(self, gateway: FakeGateway, rows: int, turn: int) -> float:
        streams = [
            gateway.submit(
                request(
                    f"{turn}-{rows}-{row}",
                    prompt=TokensPrompt(
                        token_ids=tuple((row * 31 + at * 7) % 1500 + 3 for at in range(PROMPT))
                    ),
                    max_tokens=STEPS + 1,
                )
            )
            for row in range(rows)
        ]
        gateway.until(lambda: all(one.tokens for one in streams), "first tokens", 60)
        had = [one.tokens for one in streams]
        began = time.perf_counter()
        gateway.until(lambda: any(one.end for one in streams), "an end", 120)
        took = time.perf_counter() - began
        steps = max(one.tokens - was for one, was in zip(streams, had, strict=True))
        gateway.ended(*streams, seconds=60)
        return took / steps

    def ranks(self) -> list[psutil.Process]:
        return [psutil.Process(slot.process.pid) for slot in self._slots]


def compile_kernels(model: Path) -> None:
    """What a runner's child does once for a model and machine; here it would disturb a turn."""
    command = [sys.executable, "-m", "runner.mlx.model.kernels", str(model), "full"]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True)


def compared(model: Path, sharding: str, repeats: int) -> dict[str, Any]:
    """Milliseconds a step by rows, medians of the turns after the first, how many more ours takes
    than the bare loop in the same turn, and processor milliseconds that all ranks spent."""
    layers = stages(LAYERS, 2) if sharding == "pipeline" else [(0, LAYERS)] * 2
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-lockstep-") as folder:
        bare = Bare(model, sharding, Path(folder))
        try:
            with ready_group(model, sharding, layers) as (slots, _):
                pair = {"ours": Ours(slots), "bare": bare}
                for rows in ROWS:
                    found[str(rows)] = turns(pair, rows, repeats)
        finally:
            bare.close()
    return found


def turns(pair: dict[str, Any], rows: int, repeats: int) -> dict[str, float]:
    """Each in turn; the first turn is for warming up."""
    steps: dict[str, list[float]] = {name: [] for name in pair}
    cores: dict[str, list[float]] = {name: [] for name in pair}
    for turn in range(repeats + 1):
        for name, who in pair.items():
            before = [cpu_s(one) for one in who.ranks()]
            took = 1000 * who.step_s(rows, turn)
            spent = sum(cpu_s(one) - was for one, was in zip(who.ranks(), before, strict=True))
            if turn:
                steps[name].append(took)
                cores[name].append(1000 * spent / STEPS)
    both = list(zip(steps["ours"], steps["bare"], strict=True))
    return {
        "ours_ms": statistics.median(steps["ours"]),
        "bare_ms": statistics.median(steps["bare"]),
        "more_ms": statistics.median(ours - bare for ours, bare in both),
        "ratio": statistics.median(ours / bare for ours, bare in both),
        "ours_cpu_ms": statistics.median(cores["ours"]),
        "bare_cpu_ms": statistics.median(cores["bare"]),
    }
