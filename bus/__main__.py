"""Talks to the operating system: starts this node's switchboard (`python -P -m bus`)."""

from __future__ import annotations

import sys

from bus.identity import node_id
from bus.service import Shell, run_service
from bus.switchboard import Switchboard
from conf.settings import load_settings


def build(shell: Shell) -> Switchboard:
    """The service, from its shell."""
    return Switchboard(shell.endpoints, shell.reactor, shell.log)


def main() -> int:
    """Run until told to stop; the exit code is that of `bus.service`."""
    settings = load_settings()
    return run_service(
        "bus",
        node=node_id(settings.paths.state),
        endpoints=settings.endpoints,
        log_level=settings.log_level,
        build=build,
    )


if __name__ == "__main__":
    sys.exit(main())
