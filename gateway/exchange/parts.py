"""Talks to the other parts of an HTTP process: gives the stages of a request access to them.

`Parts` holds the objects of the process that the stages use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bus.links.reactor import AsyncioReactor
from bus.models.tasks import ClientName
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.ids import ModelId, RequestId
from gateway.access import AskingClients
from gateway.cluster import Cluster
from gateway.dialects.dialect import Limits, ParseContext
from gateway.dialects.unknown_fields import labels_of
from gateway.exchange.record import EndedRequests
from gateway.exchange.streams import OpenStreams
from gateway.fetching import WebTools, providers
from gateway.records import AllRecords
from gateway.requests.body_budget import BodyBudget
from gateway.requests.dispatcher import Dispatcher
from gateway.requests.tasks import TaskBook
from gateway.tracing import TraceSampler
from gateway.view.counters import Counters
from gateway.view.metrics import Metrics
from gateway.view.options import Options


@dataclass
class Parts:
    """The objects of one HTTP process that answer requests. `ids` makes the ids of requests;
    `running` counts exchanges whose last byte is not sent yet. `provided` has the open answers of
    providers, `streams` the streams that clients may read again."""

    options: Options
    reactor: AsyncioReactor
    log: Log
    cluster: Cluster
    records: AllRecords
    ids: Iterator[RequestId]
    dispatcher: Dispatcher
    clients: AskingClients
    tasks: TaskBook
    tools: WebTools
    tracing: TraceSampler
    counters: Counters
    metrics: Metrics
    ended_requests: EndedRequests
    provided: providers.OpenAnswers
    streams: OpenStreams
    bodies: BodyBudget = field(default_factory=BodyBudget)
    running: int = 0

    def parse_context(self) -> ParseContext:
        """Return what the parsing of a body needs: new ids, the time, the text models, limits."""
        return ParseContext(
            ids=self.ids,
            now_s=wall(),
            text_models=self.text_models,
            fingerprint=f"shoal-{self.options.version}",
            limits=Limits(depth=self.options.body_depth, strict_fields=self.options.strict_fields),
        )

    def text_models(self) -> list[str]:
        """Return the text models on the disks of all nodes."""
        cards = self.cluster.catalog.cards().values()
        return [str(card.model) for card in cards if card.makes == "text"]

    def ignored(self, dialect: str, fields: Sequence[str]) -> None:
        """Count the ignored fields of a body. Names that no API publishes count as `other`."""
        self.metrics.ignored(dialect, labels_of(fields))
        self.log.debug("fields without effect", dialect=dialect, fields=len(fields))

    def keep_alive(self, model: ModelId, seconds: float | None, client: ClientName) -> None:
        """Request a keep-alive time for a model's instances, at most the client's limit; do nothing
        if `seconds` is None. Does not wait."""
        if seconds is not None:
            card = self.cluster.catalog.cards().get(model)
            self.cluster.keep_alive(model, self.clients.stays_s(client, card, seconds))
