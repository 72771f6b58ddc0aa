"""Several switchboards joined over TCP on loopback, all turned by one loop."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bus.client import BusClient, Speaker
from bus.links.cluster_key import ClusterKey, ClusterKeys, KeyFiles
from bus.links.keyring import Keyring, open_keyring, write_keys
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.membership.peer_links import PeerSettings, PeerTiming
from bus.process.clock import now
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.replica.state import ClusterState, digest
from bus.switchboard.switchboard import Switchboard
from bus.wire.ids import NodeId
from bus.wire.messages.control import Snapshot, TermHeartbeat
from bus.wire.messages.peers import PeerPorts
from tests.harness.ports import free_port

PATIENCE_S = 20.0


class StateTeller:
    """A holder that has nothing but a state: beats, and answers with a snapshot of it."""

    def __init__(self, client: BusClient, address: str, keyring: Keyring | None) -> None:
        self.client = client
        self.state = ClusterState()
        self._address = f"tcp://{address}"
        self._link = Link("router", security=None if keyring is None else keyring.node)
        for where in (client.endpoints.candidate, self._address):
            self._link.bind(where)
        client.reactor.watch(self._link, self._asked)
        self._timer = client.reactor.every(0.1, self._beat)

    def tell(self, **changes: Any) -> None:
        """Have a state that differs so, one index further."""
        fresh = {"index": self.state.index + 1, "term": 1, "holder": self.client.speaker.node}
        self.state = self.state.model_copy(update={**fresh, **changes})

    def close(self) -> None:
        self._timer.cancel()
        self.client.reactor.unwatch(self._link)
        self._link.close()

    def _beat(self) -> None:
        beat = TermHeartbeat(
            holder=self.client.speaker.node,
            counter=1,
            index=self.state.index,
            digest=digest(self.state),
            addresses=(self._address,),
        )
        self.client.publish("term", beat)

    def _asked(self, frames: list[bytes]) -> None:
        state = self.state
        body = state.model_dump()
        found = Snapshot(term=1, index=state.index, state=body, holder=state.holder)
        self._link.send(frames[0], self.client.write(found))


class JoinedSwitchboards:
    """Several switchboards by name, in temporary folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reactor = PollReactor()
        self.boards: dict[str, Switchboard] = {}
        self.ports: dict[str, int] = {}
        self.logs: dict[str, io.StringIO] = {}
        self.clients: list[BusClient] = []
        self.tellers: list[StateTeller] = []

    def teller(self, name: str) -> StateTeller:
        """A holder at this node."""
        client, keyring = self.client(name, "master"), self.boards[name].keyring
        made = StateTeller(client, f"127.0.0.1:{free_port()}", keyring)
        self.tellers.append(made)
        return made

    def start(
        self,
        name: str,
        *seeds: str,
        namespace: str = "shoal",
        key: ClusterKey | None = None,
        discovery: bool = False,
        measures: bool = True,
        look: Callable[[], tuple[str, ...]] | None = None,
        timing: PeerTiming = PeerTiming(),  # noqa: B008 - frozen
        listen: str = "127.0.0.1",
        hosts: tuple[str, ...] = ("127.0.0.1",),
    ) -> Switchboard:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        port = self.ports.setdefault(name, free_port())
        settings = PeerSettings(
            name=name,
            namespace=namespace,
            listen=listen,
            addresses=hosts,
            port=port,
            ports=PeerPorts(control=free_port(), telemetry=free_port(), candidate=free_port()),
            seeds=tuple(f"127.0.0.1:{self.ports[seed]}" for seed in seeds),
            file=folder / "peers.json",
            discovery=discovery,
            measures=measures,
            look=look,
            timing=timing,
        )
        self.logs[name] = io.StringIO()
        log = Log(node=name, process="bus", stream=self.logs[name])
        node, keyring = NodeId(f"n-{name}"), None
        if key is not None:
            files = KeyFiles(folder / "key", folder / "known")
            write_keys(files.key, ClusterKeys(key), replace=True)
            keyring = open_keyring(files, node=node, log=log)
        speaker = Speaker(node, "bus", new_boot())
        self.boards[name] = Switchboard(
            Endpoints(str(folder)), self.reactor, log, speaker, settings, keyring
        )
        return self.boards[name]

    def client(self, name: str, process: str) -> BusClient:
        speaker = Speaker(NodeId(f"n-{name}"), process, new_boot())
        log = Log(node=name, process=process, stream=io.StringIO())
        made = BusClient(speaker, self.boards[name].endpoints, self.reactor, log, follow=False)
        self.clients.append(made)
        return made

    def linked(self, name: str) -> set[str]:
        peers = self.boards[name].peers
        assert peers is not None
        known = peers.membership.peers.values()
        return {peer.name for peer in known if peer.status == "linked"}

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = now() + PATIENCE_S
        while not condition():
            assert now() < end, f"not in time: {what}"
            self.reactor.turn(0.01)

    def settle(self, turns: int = 30) -> None:
        for _ in range(turns):
            self.reactor.turn(0.01)

    def close(self) -> None:
        for teller in self.tellers:
            teller.close()
        for client in self.clients:
            client.close()
        for board in self.boards.values():
            board.close()
        self.reactor.close()


@contextmanager
def boards() -> Iterator[JoinedSwitchboards]:
    """None yet; those that are started are closed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="sh") as folder:
        made = JoinedSwitchboards(Path(folder))
        try:
            yield made
        finally:
            made.close()
