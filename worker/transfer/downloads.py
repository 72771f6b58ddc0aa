"""Talks to the bus and the weights thread: where this node's models come from and go to.

It hears other nodes' cards, has models fetched from those that announce them, and publishes how
far that is. An attempt ends once: what it came to stays until it is cancelled, which forgets it;
that it failed is published for five minutes more, or until it is tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from bus.client import BusClient
from bus.wire.cards import ModelCard
from bus.wire.codec import Envelope
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import CardReading, FetchReading, WeightsReading
from bus.wire.topics import reading_topic
from worker.models.layer_bytes import Layers, Range, is_covered
from worker.transfer.downloader import DownloadNews
from worker.transfer.sources import Sources
from worker.transfer.thread import WeightsThread

PUBLISH_S = 1.0
FAILED_S = 300.0
HEARING_S = 3.0
"""After so long the cards of all nodes that are there have come."""


@dataclass(slots=True)
class _Attempt:
    """`looked`: whether the disk was looked at since the model, or its `layers`, came."""

    number: int
    layers: Layers | None = None
    looked: bool = False
    unreadable: Refusal | None = None


class PeerDownloads:
    """The weights of one node, as its worker sees them. `now` of the loop is passed in."""

    def __init__(self, client: BusClient, thread: WeightsThread) -> None:
        self._client = client
        self._thread = thread
        self._node = client.speaker.node
        self._sources = Sources(self._node)
        self._attempts: dict[ModelId, _Attempt] = {}
        self._count = 0
        self._began_at = client.reactor.now()
        self._failed: dict[ModelId, tuple[FetchReading, float]] = {}
        self._published: tuple[FetchReading, ...] = ()
        self._published_at = self._began_at
        client.hear("card", self._heard)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others reach the store."""
        return self._thread.addresses

    def has_heard(self, now: float) -> bool:
        """Whether the cards of other nodes have had the time to come."""
        return now - self._began_at >= HEARING_S

    def announced(self, now: float) -> Mapping[NodeId, frozenset[ModelId]]:
        """The models on each other node's disk."""
        return self._sources.announced(now)

    def announced_parts(self, now: float) -> Mapping[NodeId, Mapping[str, frozenset[Range]]]:
        """The spans of layers of models that other nodes have in part."""
        return self._sources.announced_parts(now)

    def cards_of(self, now: float) -> Mapping[ModelId, ModelCard]:
        """The cards of models on other nodes."""
        return self._sources.cards_of(now)

    def arrived(self) -> frozenset[ModelId]:
        """Models of which what was fetched has come and was found on the disk."""
        return frozenset(
            model
            for model, attempt in self._attempts.items()
            if attempt.looked and attempt.unreadable is None
        )

    def offers(self, models: Collection[ModelCard]) -> None:
        """These lie here now."""
        self._thread.offers({card.model: Path(card.path) for card in models})

    def fetch(self, model: ModelId, now: float, layers: Layers | None = None) -> None:
        """Get a model, or what some of its layers need, from whoever announces it, unless
        a fetch of that model is under way."""
        if model not in self._attempts or model in self.arrived():
            self._count += 1
            self._failed.pop(model, None)
            self._attempts[model] = _Attempt(self._count, layers)
            self._want(model, now)

    def cancel(self, model: ModelId) -> None:
        """Give up, or forget how it ended; what was fetched so far stays for another time."""
        if model not in self._attempts:
            return
        self._keep_failure(model)
        del self._attempts[model]
        self._thread.cancel(model)

    def fetches(self) -> dict[ModelId, Refusal | None]:
        """What is being fetched, and why what failed has failed."""
        news = self._news()
        return {
            model: attempt.unreadable or (news[model].refusal if model in news else None)
            for model, attempt in self._attempts.items()
        }

    def has_arrived(self) -> bool:
        """Whether a model came since `looked` was called last."""
        return bool(self._unlooked())

    def looked(
        self,
        found: Collection[ModelId],
        troubles: Mapping[str, str],
        parts: Mapping[ModelId, Collection[Range]],
    ) -> None:
        """The disk was looked at: what came has to be among the models, or parts, now."""
        for model in self._unlooked():
            attempt = self._attempts[model]
            attempt.looked = True
            layers = attempt.layers
            in_part = layers is not None and is_covered(layers, parts.get(model, ()))
            if model not in found and not in_part:
                said = "; ".join(why for folder, why in troubles.items() if folder.endswith(model))
                text = f"{model} was fetched, but is no model that can be read here: {said}"
                attempt.unreadable = Refusal(reason="weights_unavailable", message=text)

    def tick(self, now: float) -> None:
        """Tell of more sources; publish."""
        for model in self._attempts:
            self._want(model, now)
        self._failed = {m: one for m, one in self._failed.items() if now - one[1] < FAILED_S}
        known = {model: reading for model, (reading, _) in self._failed.items()}
        known |= {model: one.reading for model, one in self._news().items()}
        fetches = tuple(reading for _, reading in sorted(known.items()))
        phases = [(one.model, one.phase) for one in fetches]
        changed = phases != [(one.model, one.phase) for one in self._published]
        if changed or (fetches and now - self._published_at >= PUBLISH_S):
            self._published, self._published_at = fetches, now
            reading = WeightsReading(node=self._node, fetches=fetches)
            self._client.publish(reading_topic("weights", self._node), reading)

    def close(self) -> None:
        """End the thread; stages stay."""
        self._thread.close()

    def _keep_failure(self, model: ModelId) -> None:
        news = self._news().get(model)
        unreadable = self._attempts[model].unreadable
        if news is not None and (unreadable or news.refusal) is not None:
            refusal = unreadable or news.refusal
            said = "" if refusal is None else refusal.message
            reading = news.reading.model_copy(update={"phase": "failed", "message": said})
            self._failed[model] = (reading, self._client.reactor.now())

    def _want(self, model: ModelId, now: float) -> None:
        attempt, sources = self._attempts[model], self._sources.peers_with(model, now)
        self._thread.want(model, attempt.number, sources, attempt.layers)

    def _news(self) -> dict[ModelId, DownloadNews]:
        """Of the present attempts: what was cancelled may still be told of for a moment."""
        return {
            model: one
            for model, one in self._thread.news().items()
            if model in self._attempts and self._attempts[model].number == one.attempt
        }

    def _unlooked(self) -> list[ModelId]:
        return [
            model
            for model, one in self._news().items()
            if one.reading.phase == "done" and not self._attempts[model].looked
        ]

    def _heard(self, _topic: str, envelope: Envelope) -> None:
        if isinstance(envelope.message, CardReading):
            self._sources.heard(envelope.message.card, self._client.reactor.now())
