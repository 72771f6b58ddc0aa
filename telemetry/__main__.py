"""Composition root of telemetry: read the settings, build, run."""

from __future__ import annotations

import sys

from bus.process.supervisor import Supervisor
from bus.service import run_service
from conf.settings import load_settings
from telemetry.service import Telemetry


def main() -> int:
    """Run until told to stop; returns the exit code."""
    settings = load_settings()
    supervisor = Supervisor(settings.endpoints.supervisor)
    return run_service(
        "telemetry",
        build=lambda shell: Telemetry(
            shell, supervisor.list_processes, settings.paths.data, settings.paths.journal
        ),
        **settings.process_arguments(),
    )


if __name__ == "__main__":
    sys.exit(main())
