"""Talks to the system's RDMA tools, in a thread of its own, and to the bus about other nodes'
ports.

The tools may take seconds and cables change, so they run repeatedly, if they exist.
"""

from __future__ import annotations

import os
import shutil
import threading

from bus.client import BusClient
from bus.membership.card_book import CardBook
from bus.process.tools import asked
from bus.wire.codec import Envelope
from bus.wire.messages.readings import CardReading
from bus.wire.topology import RdmaPort
from worker.machine.rdma import devices_to, find_ports

LOOK_S = 20.0
SYSTEM_PATH = "/usr/bin:/usr/sbin"
NEEDED = "ibv_devinfo"


def find_tool(name: str) -> str | None:
    """Return the path of a tool that is on the PATH or in the system's own folder; None if there is
    none."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def ask(name: str, *words: str) -> str:
    """Run a tool with the arguments `words` and return its output; empty if the tool does not
    exist."""
    path = find_tool(name)
    return "" if path is None else asked(path, *words)


class RdmaWatch:
    """Keeps a current list of this node's RDMA ports and of the ports that their cables lead to.
    Use it from the loop's thread."""

    def __init__(self, client: BusClient, look_s: float = LOOK_S) -> None:
        self.ports: tuple[RdmaPort, ...] = ()
        self._node = client.speaker.node
        self._cards = CardBook()
        self._reactor = client.reactor
        self._look_s = look_s
        self._stop = threading.Event()
        client.hear("card", self._take_card)
        if find_tool(NEEDED) is not None:
            threading.Thread(target=self._watch, name="rdma", daemon=True).start()

    @property
    def devices(self) -> dict[str, str]:
        """Return the RDMA device whose cable leads to each peer, by node."""
        cards = self._cards.recent(self._reactor.now())
        return devices_to(self.ports, {node: card.rdma_ports for node, card in cards.items()})

    def close(self) -> None:
        """Stop running the RDMA tools."""
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.ports = find_ports(ask)
            self._stop.wait(self._look_s)

    def _take_card(self, _topic: str, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, CardReading) and message.card.node != self._node:
            self._cards.take(message.card, self._reactor.now())
