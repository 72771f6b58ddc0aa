"""Talks to the operating system: starts this node's switchboard (`python -P -m bus`)."""

from __future__ import annotations

import sys

from bus.service import Shell, run_service
from bus.switchboard import PeerPorts, PeerSettings, Switchboard
from conf.settings import Settings, load_settings


def peer_settings(settings: Settings, *, has_key: bool) -> PeerSettings:
    """Return the switchboard's settings for links to other nodes."""
    cluster = settings.cluster
    open_ports = {use: settings.port_of(use) for use in ("control", "telemetry", "candidate")}
    closed_ports = dict.fromkeys(open_ports, 0)
    return PeerSettings(
        name=settings.node_name,
        namespace=cluster.namespace,
        listen=cluster.listen,
        addresses=settings.announced_hosts(),
        port=settings.port_of("peers"),
        ports=PeerPorts(**(open_ports if cluster.listen else closed_ports)),
        seeds=cluster.peers,
        file=settings.paths.state / "peers.json",
        discovery=cluster.discovers(has_key=has_key),
        measures=cluster.measure_links,
        look=settings.announced_hosts,
    )


def main() -> int:
    """Run until a signal ends the process. The exit codes are those of `bus.service`."""
    settings = load_settings()

    def build(shell: Shell) -> Switchboard:
        has_key = shell.keyring is not None and not shell.keyring.is_local
        return Switchboard(
            shell.endpoints,
            shell.reactor,
            shell.log,
            shell.speaker,
            peer_settings(settings, has_key=has_key),
            shell.keyring,
            shell.traffic,
        )

    return run_service("bus", build=build, **settings.process_arguments())


if __name__ == "__main__":
    sys.exit(main())
