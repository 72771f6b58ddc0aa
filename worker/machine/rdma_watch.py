"""Talks to the system's RDMA tools, in a thread of its own, and to the bus about other nodes'.

The tools may take seconds, and cables come and go: they are asked again and again, where they are
there at all.
"""

from __future__ import annotations

import os
import shutil
import threading

from bus.client import BusClient
from bus.process.tools import asked
from bus.wire.codec import Envelope
from bus.wire.ids import NodeId
from bus.wire.messages.readings import CardReading
from bus.wire.topology import RdmaPort
from worker.machine.rdma import devices_to, find_ports

LOOK_S = 20.0
SYSTEM_PATH = "/usr/bin:/usr/sbin"
NEEDED = "ibv_devinfo"


def find_tool(name: str) -> str | None:
    """Return where a tool is: on the PATH, or where the system keeps its own."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def ask(name: str, *words: str) -> str:
    """Return what a tool prints; nothing where there is no such tool."""
    found = find_tool(name)
    return "" if found is None else asked(found, *words)


class RdmaWatch:
    """This node's RDMA ports and where they lead. Use it from the loop's thread."""

    def __init__(self, client: BusClient, look_s: float = LOOK_S) -> None:
        self.ports: tuple[RdmaPort, ...] = ()
        self._node = client.speaker.node
        self._others: dict[NodeId, tuple[RdmaPort, ...]] = {}
        self._look_s = look_s
        self._stop = threading.Event()
        client.hear("card", self._heard)
        if find_tool(NEEDED) is not None:
            threading.Thread(target=self._watch, name="rdma", daemon=True).start()

    @property
    def devices(self) -> dict[str, str]:
        """Return peer to the device that leads there."""
        return devices_to(self.ports, self._others)

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.ports = find_ports(ask)
            self._stop.wait(self._look_s)

    def _heard(self, _topic: str, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, CardReading) and message.card.node != self._node:
            self._others[message.card.node] = message.card.rdma_ports
