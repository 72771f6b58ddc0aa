"""Composition root of telemetry: reads the settings, builds the service and runs it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from bus.process.supervisor import Supervisor
from bus.service import run_service
from conf.paths import MeansKeeper, means_of
from conf.ports import PORTS
from conf.settings import Settings, load_settings
from conf.supervisord import SERVICES
from telemetry.hardware import sources_here
from telemetry.service import Telemetry


def doors(settings: Settings) -> Mapping[str, Sequence[int]]:
    """Return the TCP ports at which each process must listen, by process name, except the HTTP
    port. Empty if the node does not listen for other nodes."""
    ports_by_process: dict[str, list[int]] = {}
    for use, row in PORTS.items() if settings.cluster.listen else ():
        if row.process and use != "http":
            ports_by_process.setdefault(row.process, []).append(settings.port_of(use))
    return ports_by_process


def reopen_logs() -> None:
    """Make supervisord, the parent of this process, reopen its log files."""
    if os.environ.get("SUPERVISOR_ENABLED"):
        os.kill(os.getppid(), signal.SIGUSR2)


def main() -> int:
    """Run until a signal stops the service; return the exit code."""
    settings = load_settings()
    paths = settings.paths
    keeper = MeansKeeper(paths, means_of(paths, settings.endpoints, SERVICES), reopen_logs)
    supervisor = Supervisor(settings.endpoints.supervisor)
    return run_service(
        "telemetry",
        build=lambda shell: Telemetry(
            shell,
            supervisor.list_processes,
            paths.data,
            journal=paths.journal,
            doors=doors(settings),
            sources=sources_here(),
            keep=keeper.look,
        ),
        **settings.process_arguments(),
    )


if __name__ == "__main__":
    sys.exit(main())
