"""Walk of one chat request: the files and functions of gateway and runner that it enters.

    python -m tests.house.walk [--lists] [--write [--raise]]

Starts one real gateway, with the testbed's switchboard, and one real runner with the bundled model,
each under a profiler hook. A function belongs to the walk when every one of equal requests enters
it, so that a heartbeat in between does not. Calls of a token are those of a long answer less those
of a short one. On a busy machine more runs beside a request: a figure over its ceiling is measured
again by up to eight more pairs of requests. Prints figures, aims and ceilings; `--lists` also
functions by file. `--write` lowers the ceilings to 12 % above today's figures; with `--raise` it
may lift them. Exits 1 on a figure over its ceiling.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.wire.ids import InstanceId
from bus.wire.messages.control import RunnerSpec
from conf.blas import prepared_blas
from conf.paths import find_paths, make_folders
from conf.settings import load_settings
from tests.harness import forks, gateway_testbed
from tests.harness.counts import count
from tests.harness.gateway_testbed import GatewayTestbed, Program, eventually
from tests.harness.slot import Slot
from tests.house import ceilings
from tests.house.trees import PACKAGES, ROOT

CEILINGS = ROOT / "tests" / "house" / "walk_ceilings.toml"
COMMAND = "python -m tests.house.walk --write"
MARGIN = 1.15
"""Over the figures of a quiet machine: beside other processes up to 11 % more was counted."""
AIMS: Mapping[str, int] = {
    "files": 100,
    "functions": 550,
    "runner, calls of a token": 150,
}
SHORT, LONG = 8, 40
"""Tokens of the two answers that are compared."""
PROCESSES = 3
"""The runner, gunicorn's arbiter, and its one HTTP process."""
PRODUCT = tuple(f"{package}/" for package in PACKAGES)
COMPREHENSIONS = frozenset(("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"))
"""No functions; newer versions of Python do not call them."""
PAIRS, MORE_PAIRS = 2, 8
"""Pairs of a short and a long answer; and how many more where a figure is over its ceiling."""
Calls = dict[tuple[str, int, str], int]
"""(path, line, name) of a function to its calls."""


Figures = dict[str, int]
Functions = Mapping[str, frozenset[tuple[str, int, str]]]
"""Process to its functions."""


@dataclass(frozen=True)
class Walk:
    """Functions that every request enters, by process, and the fewest calls of each answer."""

    functions: Functions
    short_calls: Mapping[str, int]
    long_calls: Mapping[str, int]

    def with_pair(self, short: Mapping[str, Calls], long: Mapping[str, Calls]) -> Walk:
        """Return the walk with a further short and a further long answer."""
        return Walk(
            {name: own & {*short[name]} & {*long[name]} for name, own in self.functions.items()},
            {name: min(n, _sum(short[name])) for name, n in self.short_calls.items()},
            {name: min(n, _sum(long[name])) for name, n in self.long_calls.items()},
        )

    def figures(self) -> Figures:
        """Return the figures by name; a function of both processes counts once."""
        both = frozenset[tuple[str, int, str]]().union(*self.functions.values())
        figures = {"files": len({path for path, _, _ in both}), "functions": len(both)}
        for process, functions in self.functions.items():
            figures[f"{process}, files"] = len({path for path, _, _ in functions})
            figures[f"{process}, functions"] = len(functions)
            calls = self.long_calls[process] - self.short_calls[process]
            figures[f"{process}, calls of a token"] = math.ceil(calls / (LONG - SHORT))
        return figures


def first_pair(short: Mapping[str, Calls], long: Mapping[str, Calls]) -> Walk:
    """Return the walk of one short and one long answer."""
    return Walk(
        {name: frozenset({*short[name]} & {*long[name]}) for name in short},
        {name: _sum(calls) for name, calls in short.items()},
        {name: _sum(calls) for name, calls in long.items()},
    )


def _sum(calls: Calls) -> int:
    return sum(calls.values())


def held(figures: Figures) -> dict[str, Figures]:
    """Return the figures that have an aim and so a ceiling."""
    return {"walk": {name: figure for name, figure in figures.items() if name in AIMS}}


class WalkedTestbed(GatewayTestbed):
    """A testbed whose gateway runs under the hook."""

    def __init__(self, folder: str, marks: tuple[str, str]) -> None:
        self._marks = marks
        super().__init__(folder)

    def start_gateway(self, **options: object) -> Program:
        ordinary = gateway_testbed.started

        def walked(
            program: str, words: tuple[str, ...], cwd: Path, streams: tuple[int, int, int]
        ) -> Program:
            assert program == "gateway_process", program
            run, more = "tests.house.walked:gateway", (*words, *self._marks)
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            with open(os.devnull, "r+b", 0) as null:
                own = (null.fileno(), *streams[1:])
                modules = gateway_testbed.FORKED
                return forks.started(modules, ROOT, run, more, env=env, cwd=cwd, streams=own)

        gateway_testbed.started = walked
        try:
            return super().start_gateway(**options)
        finally:
            gateway_testbed.started = ordinary


@contextmanager
def walked_runner(home: Path, marks: tuple[str, str]) -> Iterator[Slot]:
    """Start a runner under the hook; it is not loaded yet. It is killed at the end."""
    paths = find_paths(home)
    endpoints = Endpoints(str(paths.runtime))
    worker = Link("router")
    worker.bind(endpoints.worker)
    spec = RunnerSpec(
        instance=InstanceId("inst-1"),
        generation=1,
        rank=0,
        size=1,
        model=gateway_testbed.MODEL,
        path=str(ROOT / "conf" / "tiny"),
        dtype="float32",
        first_layer=0,
        last_layer=2,
        context_tokens=2048,
        addresses=(endpoints.runner("00"),),
        memory_limit_bytes=1 << 30,
    )
    environment = os.environ | {"SHOAL_HOME": str(home), "SHOAL_SLOT": "00"}
    environment |= {"PYTHONPATH": str(ROOT), **prepared_blas(load_settings(home=home)).variables}
    count("runners")
    command = [sys.executable, "-P", "-m", "tests.house.walked", *marks, "runner"]
    process = subprocess.Popen(command, cwd=paths.run, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield Slot(process, worker, endpoints, spec)
    finally:
        process.kill()
        process.wait(10)
        worker.close()


def measure(limits: ceilings.Counts) -> Walk:
    """Start both processes, send the requests, and return the walk."""
    with tempfile.TemporaryDirectory(prefix="shoal-walk-", dir="/tmp") as name:
        home = Path(name)
        paths = find_paths(home)
        make_folders(paths)
        mark, folder = home / "mark", home / "calls"
        mark.write_bytes(b"\0")
        folder.mkdir()
        marks = (str(mark), str(folder))
        with walked_runner(home, marks) as slot:
            bed = WalkedTestbed(str(paths.runtime), marks)
            try:
                slot.ready()
                return _measured(bed, slot, (mark, folder), limits)
            finally:
                bed.close()


@dataclass(frozen=True)
class _Placed:
    address: str
    instance: str
    generation: int


def _measured(
    bed: GatewayTestbed, slot: Slot, marks: tuple[Path, Path], limits: ceilings.Counts
) -> Walk:
    mark, folder = marks
    bed.place(_Placed(slot.endpoints.runner("00"), "inst-1", 1))
    names = {slot.process.pid: "runner"}
    with httpx.Client(base_url=bed.url, timeout=60) as client:

        def walked(tokens: int) -> dict[str, Calls]:
            for file in folder.glob("*.json"):
                file.unlink()
            mark_with(mark, 1)
            eventually(lambda: len(list(folder.glob("*-on-*.json"))) == PROCESSES, 20, "all count")
            body = {
                "model": str(gateway_testbed.MODEL),
                "messages": [{"role": "user", "content": "What is shoal?"}],
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            reply = client.post("/v1/chat/completions", json=body)
            mark_with(mark, 0)
            eventually(lambda: len(list(folder.glob("*-off-*.json"))) == PROCESSES, 20, "all wrote")
            assert reply.status_code == 200, reply.text
            assert reply.json()["usage"]["completion_tokens"] == tokens, reply.text
            return by_process(folder, names)

        def serves() -> bool:
            listed = client.get("/v1/models").json()["data"]
            return any(model["id"] == gateway_testbed.MODEL for model in listed)

        eventually(serves, 60, "the gateway knows the runner")
        walked(SHORT)
        walk = first_pair(walked(SHORT), walked(LONG))
        for pair in range(1, PAIRS + MORE_PAIRS):
            if pair >= PAIRS and not ceilings.raised(held(walk.figures()), limits):
                break
            walk = walk.with_pair(walked(SHORT), walked(LONG))
    return walk


def mark_with(mark: Path, byte: int) -> None:
    """Write the byte that switches counting on (1) and off (0)."""
    with mark.open("r+b") as file:
        file.write(bytes((byte,)))


def by_process(folder: Path, names: Mapping[int, str]) -> dict[str, Calls]:
    """Return the product's calls that files hold, by process; unnamed processes are gateways."""
    walks: dict[str, Calls] = {process: {} for process in ("gateway", *names.values())}
    for file in folder.glob("*-off-*.json"):
        calls = walks[names.get(int(file.name.partition("-")[0]), "gateway")]
        for path, line, name, n in json.loads(file.read_text()):
            if path.startswith(PRODUCT) and name not in COMPREHENSIONS:
                calls[path, line, name] = calls.get((path, line, name), 0) + n
    return walks


def report(figures: Figures, limits: ceilings.Counts) -> str:
    """Return a line for each figure, with its aim and its ceiling."""
    lines: list[str] = []
    for name, figure in figures.items():
        ceiling = limits.get("walk", {}).get(name, 0)
        more = f" (aim {AIMS[name]}, ceiling {ceiling})" if name in AIMS else ""
        lines.append(f"walk: {name}: {figure}{more}")
    return "\n".join(lines)


def write(figures: Figures, limits: ceilings.Counts, lift: bool) -> list[str]:
    """Write ceilings 12 % above the figures, where that is lower; return the figures above."""
    now = {name: math.ceil(figure * MARGIN) for name, figure in held(figures)["walk"].items()}
    old = limits.get("walk", {})
    kept = {name: n if lift else min(n, old.get(name, n)) for name, n in now.items()}
    over = ceilings.faults(held(figures), limits, COMMAND)
    if lift or not over:
        ceilings.write(CEILINGS, {"walk": kept}, COMMAND, lift=True)
    return over


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the ceilings on request; return 1 on a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.walk")
    parser.add_argument("--lists", action="store_true", help="print each function")
    parser.add_argument("--write", action="store_true", help="lower the ceilings")
    parser.add_argument("--raise", action="store_true", dest="lift", help="also lift ceilings")
    chosen = parser.parse_args(arguments)
    limits = ceilings.read(CEILINGS)
    walk = measure({} if chosen.write else limits)  # no ceilings: all pairs, the least noise
    if chosen.lists:
        for process, functions in walk.functions.items():
            print("\n".join(f"{process}: {p}:{line} {name}" for p, line, name in sorted(functions)))
    figures = walk.figures()
    if chosen.write:
        over = write(figures, limits, chosen.lift)
    else:
        over = ceilings.faults(held(figures), limits, COMMAND)
    print("\n".join([report(figures, ceilings.read(CEILINGS)), *over]))
    return int(bool(over) and not chosen.lift)


if __name__ == "__main__":
    sys.exit(main())
