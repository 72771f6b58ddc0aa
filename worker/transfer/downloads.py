"""Talks to the bus and the weights thread: the sources and targets of this node's models.

It receives other nodes' cards, fetches models from the nodes that announce them, and publishes
progress. An attempt ends once; its result stays until it is cancelled. A failure is published for
five more minutes, or until a retry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from bus.client import BusClient
from bus.wire.codec import Envelope
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import CardReading, FetchReading, WeightsReading
from bus.wire.messages.weights import StorageReading
from bus.wire.topics import reading_topic
from worker.models.layer_bytes import Layers
from worker.models.local_models import LocalModels
from worker.transfer.downloader import DownloadNews, Wanted
from worker.transfer.sources import Sources, WeightsElsewhere
from worker.transfer.thread import WeightsSettings, WeightsThread, link_maker

PUBLISH_S = 1.0
FAILED_S = 300.0
PREFER_S = 10.0
"""A model is copied only from nodes that keep everything, if any have it. When nothing has arrived
for this many seconds, the other nodes are added."""
HEARING_S = 3.0
"""After the worker's start, the cards of all connected nodes arrive within this many seconds."""


@dataclass(slots=True)
class _Attempt:
    """One attempt to fetch a model, as the worker sees it. `looked`: the disk was scanned after the
    model, or its `layers`, had arrived. `moved_at`: the instant at which `done_bytes` last grew."""

    number: int
    moved_at: float
    done_bytes: int = 0
    layers: Layers | None = None
    looked: bool = False
    unreadable: Refusal | None = None

    @property
    def arrived(self) -> bool:
        """Return whether the fetched files have arrived and were found on the disk."""
        return self.looked and self.unreadable is None


class _Readings:
    """The published state of this node's fetches: progress, and failures for five more minutes or
    until a retry."""

    def __init__(self, client: BusClient) -> None:
        self._client = client
        self._failed: dict[ModelId, tuple[FetchReading, float]] = {}
        self._published: tuple[FetchReading, ...] = ()
        self._published_at = client.reactor.now()

    def keep(self, failed: FetchReading) -> None:
        """Publish this failed fetch, from now on for five minutes."""
        self._failed[failed.model] = (failed, self._client.reactor.now())

    def forget(self, model: ModelId) -> None:
        """Stop publishing the failure of this model's fetch, because it is tried again."""
        self._failed.pop(model, None)

    def publish(self, running: Mapping[ModelId, FetchReading], now: float) -> None:
        """Publish when a phase has changed, and each second while there is anything to report."""
        self._failed = {
            m: failure for m, failure in self._failed.items() if now - failure[1] < FAILED_S
        }
        readings = {model: reading for model, (reading, _) in self._failed.items()} | dict(running)
        fetches = tuple(reading for _, reading in sorted(readings.items()))
        phases = [(fetch.model, fetch.phase) for fetch in fetches]
        changed = phases != [(fetch.model, fetch.phase) for fetch in self._published]
        if changed or (fetches and now - self._published_at >= PUBLISH_S):
            self._published, self._published_at = fetches, now
            node = self._client.speaker.node
            reading = WeightsReading(node=node, fetches=fetches)
            self._client.publish(reading_topic("weights", node), reading)


class Downloads:
    """The worker's interface to the weights thread: it fetches this node's models from other nodes,
    and serves them. The copying of KV (`worker.transfer.kv_moves`) also uses `thread` and
    `sources`."""

    def __init__(self, client: BusClient, settings: WeightsSettings) -> None:
        self._reactor = client.reactor
        link = link_maker(client.security, client.speaker, client.traffic)
        self.thread = WeightsThread(settings, client.speaker, client.log, link=link)
        self.sources = Sources(client.speaker.node)
        self._attempts: dict[ModelId, _Attempt] = {}
        self._held: set[ModelId] = set()
        self._count = 0
        self._began_at = client.reactor.now()
        self._offered: dict[ModelId, Path] = {}
        self._readings = _Readings(client)
        client.hear("card", self._take_reading)
        client.hear("reading.storage", self._take_reading)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the store; none if this node serves no weights."""
        return self.thread.addresses

    def elsewhere(self, now: float) -> WeightsElsewhere:
        """Return the model cards of other nodes, and the state of each fetch."""
        news = self._news()
        return WeightsElsewhere(
            cards=self.sources.living(now),
            has_heard=now - self._began_at >= HEARING_S,
            fetches={
                model: attempt.unreadable or (news[model].refusal if model in news else None)
                for model, attempt in self._attempts.items()
            },
            arrived=frozenset(m for m, attempt in self._attempts.items() if attempt.arrived),
            held=frozenset(self._held),
        )

    def givers(self, model: ModelId, now: float) -> tuple[NodeId, ...]:
        return tuple(sorted({store.node for store in self.sources.stores_with(model, now)}))

    def stores(self, now: float) -> frozenset[NodeId]:
        """Return the nodes that keep everything."""
        return self.sources.keeping_all(now)

    def hold(self, model: ModelId, now: float) -> None:
        """Fetch a whole model although no slot waits for it. The fetch is kept until `let_go`."""
        self._held.add(model)
        self.fetch(model, now)

    def let_go(self, model: ModelId) -> None:
        """Undo `hold`: cancel the model's fetch, unless a slot waits for the model."""
        self._held.discard(model)

    def reading_of(self, model: ModelId) -> FetchReading | None:
        """Return the progress of a model's fetch; None if there is none."""
        news = self._news().get(model)
        return None if news is None else news.reading

    def fetch(self, model: ModelId, now: float, layers: Layers | None = None) -> None:
        """Fetch a model, or what some of its layers need, from the nodes that announce it, unless
        it is already being fetched."""
        attempt = self._attempts.get(model)
        if attempt is None or attempt.arrived:
            self._count += 1
            self._readings.forget(model)
            self._attempts[model] = _Attempt(self._count, now, layers=layers)
            self._want(model, now)

    def cancel(self, model: ModelId) -> None:
        """Cancel the fetch of a model, or drop its result; the files fetched so far stay."""
        news = self._news().get(model)
        attempt = self._attempts.pop(model, None)
        if attempt is None:
            return
        refusal = attempt.unreadable or (news.refusal if news is not None else None)
        if news is not None and refusal is not None:
            update = {"phase": "failed", "message": refusal.message}
            self._readings.keep(news.reading.model_copy(update=update))
        self.thread.cancel(model)

    def looked(self, here: LocalModels, came: Collection[ModelId]) -> None:
        """Record a scan of the disk. Whole models may be served to others; each model in `came`,
        which had arrived before the scan began, must be among the models or parts now."""
        for model in set(came) & set(self.came()):
            attempt = self._attempts[model]
            attempt.looked = True
            layers, part = attempt.layers, here.parts.get(model)
            in_part = layers and part and part.holds(layers.first, layers.last)
            if model not in here.cards and not in_part:
                why = "; ".join(notice.why for notice in here.passed_over if notice.name == model)
                text = f"{model} was fetched, but this node cannot read it as a model: {why}"
                attempt.unreadable = Refusal(reason="weights_unavailable", message=text)
        offered = {
            model: Path(card.path) for model, card in here.cards.items() if card.origin != "engine"
        }
        if offered != self._offered:
            self._offered = offered
            self.thread.offers(offered)

    def tick(self, now: float) -> None:
        """Add sources and publish the progress of each attempt."""
        for model in self._attempts:
            self._want(model, now)
        self._readings.publish({m: news.reading for m, news in self._news().items()}, now)

    def close(self) -> None:
        """End the weights thread. Partial files stay on the disk for a later attempt."""
        self.thread.close()

    def _want(self, model: ModelId, now: float) -> None:
        attempt, reading = self._attempts[model], self.reading_of(model)
        done_bytes = 0 if reading is None else reading.done_bytes
        if done_bytes != attempt.done_bytes:
            attempt.done_bytes, attempt.moved_at = done_bytes, now
        preferred = now - attempt.moved_at < PREFER_S
        sources = self.sources.stores_with(model, now, preferred=preferred)
        self.thread.want(Wanted(model, attempt.number, sources, attempt.layers))

    def _news(self) -> dict[ModelId, DownloadNews]:
        """Return the news of present attempts only, because the thread may still report a cancelled
        one for a moment."""
        return {
            model: news
            for model, news in self.thread.news().items()
            if model in self._attempts and self._attempts[model].number == news.attempt
        }

    def came(self) -> list[ModelId]:
        """Return the models that have arrived, but that no scan of the disk has covered since."""
        return [
            model
            for model, news in self._news().items()
            if news.reading.phase == "done" and not self._attempts[model].looked
        ]

    def _take_reading(self, _topic: str, envelope: Envelope) -> None:
        if isinstance(envelope.message, CardReading):
            self.sources.take_card(envelope.message.card, self._reactor.now())
        elif isinstance(envelope.message, StorageReading):
            self.sources.take_storage(envelope.message, self._reactor.now())
