"""The worker process, which makes this node match the cluster's state. Run as `python -P -m
worker`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bus.models.kv import KvLimits, kv_root
from bus.models.tasks import ENGINES_FILE
from bus.process.installation import ENVIRONMENTS
from bus.process.supervisor import Supervisor
from bus.process.zygote import OVERLAY_FILE
from bus.service import Shell, run_service
from bus.wire.messages.control import FAST_SYNCH
from conf.paths import bundled_models, llama_server, make_folders
from conf.ports import PORTS
from conf.settings import LAUNCHED_BY, Settings, load_settings
from worker.eviction import StoreSettings
from worker.machine.gpu import has_cuda, has_metal
from worker.machine.node_card import memory_bytes
from worker.models.files import installed_families
from worker.models.weights import Shelf, Weights, hugging_face_cache
from worker.pulling import PullSettings, hub_of
from worker.service import Worker, WorkerSettings
from worker.slots.runner_specs import DataPorts, RunnerDefaults, open_secret
from worker.transfer.thread import WeightsSettings

NOT_IN_SPECS = {
    *("blas", "blas_threads", "parity", "constrain_tools"),
    *("group_connect_s", "spare", "kv", "metal_fast_synch", "llama_server", "speculate"),
    *("kv_disk_bytes", "kv_disk_min_tokens", "kv_disk_hours", "kv_moves"),
}
"""Runner settings that a `RunnerSpec` does not contain."""
MEASURE_AGAIN = (sys.executable, "-P", "-m", "conf.blas")
STILL_S = 1.0
"""A weight file that changed less than this many seconds ago may still be growing."""


def weights_settings(settings: Settings) -> WeightsSettings:
    """Return where this node stores weights, and the addresses at which other nodes can fetch them.
    There are no addresses unless this node listens for other nodes."""
    listen, port = settings.cluster.listen, settings.port_of("weights")
    return WeightsSettings(
        models=settings.paths.models,
        hashes=settings.paths.state / "weights",
        listen=(f"tcp://{listen}:{port}",) if listen else (),
        announce=tuple(f"tcp://{host}:{port}" for host in settings.announced_hosts()),
        bytes_per_s=float(settings.weights_bytes_per_s),
    )


def worker_settings(settings: Settings) -> WorkerSettings:
    """Return the settings that the worker itself uses."""
    runner = settings.runner
    is_linux = sys.platform.startswith("linux")
    return WorkerSettings(
        node_name=settings.node_name,
        slots=settings.slots,
        memory_bytes=settings.memory_bytes,
        runner=RunnerDefaults(**runner.model_dump(exclude=NOT_IN_SPECS)),
        group_connect_s=runner.group_connect_s,
        data=DataPorts(
            listen=settings.cluster.listen,
            port=settings.port_of("data"),
            hosts=settings.announced_hosts(),
        ),
        ring_ports=(settings.port_of("ring"), PORTS["ring"].count),
        plan_ports=(settings.port_of("plans"), PORTS["plans"].count),
        weights=weights_settings(settings),
        pulls=PullSettings(
            settings.paths.models,
            settings.paths.state / "pulls",
            settings.offline,
            float32=_float32(),
            kv=settings.runner.kv,
            hub=hub_of(os.environ.get("HF_ENDPOINT", "")),
            memory_bytes=memory_bytes(settings.memory_bytes),
        ),
        store=StoreSettings(
            settings.paths.models, settings.store_bytes, settings.store, settings.offline
        ),
        llama_server=llama_server(settings.runner.llama_server),
        spare=runner.spare,
        launched_by=os.environ.get(LAUNCHED_BY, ""),
        measure_again=MEASURE_AGAIN if is_linux else (),
        runner_variables=settings.paths.state / OVERLAY_FILE,
        engines_file=settings.paths.config / ENGINES_FILE,
        environments=settings.paths.data / ENVIRONMENTS,
        memory_speed=settings.paths.measured / "memory-speed.json" if is_linux else None,
        kv_files=KvLimits(
            kv_root(settings.paths.state),
            most_bytes=runner.kv_disk_bytes,
            least_tokens=runner.kv_disk_min_tokens,
            unused_s=3600 * runner.kv_disk_hours,
            moves=runner.kv_moves,
        ),
    )


def shelf(settings: Settings) -> Shelf:
    """Return the folders in which this node looks for models."""
    more = tuple(Path(folder).expanduser() for folder in settings.model_folders)
    return Shelf(
        bundled=bundled_models() if settings.bundled_model else {},
        folders=(settings.paths.models, *more),
        hugging_face=hugging_face_cache(),
        float32=_float32(),
        kv=settings.runner.kv,
        metal_fast_synch=_fast_synch(settings.runner.metal_fast_synch),
        families=installed_families(),
        still_s=STILL_S,
    )


def _fast_synch(setting: str) -> bool | None:
    """Return whether the operator switched Metal's fast synchronisation on or off, by the setting
    or by the environment variable; None if neither is set."""
    if setting != "card":
        return setting == "on"
    exported = os.environ.get(FAST_SYNCH)
    return None if not exported else exported != "0"


def _float32() -> bool:
    """Return whether floating-point weights are cast to 32 bits when they are loaded."""
    return not (has_metal() or has_cuda())


def main() -> int:
    """Run the worker until it is stopped; return the exit code."""
    settings = load_settings()
    make_folders(settings.paths)

    def build(shell: Shell) -> Worker:
        """Return the worker; `shell` is the process that it runs in."""
        return Worker(
            shell.client(),
            worker_settings(settings),
            Supervisor(shell.endpoints.supervisor),
            Weights(shelf(settings)),
            open_secret if shell.keyring is None else shell.keyring.ring_secret,
        )

    return run_service("worker", build=build, **settings.process_arguments())


if __name__ == "__main__":
    sys.exit(main())
