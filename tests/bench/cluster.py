"""Groups and the control plane, measured: `python -m tests.bench.cluster [--repeats N]`.

Two ranks of a random-weight Qwen2 of about 30 M parameters, as tensor and as pipeline, in float32
and in 4 bits, through HTTP, against `mlx_lm.server`'s own distributed mode, interleaved; what
lockstep costs a step,
beside a bare loop over as many ranks (`lockstep`); the processor time that an idle group burns;
how long a command takes until three nodes have applied it. Prints ratios within the run and
writes bench-results/cluster.json.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.process.identity import new_boot, new_name
from bus.process.logs import Log
from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import Acknowledged, CommandRefused, RenameNode
from conf.settings import load_settings
from tests.bench.contestants import cpu_s, environment
from tests.bench.load import Job, Timing, median_of, run, summary
from tests.bench.lockstep import compared, compile_kernels
from tests.bench.models import random_qwen2
from tests.bench.serve import prompt
from tests.harness.clusters import Cluster
from tests.harness.nodes import ROOT, eventually
from tests.harness.ports import free_port

MODEL = "bench-qwen2"
WEIGHTS = {"float32": 0, "4 bits": 4}
TOKENS = 64
LEVELS = (1, 8)
IDLE_S = 10.0
COMMANDS = 200


class MlxDistributed:
    """`mlx_lm.server` over two ranks of a ring."""

    def __init__(self, model: Path, folder: Path, *, pipeline: bool) -> None:
        self.name = f"mlx_lm.server {'pipeline' if pipeline else 'tensor'}-2"
        self._model = model
        ports = [free_port() for _ in range(3)]
        self.port = ports[2]
        hostfile = folder / f"hosts-{self.port}.json"
        hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports[:2]]))
        self.lives = [
            subprocess.Popen(
                [sys.executable, "-m", "mlx_lm.server", "--model", str(model), "--host",
                 "127.0.0.1", "--port", str(self.port), "--log-level", "ERROR",
                 "--max-tokens", "4096", *(["--pipeline"] if pipeline else [])],
                env={**environment(), "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hostfile)},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            eventually(self._answers, 120, f"{self.name} answers")
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def run(self, jobs: Sequence[Job]) -> list[Timing]:
        """Awake for its own turn alone: idle, it spins on a core that the other one needs."""
        self._signal(signal.SIGCONT)
        try:
            return asyncio.run(run(self.port, str(self._model), jobs))
        finally:
            self.rest()

    def rest(self) -> None:
        """Until its next turn."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for life in self.lives:
            life.send_signal(number)

    def ranks(self) -> list[psutil.Process]:
        return [psutil.Process(life.pid) for life in self.lives]

    def close(self) -> None:
        for life in self.lives:
            life.kill()
            life.wait()


class Group:
    """Two nodes of our own with one group."""

    def __init__(self, cluster: Cluster, sharding: str) -> None:
        self.name = f"shoal {sharding}-2"
        self._cluster = cluster
        cluster.place(MODEL, seconds=240.0, keep_alive_s=-1, sharding=sharding, min_nodes=2)
        self.port = cluster.nodes[0].base_port

    def run(self, jobs: Sequence[Job]) -> list[Timing]:
        return asyncio.run(run(self.port, MODEL, jobs))

    def ranks(self) -> list[psutil.Process]:
        pids = [
            pid
            for node in self._cluster.nodes
            for name, pid in node.processes().items()
            if name.startswith("runner:")
        ]
        return [psutil.Process(pid) for pid in pids]


def idle_cores(ranks: Sequence[psutil.Process]) -> float:
    """Cores that the busiest rank burns while nothing is asked."""
    time.sleep(2.0)
    before = [cpu_s(one) for one in ranks]
    time.sleep(IDLE_S)
    return max((cpu_s(one) - was) / IDLE_S for one, was in zip(ranks, before, strict=True))


def measured(contestants: Sequence[Any], repeats: int) -> dict[str, Any]:
    """Medians by contestant and concurrency, in turn within each repeat."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for repeat in range(-1, repeats):
        for level in LEVELS:
            for who in contestants:
                chance = random.Random(f"{repeat}{level}{who.name}")
                jobs = [Job(prompt(chance, 32), TOKENS) for _ in range(level)]
                row = summary(who.run(jobs))
                if repeat >= 0:
                    found.setdefault(who.name, {}).setdefault(level, []).append(row)
    return {
        name: {str(level): median_of(rows) for level, rows in levels.items()}
        for name, levels in found.items()
    }


def groups(repeats: int) -> dict[str, Any]:
    """Each way in turn, against its rival; the rivals share two cores, so one pair at a time."""
    found: dict[str, Any] = {}
    for weights, bits in WEIGHTS.items():
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            model = random_qwen2(Path(folder) / MODEL, bits=bits)
            compile_kernels(model)
            found[weights] = {one: pair(model, one, repeats) for one in ("tensor", "pipeline")}
    return found


def pair(model: Path, sharding: str, repeats: int) -> dict[str, Any]:
    """One way and its rival's, in turn."""
    folder = model.parent
    cluster = Cluster(2, SHOAL_MODEL_FOLDERS=str(folder), SHOAL_RUNNER__MAX_WAITING="64")
    rival: MlxDistributed | None = None
    try:
        cluster.up()
        group = Group(cluster, sharding)
        idle = {group.name: idle_cores(group.ranks())}
        rival = MlxDistributed(model, folder, pipeline=sharding == "pipeline")
        idle[rival.name] = idle_cores(rival.ranks())
        rival.rest()
        return {"idle_cores": idle, "load": measured([group, rival], repeats)}
    finally:
        if rival is not None:
            rival.close()
        cluster.close()


class Watchers:
    """A mirror beside each node's own, and a voice at the first."""

    def __init__(self, cluster: Cluster) -> None:
        self.reactor = PollReactor()
        self.mirrors: list[BusClient] = []
        for node in cluster.nodes:
            settings = load_settings(home=node.home)
            log = Log(node="bench", process="bench", stream=io.StringIO())
            speaker = Speaker(NodeId(node.node_id()), f"bench-{os.getpid()}", new_boot())
            self.mirrors.append(BusClient(speaker, settings.endpoints, self.reactor, log))
        self._until(lambda: all(one.mirror.live for one in self.mirrors), 30)

    def _until(self, done: Any, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < ends_at, "not in time"
            self.reactor.turn(0.001)

    def latencies_ms(self, count: int) -> list[float]:
        """From a command to the last of the mirrors that has applied it."""
        node = self.mirrors[0].speaker.node
        found: list[float] = []
        for number in range(count):
            answers: list[Acknowledged | CommandRefused] = []
            command = RenameNode(
                command_id=CommandId(new_name("bench")), node=node, name=f"name-{number}"
            )
            began = time.perf_counter()
            self.mirrors[0].command(command, answers.append)
            self._until(lambda answers=answers: answers, 15)
            (answer,) = answers
            assert isinstance(answer, Acknowledged), answer
            self._until(lambda i=answer.index: all(m.state.index >= i for m in self.mirrors), 15)
            found.append(1000 * (time.perf_counter() - began))
        return found

    def events_per_s(self, count: int) -> float:
        """Many commands at once, until every mirror has the last."""
        node = self.mirrors[0].speaker.node
        answers: list[Acknowledged | CommandRefused] = []
        began = time.perf_counter()
        for number in range(count):
            command = RenameNode(
                command_id=CommandId(new_name("bench")), node=node, name=f"again-{number}"
            )
            self.mirrors[0].command(command, answers.append, deadline_s=60.0)
        self._until(lambda: len(answers) == count, 60)
        last = max(one.index for one in answers if isinstance(one, Acknowledged))
        self._until(lambda: all(one.state.index >= last for one in self.mirrors), 30)
        return count / (time.perf_counter() - began)

    def close(self) -> None:
        for one in self.mirrors:
            one.close()
        self.reactor.close()


def control_plane() -> dict[str, Any]:
    """Three nodes: a command until everybody has applied it, and events a second."""
    cluster = Cluster(3)
    try:
        cluster.up()
        watchers = Watchers(cluster)
        try:
            taken = watchers.latencies_ms(COMMANDS)
            rate = watchers.events_per_s(1000)
        finally:
            watchers.close()
    finally:
        cluster.close()
    ordered = sorted(taken)
    return {
        "applied_ms_p50": statistics.median(ordered),
        "applied_ms_p99": ordered[int(0.99 * len(ordered))],
        "events_per_s": rate,
    }


def lockstep(repeats: int) -> dict[str, Any]:
    """A group's step beside that of a loop which needs no telling."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        model = random_qwen2(Path(folder) / MODEL)
        compile_kernels(model)
        return {one: compared(model, one, repeats) for one in ("tensor", "pipeline")}


def show_lockstep(found: dict[str, Any], console: Console) -> None:
    """At most a millisecond or 5 %, whichever is more."""
    table = Table(
        "2 ranks", "rows", "shoal ms/step", "bare ms/step", "more, ms", "ratio", "at most"
    )
    for sharding, part in found.items():
        for rows, row in part.items():
            bare_ms = row["bare_ms"]
            aim = f"{1 + max(1.0, 0.05 * bare_ms) / bare_ms:.2f}"
            more = f"{row['more_ms']:.2f}"
            cells = (f"{row['ours_ms']:.2f}", f"{bare_ms:.2f}", more, f"{row['ratio']:.2f}", aim)
            table.add_row(sharding, rows, *cells)
    console.print(table)


def spread(row: dict[str, Any]) -> str:
    """The median between the least and the most."""
    return f"{row['tok_s']:.1f} ({row['tok_s_min']:.1f}-{row['tok_s_max']:.1f})"


def show_groups(found: dict[str, Any], console: Console) -> None:
    """Each pair's tokens a second, and what an idle group burns."""
    aims = {"tensor": (1.0, 1.0), "pipeline": (1.0, 1.3)}
    table = Table(
        "2 ranks", "weights", "streams", "shoal tok/s", "mlx_lm.server tok/s", "ratio", "at least"
    )
    for weights, kinds in found.items():
        for sharding, part in kinds.items():
            ours, theirs = part["load"].values()
            for level, aim in zip(LEVELS, aims[sharding], strict=True):
                mine, rival = ours[str(level)]["tok_s"], theirs[str(level)]["tok_s"]
                ratio = mine / rival if rival else float("nan")
                cells = (spread(ours[str(level)]), spread(theirs[str(level)]))
                table.add_row(sharding, weights, str(level), *cells, f"{ratio:.2f}", f"{aim:.1f}")
            for name, cores in part["idle_cores"].items():
                burnt = f"{100 * cores:.1f} % of a core"
                console.print(f"idle, {weights}: {name} burns {burnt} (ours: at most 2)")
    console.print(table)


def show(found: dict[str, Any]) -> None:
    """Each figure beside its aim."""
    console = Console(width=120)
    show_groups(found["groups"], console)
    show_lockstep(found["lockstep"], console)
    plane = found["control"]
    console.print(
        f"command to applied by three nodes: p50 {plane['applied_ms_p50']:.1f} ms, "
        f"p99 {plane['applied_ms_p99']:.1f} ms; {plane['events_per_s']:.0f} events/s replicated"
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--repeats", type=int, default=3)
    asked = options.parse_args()
    found = {
        "control": control_plane(),
        "lockstep": lockstep(2 * asked.repeats),
        "groups": groups(asked.repeats),
    }
    out = ROOT / "bench-results" / "cluster.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1))
    show(found)


if __name__ == "__main__":
    main()
