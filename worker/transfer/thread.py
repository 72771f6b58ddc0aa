"""Talks to the weights thread, in which this node's store and downloader have their own event loop.

The worker's loop never waits for bytes or disks: it sends the thread the models on the disk and the
wanted models, and reads the latest state of each fetch. An exception in the thread is raised in the
worker at the next read, because a worker needs its thread.
"""

from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from bus.client import Letters, Speaker
from bus.links.reactor import PollReactor
from bus.links.security import Security
from bus.links.traffic import Traffic
from bus.links.transport import Link
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.errors import Exposed, PortTaken
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.wire import Message
from worker.models.file_hashes import Hashes
from worker.transfer.disk_thread import DiskThread
from worker.transfer.downloader import Downloader, DownloadNews, OpenLink, Pack, Wanted
from worker.transfer.staging import sweep
from worker.transfer.store import Beside, Store

BIND_AGAIN_S = 5.0
HIGH_WATER = 64
"""The most messages that a socket queues for one peer. This limits the pieces in memory for a peer
that reads slowly."""
HEARTBEAT_MS = 2_000
MAX_QUESTION_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class WeightsSettings:
    """`models` is the folder of fetched models, `hashes` the folder of stored hashes. `listen` are
    the addresses at which the store listens (none: it serves nothing). `announce` are the addresses
    to announce (none: those at which it listens). It sends at most `bytes_per_s` (0: no limit)."""

    models: Path
    hashes: Path
    listen: tuple[str, ...] = ()
    announce: tuple[str, ...] = ()
    bytes_per_s: float = 0.0


def link_maker(
    security: Security | None, speaker: Speaker | None = None, traffic: Traffic | None = None
) -> OpenLink:
    """Return the function that makes every socket for weights: a ROUTER, or a DEALER to `node`.
    `traffic` counts the bytes by node. A ROUTER counts them only for DEALERs whose `speaker` is
    known, because the DEALER's identity then names its node."""
    count = itertools.count()

    def open_link(kind: Literal["dealer", "router"], node: NodeId | None) -> Link:
        """Return the ROUTER of this node's store, or a DEALER to the store of `node`."""
        if kind == "router":
            link = Link(
                kind, high_water=HIGH_WATER, max_bytes=MAX_QUESTION_BYTES, security=security
            )
            if traffic is not None:
                link.tally = traffic.by_identity("weights")
            return link
        identity = speaker and f"{speaker.node}/{speaker.boot}/{next(count)}"
        link = Link(
            kind,
            identity=identity,
            high_water=HIGH_WATER,
            heartbeat_ms=HEARTBEAT_MS,
            security=security,
        )
        if traffic is not None and node is not None:
            link.tally = traffic.way(node, "weights")
        return link

    return open_link


open_link = link_maker(None)


@dataclass(frozen=True, slots=True)
class ThreadParts:
    """The parts of the weights thread that other services use. `beside` adds services to the store,
    and `send` answers its askers. `models`: the models that are served, with their folders."""

    reactor: PollReactor
    link: OpenLink
    pack: Pack
    hashing: DiskThread
    hashes: Hashes
    beside: Beside
    send: Callable[[bytes, Message], None]
    models: Callable[[], Mapping[ModelId, Path]]
    bytes_per_s: float


class WeightsThread:
    """The thread that fetches and serves weights. The constructor starts it. Every method may be
    called from the worker's thread."""

    def __init__(
        self, settings: WeightsSettings, speaker: Speaker, log: Log, *, link: OpenLink = open_link
    ) -> None:
        self.addresses: tuple[str, ...] = ()
        self._settings = settings
        self._log = log
        self._link = link
        self._pack = Letters(speaker).write
        self._reactor = PollReactor()
        self._hashing = DiskThread("weights-hashing", self._reactor.call)
        self._disk = DiskThread("weights-disk", self._reactor.call)
        self._hashes = Hashes(settings.hashes)
        self._fetcher = Downloader(
            self._reactor, link, self._pack, self._disk, settings.models, log
        )
        self._store: Store | None = None
        self._beside = Beside()
        self.on_close: list[Callable[[], None]] = []
        """Called by `close` when the loop has ended, to close the sockets of other services."""
        self._models: Mapping[ModelId, Path] = {}
        self._defect = ""
        self._trouble = ""
        self._hashing.add(lambda _stopped: self._hashes.sweep(), self._swept)
        self._disk.add(lambda _stopped: sweep(settings.models, wall()), self._swept)
        self._bind()
        self._thread = threading.Thread(target=self._run, name="weights", daemon=True)
        self._thread.start()

    def offers(self, models: Mapping[ModelId, Path]) -> None:
        """Set the models that other nodes may fetch from this one, with their folders."""
        self._reactor.call(partial(self._offers, dict(models)))

    def want(self, wanted: Wanted) -> None:
        """Begin to fetch a model: calls `Downloader.want` in the thread."""
        self._reactor.call(partial(self._fetcher.want, wanted))

    def cancel(self, model: ModelId) -> None:
        """Cancel the fetch of a model. If it has ended, drop its result."""
        self._reactor.call(partial(self._fetcher.cancel, model))

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` in the thread soon."""
        self._reactor.call(action)

    def parts(self) -> ThreadParts:
        """Return the parts for another service, which uses them in the thread only (`call`)."""
        return ThreadParts(
            self._reactor,
            self._link,
            self._pack,
            self._hashing,
            self._hashes,
            self._beside,
            self._answer,
            lambda: self._models,
            self._settings.bytes_per_s,
        )

    def news(self) -> Mapping[ModelId, DownloadNews]:
        """Return the state of each fetch, at most a quarter of a second old. Raises RuntimeError if
        the thread has ended."""
        if self._defect:
            raise RuntimeError(self._defect)
        return self._fetcher.latest

    def close(self) -> None:
        """End the thread, its disk jobs and its sockets."""
        self._reactor.stop()
        self._thread.join()
        self._hashing.close()
        self._disk.close()
        self._fetcher.close()
        for close in self.on_close:
            close()
        if self._store is not None:
            self._store.close()
        self._reactor.close()

    # --- in the thread ---

    def _run(self) -> None:
        try:
            self._reactor.run()
        except Exception:
            self._defect = traceback.format_exc()

    def _offers(self, models: Mapping[ModelId, Path]) -> None:
        self._models = models
        if self._store is not None:
            self._store.offers(models)

    def _answer(self, asker: bytes, message: Message) -> None:
        if self._store is not None:
            self._store.send(asker, message)

    def _swept(self, result: object) -> None:
        if isinstance(result, Exception):
            self._log.warning("could not clean up", error=str(result))

    def _bind(self) -> None:
        """Open the listening sockets. An address that is in use is tried again later."""
        if not self._settings.listen:
            return
        link = self._link("router", None)
        try:
            bound = tuple(link.bind(address) for address in self._settings.listen)
        except (Exposed, PortTaken) as error:
            link.close()
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._log.error("cannot offer weights to other nodes yet", error=self._trouble)
            self._reactor.later(BIND_AGAIN_S, self._bind)
            return
        self._store = Store(
            self._reactor,
            link,
            self._pack,
            self._hashing,
            self._hashes,
            self._log,
            bytes_per_s=self._settings.bytes_per_s,
            beside=self._beside,
        )
        self._store.offers(self._models)
        self.addresses = self._settings.announce or bound
