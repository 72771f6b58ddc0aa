"""Who is compared: mlx-lm in process, mlx_lm.server, shoal. Each in processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import httpx
import psutil

from conf.blas.choice import Choice, variables
from tests.bench.load import Job, Timing, run
from tests.harness.blas_of_tests import libraries_here
from tests.harness.nodes import ROOT, Node, eventually
from tests.harness.ports import free_port


class Contestant(Protocol):
    """One way to run a model. `run` makes all jobs at once (or in turn, for a single stream)."""

    name: str

    def run(self, model: str, jobs: Sequence[Job]) -> list[Timing]: ...

    def processes(self) -> dict[str, psutil.Process]: ...

    def close(self) -> None: ...


def environment() -> dict[str, str]:
    """What mlx-lm runs with: OpenBLAS on one thread, where it is found."""
    found = libraries_here()[:1]
    blas = variables(Choice(found[0])) if found else {}
    return {**os.environ, **blas, "HF_HUB_OFFLINE": "1"}


class Raw:
    """mlx-lm in a process without any server: stream_generate or BatchGenerator."""

    def __init__(self, mode: str, models: dict[str, Path]) -> None:
        self.mode = mode
        self.name = f"mlx-lm {'stream_generate' if mode == 'single' else 'BatchGenerator'}"
        self._lives: dict[str, subprocess.Popen[str]] = {}
        for key, path in models.items():
            life = subprocess.Popen(
                [sys.executable, str(ROOT / "tests/bench/raw.py"), str(path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
            )  # fmt: skip
            assert life.stdout is not None and life.stdout.readline().strip() == "ready"
            self._lives[key] = life

    def run(self, model: str, jobs: Sequence[Job]) -> list[Timing]:
        life = self._lives[model]
        assert life.stdin is not None and life.stdout is not None
        asked = {"mode": self.mode, "jobs": [[j.prompt, j.max_tokens] for j in jobs]}
        life.stdin.write(json.dumps(asked) + "\n")
        life.stdin.flush()
        return [Timing(**row) for row in json.loads(life.stdout.readline())]

    def processes(self) -> dict[str, psutil.Process]:
        return {f"raw {key}": psutil.Process(life.pid) for key, life in self._lives.items()}

    def close(self) -> None:
        for life in self._lives.values():
            life.kill()
            life.wait()


class MlxServer:
    """`mlx_lm.server`, one process a model."""

    name = "mlx_lm.server"

    def __init__(self, models: dict[str, Path]) -> None:
        self._ports: dict[str, int] = {}
        self._paths = models
        self._lives: dict[str, subprocess.Popen[bytes]] = {}
        for key, path in models.items():
            port = self._ports[key] = free_port()
            self._lives[key] = subprocess.Popen(
                [sys.executable, "-m", "mlx_lm.server", "--model", str(path), "--port", str(port),
                 "--host", "127.0.0.1", "--log-level", "ERROR", "--max-tokens", "4096"],
                env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        for key in models:
            eventually(lambda key=key: self._answers(key), 120, f"mlx_lm.server has {key}")

    def _answers(self, key: str) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self._ports[key]}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def run(self, model: str, jobs: Sequence[Job]) -> list[Timing]:
        return asyncio.run(run(self._ports[model], str(self._paths[model]), jobs))

    def processes(self) -> dict[str, psutil.Process]:
        return {f"server {key}": psutil.Process(life.pid) for key, life in self._lives.items()}

    def close(self) -> None:
        for life in self._lives.values():
            life.kill()
            life.wait()


class Shoal:
    """A whole node, through HTTP; `settings` are variables of the node, `name` tells nodes with
    different ones apart. It runs the code that lies in the folder `tree`, ours without one."""

    def __init__(
        self,
        models: dict[str, Path],
        name: str = "shoal",
        tree: Path | None = None,
        **settings: str,
    ) -> None:
        self.name = name
        self._names = {key: path.name for key, path in models.items()}
        folders = ",".join({str(path.parent) for path in models.values()})
        self.node = Node(
            SHOAL_MODEL_FOLDERS=folders,
            SHOAL_PRELOAD=",".join(self._names.values()),
            SHOAL_DEFAULT_MODEL=next(iter(self._names.values())),
            SHOAL_RUNNER__MAX_WAITING="64",
            SHOAL_LOG_LEVEL="warning",
            **settings,
        )
        self.node.tree = tree or self.node.tree
        try:
            self._start()
        except BaseException:
            self.node.close()
            raise

    def _start(self) -> None:
        self.node.up(180)
        for name in self._names.values():
            eventually(lambda name=name: self._loaded(name), 120, f"shoal has {name}")
        # A model new to this machine has its kernels compiled beside its first answers.
        eventually(lambda: not self._compiling(), 240, "the kernels are compiled")

    def _compiling(self) -> bool:
        """Whether a runner has a child beside the one that renders its templates."""
        return any(
            "/" in name and name.startswith("runner:") and not _renders(process)
            for name, process in self.processes().items()
        )

    def _loaded(self, name: str) -> bool:
        instances = self.node.state()["instances"].values()
        return any(i["model"] == name and i["status"] == "ready" for i in instances)

    def run(self, model: str, jobs: Sequence[Job]) -> list[Timing]:
        return asyncio.run(run(self.node.base_port, self._names[model], jobs))

    def processes(self) -> dict[str, psutil.Process]:
        found: dict[str, psutil.Process] = {}
        for name, pid in self.node.processes().items():
            process = psutil.Process(pid)
            found[name] = process
            for number, child in enumerate(process.children(recursive=True)):
                found[f"{name}/{number}"] = child
        return found

    def close(self) -> None:
        self.node.close()


def _renders(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(word.endswith("rendering/sandbox.py") for word in process.cmdline())
    return True


def peak_bytes(process: psutil.Process) -> int:
    """The most that was ever resident (Linux), else what is now."""
    try:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    except OSError:
        return 0
    return process.memory_info().rss


def cpu_s(process: psutil.Process) -> float:
    """User and system seconds so far; 0 for a process that is gone."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system
