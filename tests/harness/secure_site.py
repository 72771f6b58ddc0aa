"""Nodes with keyrings and secure links on loopback, all in one process and one loop."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bus.links.cluster_key import ClusterKeys, KeyFiles
from bus.links.keyring import Keyring, open_keyring, write_keys
from bus.links.reactor import PollReactor
from bus.links.security import Security
from bus.links.transport import Frames, Kind, Link
from bus.process.clock import now
from bus.process.logs import Log
from bus.wire.ids import NodeId

ANY = "tcp://127.0.0.1:*"


class Site:
    """Some nodes in one process: a folder and a keyring each, one reactor for all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reactor = PollReactor()
        self.links: list[Link] = []
        self.said = io.StringIO()

    def keyring(self, node: NodeId, keys: ClusterKeys, *known: NodeId) -> Keyring:
        home = self.folder / node
        write_keys(home / "key", keys, replace=True)
        log = Log(node=node, process="test", stream=self.said)
        ring = open_keyring(KeyFiles(home / "key", home / "known"), node=node, log=log)
        assert ring is not None
        ring.introduce(known)
        return ring

    def serve(
        self, security: Security | None, kind: Kind = "router", address: str = ANY
    ) -> tuple[Link, str, list[tuple[NodeId | None, Frames]]]:
        link = Link(kind, security=security)
        self.links.append(link)
        heard: list[tuple[NodeId | None, Frames]] = []
        bound = link.bind(address)
        self.reactor.watch_from(link, lambda peer, frames: heard.append((peer, frames)))
        return link, bound, heard

    def call(
        self,
        security: Security | None,
        address: str,
        *,
        peer: NodeId | None = None,
        kind: Kind = "dealer",
        **more: Any,
    ) -> tuple[Link, list[Frames]]:
        link = Link(kind, security=security, **more)
        self.links.append(link)
        heard: list[Frames] = []
        self.reactor.watch(link, heard.append)
        link.connect(address, peer=peer)
        return link, heard

    def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> bool:
        end = now() + seconds
        while not condition() and now() < end:
            self.reactor.turn(0.01)
        return condition()

    def for_seconds(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def drop(self, link: Link) -> None:
        self.reactor.unwatch(link)
        link.close()
        self.links.remove(link)

    def close(self) -> None:
        for link in list(self.links):
            self.drop(link)
        self.reactor.close()
