"""The engine with the BLAS of scipy-openblas32, with another OpenBLAS, and with MLX's own.

    python -m tests.bench.blas_libraries [--system PATH] [--parity exact|fast] [--repeats N]
        [--own] [--model NAME]

PATH is an OpenBLAS of the system, such as Debian's `libopenblas.so.0`. Each library is measured and
chosen as a first start does. Then one process per library loads the same model, and they run the
same prompts in turn. A ratio is the median over the rounds of time with PATH / time with the
package. `--own` adds MLX's own BLAS, which is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bus.process.clock import now
from conf.blas.choice import Choice, Library, choose, kernels_for, told, variables
from conf.blas.libraries import processor, usable_cores
from conf.blas.measure import measure
from tests.bench.models import endless_tiny, random_qwen3
from tests.harness.blas_of_tests import libraries_here

WORK = {
    "prompt of 512": ([512], 1),
    "prompt of 64": ([64], 1),
    "decode, 1 row": ([8], 48),
    "decode, 8 rows": ([8] * 8, 24),
}
"""The lengths of the prompts, and the tokens of each answer."""
Times = dict[str, list[tuple[float, float]]]
"""Seconds of wall-clock and of processor time, by kind of work."""


class Player:
    """A process that has one model and one library."""

    def __init__(self, name: str, folder: Path, blas: Mapping[str, str]) -> None:
        self.name = name
        command = [sys.executable, "-m", "tests.bench.blas_libraries", "--play", str(folder)]
        self._process = subprocess.Popen(
            command, env={**os.environ, **blas}, stdin=-1, stdout=-1, text=True
        )

    def play(self, kind: str) -> tuple[float, float]:
        """Run one kind of work; return its seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        wall_s, processor_s = json.loads(self._process.stdout.readline())
        return wall_s, processor_s

    def close(self) -> None:
        self._process.communicate(timeout=30)


def play(folder: Path) -> None:
    """Load a model, and run the work that is asked for, until the end of the input."""
    from runner.mlx.engine import load_engine
    from tests.bench.engine_vs_raw import EnginePlayer

    player = EnginePlayer(load_engine(folder, memory_limit_bytes=8 << 30))
    for line in sys.stdin:
        lengths, tokens = WORK[line.strip()]
        prompts = [[(7 * i + 13 * r) % 1999 for i in range(n)] for r, n in enumerate(lengths)]
        wall, spent = time.perf_counter(), time.process_time()
        player.run(prompts, [tokens] * len(prompts))
        took = time.perf_counter() - wall, time.process_time() - spent
        sys.stdout.write(json.dumps(took) + "\n")
        sys.stdout.flush()


def chosen(library: Library, parity: str) -> Choice:
    """Return what a first start chooses if it finds only this library."""
    table = measure([library], kernels_for(processor()[1]), usable_cores(), 60.0)
    choice = choose(table.measured, parity)  # type: ignore[arg-type]
    assert choice is not None, table.trouble
    sys.stdout.write(f"  {told(choice)} {'; ' + table.trouble if table.trouble else ''}\n")
    return choice


def compare(model: str, folder: Path, ways: Mapping[str, Mapping[str, str]], repeats: int) -> None:
    """Print the speed of each library on one model, and the ratios."""
    players = [Player(name, folder, blas) for name, blas in ways.items()]
    times: dict[str, Times] = {name: {kind: [] for kind in WORK} for name in ways}
    for number in range(repeats + 1):
        for kind in WORK:
            for player in players if number % 2 else reversed(players):
                took = player.play(kind)
                if number:
                    times[player.name][kind].append(took)
    for player in players:
        player.close()
    for kind, (lengths, tokens) in WORK.items():
        count = sum(lengths) if tokens == 1 else len(lengths) * tokens
        words = [f"{model:8} {kind:15}"]
        for name in ways:
            spent = statistics.median(wall for wall, _ in times[name][kind])
            words.append(f"{name} {count / spent:8.1f} tokens/s")
        if "system" in ways:
            pairs = list(zip(times["system"][kind], times["package"][kind], strict=True))
            for what, at in (("wall", 0), ("processor", 1)):
                ratio = statistics.median(other[at] / own[at] for other, own in pairs)
                words.append(f"package/system by {what} {ratio:.2f}")
        sys.stdout.write("  ".join(words) + "\n")
        sys.stdout.flush()


def main() -> int:
    """Compare the libraries on the bundled model and on a larger random one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", default="")
    parser.add_argument("--parity", default="exact")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--model", choices=("bundled", "150 M"), action="append")
    parser.add_argument("--play", type=Path)
    asked = parser.parse_args()
    if asked.play:
        play(asked.play)
        return 0
    began_at = now()
    package = next(library for library in libraries_here() if library.source)
    libraries = {"package": package}
    if asked.system:
        libraries["system"] = Library(asked.system, "openblas")
    ways = {name: variables(chosen(one, asked.parity)) for name, one in libraries.items()}
    if asked.own:
        ways["own"] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {"bundled": Path(scratch) / "tiny", "150 M": Path(scratch) / "large"}
        for folder in folders.values():
            folder.mkdir()
        endless_tiny(folders["bundled"])
        random_qwen3(folders["150 M"], layers=12, hidden=1024)
        for model in asked.model or folders:
            compare(model, folders[model], ways, asked.repeats)
    load = " ".join(f"{share:.1f}" for share in os.getloadavg())
    sys.stdout.write(f"{now() - began_at:.0f} s on {usable_cores()} cores, load average {load}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
