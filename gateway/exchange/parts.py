"""Talks to an HTTP process through a protocol: the parts of it that stages use.

`HttpService` has all of them. Tests have fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bus.client import BusClient
from bus.links.reactor import AsyncioReactor
from bus.models.tasks import ClientName
from bus.process.logs import Log
from bus.wire.ids import CommandId, ModelId
from bus.wire.messages.commands import Acknowledged, Command
from gateway.access import ApiKeys, AskingClients
from gateway.dialects.dialect import ParseContext
from gateway.exchange.record import EndedRequests
from gateway.fetching import providers
from gateway.records import AnswerRecords, ConversationRecords, JobsAnywhere
from gateway.requests.body_budget import BodyBudget
from gateway.requests.catalog import ModelCatalog
from gateway.requests.dispatcher import Dispatcher
from gateway.requests.tasks import TaskBook
from gateway.tracing import TraceSampler
from gateway.view.counters import Counters
from gateway.view.options import Options


class Parts(Protocol):
    """The parts of one HTTP process that stages use. `running` counts exchanges whose last byte is
    not sent yet; `provided` has the open answers of providers."""

    options: Options
    reactor: AsyncioReactor
    log: Log
    bus: BusClient
    bodies: BodyBudget
    clients: AskingClients
    api_keys: ApiKeys
    tasks: TaskBook
    catalog: ModelCatalog
    dispatcher: Dispatcher
    counters: Counters
    tracing: TraceSampler
    answers: AnswerRecords
    conversations: ConversationRecords
    jobs: JobsAnywhere
    ended_requests: EndedRequests
    provided: set[providers.ProviderAnswer]
    running: int

    def parse_context(self) -> ParseContext:
        """Return the context for parsing a body."""
        ...

    def ignored(self, dialect: str, fields: Sequence[str]) -> None:
        """Count the ignored fields of a body."""
        ...

    def keep_alive(self, model: ModelId, seconds: float | None, client: ClientName) -> None:
        """Request a keep-alive time for a model's instances; None requests nothing."""
        ...

    def command_id(self) -> CommandId:
        """Return the id of a new command."""
        ...

    async def command(self, command: Command, *, deadline_s: float = 15.0) -> Acknowledged:
        """Send a command to the leader and wait for the answer. Raises HttpFaultRaised."""
        ...
