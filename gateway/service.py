"""Talks to the event loop, the bus and the runners: builds all parts of one HTTP process except
HTTP.

It is built after the fork, in lifespan startup, because neither an event loop nor a ZeroMQ context
survives a fork. `start` returns when the process may serve. `drain` lets open answers finish for a
while, then ends them with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bus.calls import Around, NodeCalls, Standing, TypedCall, refusal_of, standing_of
from bus.client import Speaker
from bus.links.reactor import AsyncioReactor
from bus.models.tasks import ClientName
from bus.process.clock import wall
from bus.process.identity import new_boot, new_name
from bus.process.logs import Log, follow_level
from bus.process.memory import keep, tidy
from bus.process.stalls import StallMeter
from bus.service import open_client, stack_sampler
from bus.wire.codec import Envelope
from bus.wire.ids import Boot, CommandId, ModelId, NodeId, RequestId, request_id
from bus.wire.messages.commands import Acknowledged, Command, CommandRefused, KeepAlive
from bus.wire.messages.gateways import CallRefusal
from bus.wire.messages.peers import PeersReading
from gateway import records
from gateway.access import ApiKeys, AskingClients
from gateway.control.cancels import CancelRouter, RememberedCancels
from gateway.control.card_files import CardFiles
from gateway.control.keep_alive import KeepAliveWishes
from gateway.control.removals import Removals
from gateway.dialects.dialect import Limits, ParseContext
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFaultRaised, of_refusal
from gateway.dialects.unknown_fields import labels_of
from gateway.exchange import EndedRequests, call_refusal
from gateway.fetching import open_tools, providers
from gateway.http_processes import HttpProcesses, OpenRequestTold
from gateway.requests.body_budget import BodyBudget
from gateway.requests.catalog import ModelCatalog
from gateway.requests.dispatcher import Dispatcher
from gateway.requests.tasks import open_tasks
from gateway.runners.pool import RunnerClients
from gateway.tracing import sampler_of
from gateway.view.counters import Counters, RecentMinute
from gateway.view.metrics import FLUSH_S, Metrics, read_totals
from gateway.view.options import Options
from gateway.view.readings import TOPICS, ClusterReadings
from gateway.view.watch import ClusterSeen, SnapshotFeed, follow_log, snapshot_of

TIDY_S = 1.0
WISHES_S = 1.0
LEAVES = "the gateway is shutting down; send the request again"
NOTICED_S, NOTICED_LOOK_S = 5.0, 0.01


class HttpService:
    """All parts of one HTTP process that resources use."""

    def __init__(
        self, options: Options, loop: asyncio.AbstractEventLoop, application: records.Application
    ) -> None:
        self.options = options
        self.boot = new_boot()
        self.reactor = AsyncioReactor(loop)
        self.http_processes = HttpProcesses(options.endpoints, self.reactor, self)
        self.process = f"gateway:{self.http_processes.number}"
        self.log = Log(node=options.node, process=self.process, level=options.log_level)
        speaker = Speaker(options.node, self.process, self.boot)
        self.bus = open_client(
            speaker, options.endpoints, self.reactor, self.log, options.cluster_keys
        )
        self.readings, self.counters = ClusterReadings(), Counters()
        self.api_keys, self._minute = (
            ApiKeys(self.bus, self.readings),
            RecentMinute(self.reactor.now()),
        )
        for topic in TOPICS:
            self.bus.hear(topic, self._receive)
        self.metrics = Metrics(self.counters)
        self._short_name = f"h{self.http_processes.number}"
        self._clients = RunnerClients(self.bus, self._short_name)
        self.catalog = ModelCatalog(
            self.bus, self.readings, self._clients, options.pull_names, options.pull_on_demand
        )
        self.bodies, self._wishes = BodyBudget(), KeepAliveWishes()
        self.dispatcher = Dispatcher(options, self.bus, self.catalog, self._clients, self.counters)
        self.calls = NodeCalls(
            self.bus,
            Around(self.standing, partial(_everyone, self), partial(_judge, self), call_refusal),
            number=self.http_processes.number,
            processes=options.processes,
        )
        self._own_cancels = RememberedCancels(self.dispatcher)
        self.cancels = CancelRouter(
            processes=options.processes,
            near=self.http_processes,
            calls=self.calls,
        )
        self.removals = Removals(self.bus, self.readings, self.calls, options.models_folder)
        self.card_files = CardFiles(self.bus, self.readings, self.calls)
        self.records = records.open_records(options, self.log)
        self.answers = records.AnswerRecords(
            records=self.records,
            bounds=records.answer_bounds(options),
            near=self.http_processes,
            calls=self.calls,
            node=options.node,
            processes=options.processes,
            stop=self._own_cancels.cancel,
            log=self.log,
        )
        self.conversations, self.traces = (
            records.ConversationRecords(self.records, self.answers, self.calls, options.node),
            records.TraceRecords(self.records, self.calls, options.node),
        )
        self.jobs = records.JobsAnywhere(
            records.JobRecords(self.records, records.job_bounds(options)),
            self.calls,
            options.node,
        )
        self.job_runner = records.JobRunner(
            self.jobs.here,
            records.runner_name(self.http_processes.number, self.boot),
            application=application,
            requests=self.dispatcher,
            log=self.log,
            port=options.port,
        )
        self.clients = AskingClients(
            options,
            reactor=self.reactor,
            near=self.http_processes,
            node_records=self.records,
            keys=self.api_keys,
            dispatcher=self.dispatcher,
            log=self.log,
        )
        self.ended_requests = EndedRequests(
            reactor=self.reactor,
            log=self.log,
            metrics=self.metrics,
            records=self.records,
            models=self.catalog,
            clients=self.clients,
            options=options,
        )
        self.tools, self.provided = open_tools(options, self.log), set[providers.ProviderAnswer]()
        self.tracing, self.tasks = (
            sampler_of(options, lambda: self.bus.state.trace_ratio, random.random),
            open_tasks(
                options.tasks_file, self.reactor, self.log, tells=self.http_processes.number == 0
            ),
        )
        self.watch = SnapshotFeed(self._snapshot, self.reactor)
        self.loads, self.events = follow_log(self.bus, self.reactor, speaker, self.counters)
        self.running, self._was_busy = 0, False  # exchanges whose last byte is not sent yet
        self._ids = self._request_ids()
        self._stack, self._stalls = (
            _sampled(options, self.boot),
            StallMeter(Path(options.endpoints.folder), self.process),
        )
        self.reactor.measure(self._stalls)
        often = ((FLUSH_S, self.metrics.flush), (TIDY_S, self._tidy), (WISHES_S, self._tell_wishes))
        for period_s, act in often:
            self.reactor.every(period_s, act)
        keep()

    # --- life ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuse new requests (SIGTERM). After `drain_s`, open requests get an error."""
        if self.dispatcher.draining:
            return
        self.dispatcher.draining = True
        self._stopping = asyncio.ensure_future(self.job_runner.stop())
        self.watch.close()
        self.events.close()
        self.log.info("draining", open_requests=len(self.dispatcher.requests))
        self.reactor.later(self.options.drain_s, self.end_all)

    def end_all(self) -> None:
        """End every open request with an error now; jobs return to the queue."""
        self.job_runner.leave()
        self.dispatcher.fail_all("model_unavailable", LEAVES)
        for answer in list(self.provided):
            answer.stop(providers.ProviderFailed("shutdown", LEAVES))

    def close(self) -> None:
        """End open requests and close all resources of this process."""
        self.end_all()
        self.watch.close()
        self.events.close()
        self.dispatcher.close()
        self._clients.close()
        self.calls.close()
        self.http_processes.close()
        self.bus.close()
        self.records.close()
        for held in (self.bus.traffic, self._stalls, self._stack):
            held.close()

    def _tidy(self) -> None:
        """Free unused memory once after a busy time, when no request is open."""
        was_busy, self._was_busy = self._was_busy, bool(self.dispatcher.requests)
        if was_busy and not self._was_busy:
            tidy()

    # --- used by resources -------------------------------------------------------------------

    def parse_context(self) -> ParseContext:
        """Return the context for parsing a body: ids, time, context lengths, limits."""
        return ParseContext(
            ids=self._ids,
            now_s=wall(),
            context_tokens={
                str(card.model): card.context_tokens
                for card in self.catalog.cards().values()
                if card.makes == "text"
            },
            fingerprint=f"shoal-{self.options.version}",
            limits=Limits(depth=self.options.body_depth, strict_fields=self.options.strict_fields),
        )

    async def command(self, command: Command, *, deadline_s: float = 15.0) -> Acknowledged:
        """Send a command to the leader and wait for the answer. If the wait is cancelled, the
        command is withdrawn. Raises HttpFaultRaised with the leader's refusal."""
        waiting: asyncio.Future[Acknowledged | CommandRefused] = (
            asyncio.get_running_loop().create_future()
        )

        def answered(answer: Acknowledged | CommandRefused) -> None:
            if not waiting.done():
                waiting.set_result(answer)

        self.bus.command(command, answered, deadline_s=deadline_s)
        try:
            answer = await waiting
        finally:
            self.bus.take_back(command.command_id)
        if isinstance(answer, CommandRefused):
            raise HttpFaultRaised(of_refusal(answer.refusal))
        return answer

    async def noticed(self, answer: Acknowledged) -> None:
        """Wait until the state of this process has the acknowledged change, at most `NOTICED_S`."""
        give_up_at = self.reactor.now() + NOTICED_S
        while self.bus.state.index < answer.index and self.reactor.now() < give_up_at:
            await asyncio.sleep(NOTICED_LOOK_S)

    def keep_alive(self, model: ModelId, seconds: float | None, client: ClientName) -> None:
        """Request a keep-alive time for a model's instances, at most the client's limit; do nothing
        if `seconds` is None. Does not wait."""
        if seconds is None:
            return
        seconds = self.clients.stays_s(client, self.catalog.cards().get(model), seconds)
        for instance in self.bus.state.instances.values():
            if instance.model == model and instance.status in ("placed", "ready"):
                self._wishes.wish(instance.instance, seconds)
        self._tell_wishes()

    def command_id(self) -> CommandId:
        return CommandId(new_name("cmd"))

    def cancel(self, request_id: RequestId) -> bool:
        """Stop a request of this process."""
        return self._own_cancels.cancel(request_id)

    def ignored(self, dialect: str, fields: Sequence[str]) -> None:
        """Count the ignored fields of a body. Names that no API publishes count as `other`."""
        self.metrics.ignored(dialect, labels_of(fields))
        self.log.debug("fields without effect", dialect=dialect, fields=len(fields))

    def open_requests(self) -> list[OpenRequestTold]:
        """Return a plain record of each open request of this process."""
        return self.dispatcher.records()

    def stop_answer(self, request_id: RequestId, owner: str) -> bool:
        """Stop an answer of this process that would be stored for this owner."""
        return self.answers.stop_here(request_id, owner)

    # --- below ---------------------------------------------------------------------------------

    def standing(self, node: NodeId) -> Standing | None:
        """Return the state of a node, as this node sees it; None for an unknown node."""
        now = self.reactor.now()
        names = {card.node: card.name for card in self.readings.cards(now)}
        names |= {NodeId(node_id): facts.name for node_id, facts in self.bus.state.nodes.items()}
        peers = self.readings.peers(now)
        return standing_of(node, own=self.options.node, names=names, peers=peers)

    async def _snapshot(self) -> bytes:
        """Return the snapshot of the cluster as JSON."""
        totals = await asyncio.get_running_loop().run_in_executor(None, read_totals)
        amiss = await self.http_processes.record_problems(self.options.processes)
        seen = ClusterSeen(
            node=self.options.node,
            state=self.bus.state,
            holder=self.bus.mirror.holder,
            live=self.bus.mirror.live,
            readings=self.readings,
            totals=totals,
            now=self.reactor.now(),
            at_s=wall(),
            amiss=amiss,
            queue_max=self.options.max_waiting * self.options.processes,
            recent=self._minute.noted(totals, self.reactor.now()),
        )
        return json_bytes(snapshot_of(seen))

    def _request_ids(self) -> Iterator[RequestId]:
        for count in itertools.count(1):
            yield request_id(self.options.node, self._short_name, self.boot, count)

    def _receive(self, _topic: str, envelope: Envelope) -> None:
        message = envelope.message
        self.readings.heard(message, self.reactor.now())
        if isinstance(message, PeersReading):
            self._clients.heard_peers(message)
        self.api_keys.heard(envelope)

    def _tell_wishes(self) -> None:
        due = self._wishes.due(self.bus.state.instances, self.reactor.now())
        for instance, seconds in due:
            command = KeepAlive(
                command_id=self.command_id(), instance=instance, keep_alive_s=seconds
            )
            self.bus.command(command, self._keep_alive_answered)

    def _keep_alive_answered(self, answer: Acknowledged | CommandRefused) -> None:
        if isinstance(answer, CommandRefused):
            self.log.warning("keep_alive was refused", why=answer.refusal.message)


def _sampled(options: Options, boot: Boot) -> contextlib.ExitStack:
    """Start sampling this process's stacks; closing the returned stack ends it."""
    stack = contextlib.ExitStack()
    # supervisord has one program `gateway`: the first HTTP process answers for it
    stack.enter_context(stack_sampler(options.endpoints, Speaker(options.node, "gateway", boot)))
    return stack


def _judge(
    service: HttpService, call: TypedCall[Any, Any], asker: NodeId, key: str
) -> CallRefusal | None:
    return refusal_of(call, service.standing(asker), key, service.api_keys.book.keys, wall())


def _everyone(service: HttpService) -> set[NodeId]:
    """Return the nodes of the cluster, including ours."""
    cards = service.readings.cards(service.reactor.now())
    return {NodeId(node) for node in service.bus.state.nodes} | {card.node for card in cards}


class ServiceHandle:
    """Gives resources the service of their process, once it has started."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.application: records.Application | None = None
        """The ASGI application of this process; the job runner sends it the requests of jobs."""
        self.on_start: list[Callable[[HttpService], None]] = []
        self._service: HttpService | None = None

    @property
    def service(self) -> HttpService:
        """Return the service. Raises RuntimeError before lifespan startup."""
        if self._service is None:
            raise RuntimeError("the HTTP process has not started")
        return self._service

    def start(self) -> HttpService:
        """Build the service on the running loop. Raises RuntimeError without an application."""
        if self.application is None:
            raise RuntimeError("the HTTP process has no application")
        self._service = HttpService(self.options, asyncio.get_running_loop(), self.application)
        follow_level(self._service.log, self.options.levels)
        for act in self.on_start:
            act(self._service)
        return self._service

    async def stop(self) -> None:
        """Return running jobs to the queue, write unwritten records, and close the service."""
        if self._service is not None:
            await self._service.job_runner.stop()
            await self._service.clients.stop()
            await self._service.ended_requests.stop()
            self._service.close()
            self._service = None
