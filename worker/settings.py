"""The settings of a node's worker, as `worker.__main__` composes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worker.eviction import StoreSettings
from worker.pulling import PullSettings
from worker.slots import runner_specs
from worker.slots.admission import USUAL, SlotTiming
from worker.transfer.thread import WeightsSettings


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The worker's settings. `memory_bytes` 0: runners may use all of the machine's memory. Ranges
    of ports are (first port, number of ports)."""

    node_name: str
    slots: int
    memory_bytes: int
    runner: runner_specs.RunnerDefaults
    data: runner_specs.DataPorts
    ring_ports: tuple[int, int]
    plan_ports: tuple[int, int]
    weights: WeightsSettings
    pulls: PullSettings
    store: StoreSettings
    launched_by: str = ""
    llama_server: tuple[str, ...] = ()
    spare: bool = False
    group_connect_s: float = 20.0
    timing: SlotTiming = USUAL
    measure_again: tuple[str, ...] = ()
    """The command that measures the BLAS libraries again."""
    runner_variables: Path = Path()
    engines_file: Path | None = None
