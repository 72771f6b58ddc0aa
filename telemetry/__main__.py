"""Composition root of telemetry: read the settings, build, run."""

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
    """Return the ports, beside HTTP's, at which each process has to listen."""
    found: dict[str, list[int]] = {}
    for use, row in PORTS.items() if settings.cluster.listen else ():
        if row.process and use != "http":
            found.setdefault(row.process, []).append(settings.port_of(use))
    return found


def reopen_logs() -> None:
    """Have supervisord, whose child this is, open the files of its logs anew."""
    if os.environ.get("SUPERVISOR_ENABLED"):
        os.kill(os.getppid(), signal.SIGUSR2)


def main() -> int:
    """Run until told to stop; returns the exit code."""
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
