"""Talks to the worker's loop and to the weights thread: passes questions about KV, and the answers,
between the two.

It adds to each question which nodes have the model, the addresses of their stores, and the measured
speed of the links to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from bus.client import BusClient
from bus.hardware.observed_links import address_at, measured_links
from bus.links.reactor import PollReactor
from bus.models.kv import KvLimits
from bus.wire.ids import ModelId, NodeId
from bus.wire.kv import RunSought, SeekRun
from bus.wire.messages.readings import LinkReading
from bus.wire.messages.wire import Message
from bus.wire.topology import prior
from worker.models.local_models import LocalModels
from worker.transfer.disk_thread import DiskThread
from worker.transfer.downloads import Downloads
from worker.transfer.kv_moves.lender import RunLender
from worker.transfer.kv_moves.mover import RunMover, Seek
from worker.transfer.kv_moves.shelf import RunShelf
from worker.transfer.kv_moves.sweep import CopySweep
from worker.transfer.source import StoreAddress
from worker.transfer.sources import is_store_address

MOST_SOURCES = 8
SWEEP_S = 20.0
"""Copies whose originals are gone are deleted this often."""


class KvMoves:
    """Copies KV for the runners of this node. `models` are its models, `links` returns the measured
    links, `answer` sends a runner a message. The worker calls `tick`."""

    def __init__(
        self,
        client: BusClient,
        downloads: Downloads,
        limits: KvLimits,
        links: Callable[[], Mapping[NodeId, LinkReading]],
        models: LocalModels,
        answer: Callable[[bytes, Message], object],
    ) -> None:
        assert isinstance(client.reactor, PollReactor), "this loop cannot be called from a thread"
        self._client = client
        self._reactor = client.reactor
        self._node = client.speaker.node
        self._downloads = downloads
        self._limits = limits
        self._links = links
        self._models = models
        self._answer = answer
        self._swept_at = client.reactor.now()
        self._prepared: set[ModelId] = set()
        self._thread = downloads.thread
        parts, shelf = self._thread.parts(), RunShelf(limits)
        self._disk = DiskThread("kv-moves", self._thread.call)
        self._mover = RunMover(parts, limits, self._disk, self._node, client.log)
        self._lender = RunLender(parts, limits, shelf, self._disk, self._node)
        self._sweep = CopySweep(parts, shelf, self._disk, client.log)
        self._thread.on_close.append(self._close)

    def seek(self, question: SeekRun, asker: bytes) -> None:
        """Answer a runner's question, now or later."""
        card = self._models.cards.get(question.model)
        if card is None or not self._limits.moves:
            self._answer(asker, RunSought(prompt=question.prompt, what="none"))
            return
        now = self._reactor.now()
        stores = self._best(self._downloads.sources.stores_with(question.model, now))
        speeds = {store: self._speed(store, now) for store in stores.values()}
        speeds = dict(sorted(speeds.items(), key=lambda entry: -entry[1])[:MOST_SOURCES])

        def reply(answer: RunSought) -> None:
            """Send the answer in the loop of the worker."""

            def send() -> None:
                """Send the answer, unless the runner has gone."""
                self._answer(asker, answer)

            self._reactor.call(send)

        self._thread.call(partial(self._mover.seek, Seek(question, Path(card.path), speeds, reply)))

    def tick(self, now: float) -> None:
        """Hash the files of models that are placed on this node alone and that another node has on
        its disk, so that their first copy of KV need not wait. Every `SWEEP_S`, delete copies whose
        originals are gone."""
        placed = {
            instance.model
            for instance in self._client.state.instances.values()
            if [shard.node for shard in instance.shards] == [self._node]
        }
        for model in placed - self._prepared:
            card = self._models.cards.get(model)
            if self._limits.moves and card and self._downloads.sources.stores_with(model, now):
                self._prepared.add(model)
                self._thread.call(partial(self._mover.prepare, Path(card.path)))
        self._prepared &= placed
        if now - self._swept_at >= SWEEP_S and self._limits.root.exists():
            self._swept_at = now
            stores = [
                StoreAddress(node, address)
                for node, card in sorted(self._downloads.sources.living(now).items())
                for address in card.weights_addresses
                if is_store_address(address)
            ]
            self._thread.call(partial(self._sweep.sweep, self._best(stores)))

    def _close(self) -> None:
        """End all copies and their disk thread. Called when the weights thread ends."""
        self._mover.close()
        self._sweep.close()
        self._disk.close()

    def _best(self, stores: Iterable[StoreAddress]) -> dict[NodeId, StoreAddress]:
        """Return the address of each node's store at which the node was measured, else its first
        address."""
        best: dict[NodeId, StoreAddress] = {}
        mine = self._links().get(self._node)
        hosts = {(link.peer, link.host) for link in mine.links} if mine else set[object]()
        for store in stores:
            if store.node not in best or (store.node, _host_of(store)) in hosts:
                best[store.node] = store
        return best

    def _speed(self, store: StoreAddress, now: float) -> float:
        """Return the bytes per second of the link to a node, as one of the two measured it, else
        as estimated from the medium."""
        ips = {node: card.ips for node, card in self._downloads.sources.living(now).items()}
        for by, peer in ((self._node, store.node), (store.node, self._node)):
            reading = self._links().get(by)
            cost = None if reading is None else measured_links(reading, ips).get(peer)
            if cost is not None:
                return cost.bytes_per_s
        return prior(address_at(_host_of(store), ips.get(store.node, ()))).bytes_per_s


def _host_of(store: StoreAddress) -> str:
    return store.address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
