"""Talks to the system: a temporary home with one or two nodes, for `shoal selftest` only.

The nodes have their own folders, ports, namespace and processes, and listen on loopback alone. They
read no settings, models or environment variables of the user's node, and never contact a hub.
`close` stops everything and deletes the home.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from conf.blas import prepared_blas
from conf.paths import HOME_VARIABLE, bundled_models, make_folders
from conf.settings import Settings, load_settings
from gateway.cli.node import processes
from gateway.cli.node.node_api import NodeApi
from gateway.cli.node.processes import Leftover
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import Output
from gateway.cli.selftest.child import measured_by
from gateway.cli.verbs.node.lab import (
    LabNode,
    prepare_homes,
    start_nodes,
    take_down,
    wait_formed,
)

NAMESPACE = "selftest"
PREFIX = "shoal-selftest-"
SETTINGS = ("offline = true", 'default_model = "shoal-tiny"')


class SelftestSite:
    """The temporary home. Nodes start when they are first needed. `took_s` are the seconds that the
    first node needed to start."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        self.took_s = 0.0
        self._nodes: list[LabNode] = []
        self._up: list[LabNode] = []

    @property
    def model(self) -> Path:
        """Return the folder of the bundled model. Raises CliError if this package has none."""
        for folder in bundled_models().values():
            return folder
        raise CliError("this package has no bundled model", remedy="install shoal again")

    def settings(self, number: int = 0) -> Settings:
        """Return the settings of a node of this home."""
        return load_settings(home=self._prepared()[number].home)

    def node(self) -> LabNode:
        """Return the first node; start it if it does not run."""
        return self._started(1)[0]

    def pair(self) -> list[LabNode]:
        """Return both nodes, which form a cluster; start the missing nodes."""
        nodes = self._started(2)
        wait_formed(nodes)
        return nodes

    def api(self) -> NodeApi:
        """Return the API of the first node; start it if it does not run."""
        return self.node().api

    def stop(self, number: int) -> list[Leftover]:
        """Stop a node. Return its processes that still run."""
        node = self._nodes[number]
        paths = self.settings(number).paths
        before = processes.leftovers(paths)
        take_down(node.home, Output(verbosity=-1))
        self._up.remove(node)
        after = {leftover.pid: leftover for leftover in processes.leftovers(paths)}
        after |= {leftover.pid: leftover for leftover in before if processes.alive(leftover)}
        return list(after.values())

    def is_up(self, number: int) -> bool:
        """Return whether a node was started and not stopped."""
        return len(self._nodes) > number and self._nodes[number] in self._up

    def measure(self, name: str, *, folder: str = "", timeout_s: float) -> dict[str, Any]:
        """Return the document of a measurement in a runner's environment. Raises CliError."""
        settings = self.settings()
        make_folders(settings.paths)
        variables = {
            **self._variables(),
            **prepared_blas(settings).variables,
            HOME_VARIABLE: str(settings.paths.home),
            "TMPDIR": str(settings.paths.kernels),
        }
        into = Path(folder) if folder else self.folder / name
        question = {"model": str(self.model), "folder": str(into)}
        return measured_by(name, question, variables, timeout_s)

    def close(self) -> None:
        """Stop every node and delete the home."""
        for node in self._nodes:
            with contextlib.suppress(CliError):
                take_down(node.home, Output(verbosity=-1))
        self._up.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _started(self, count: int) -> list[LabNode]:
        nodes = self._prepared()[:count]
        missing = [node for node in nodes if node not in self._up]
        if missing:
            began = time.monotonic()
            start_nodes(missing, self._output, self._variables())
            self._up += missing
            self.took_s = self.took_s or time.monotonic() - began
        return nodes

    def _prepared(self) -> list[LabNode]:
        if not self._nodes:
            homes = [self.folder / f"node-{n}" for n in (1, 2)]
            free = processes.free_base_ports(load_settings(home=homes[0]))
            # two self-tests on one machine should not choose the same ports
            bases = list(islice(free, 2 * (os.getpid() % 8), 2 * (os.getpid() % 8) + 2))
            if len(bases) < 2:
                raise CliError(
                    "too few free ports for two nodes", remedy="stop other nodes, then try again"
                )
            self._nodes = [
                LabNode(f"selftest-{n}", home, base)
                for n, (home, base) in enumerate(zip(homes, bases, strict=True), start=1)
            ]
            prepare_homes(self._nodes, namespace=NAMESPACE, more=SETTINGS)
        return self._nodes

    def _variables(self) -> Mapping[str, str]:
        """Return variables that hide the user's models from the nodes."""
        return {"HF_HOME": str(self.folder / "hub"), "HF_HUB_CACHE": str(self.folder / "hub")}


@contextlib.contextmanager
def without_variables() -> Generator[None]:
    """Remove the user's settings from this process's environment inside the block."""
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SHOAL_")}
    try:
        yield
    finally:
        os.environ.update(removed)


def caffeinates(pid: int) -> list[int]:
    """Return the ids of `caffeinate` processes below a process."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in children if child.name() == "caffeinate"]
    return []
