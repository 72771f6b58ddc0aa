"""Talks to the event loop, the bus and the runners: builds all parts of one HTTP process except
HTTP.

The process is built after the fork, in lifespan startup, because neither an event loop nor a ZeroMQ
context survives a fork. It has four facades, and each resource names the facades that it needs.
They are `cluster` (nodes, models, commands), `parts` (dispatcher, clients, tasks), `records` (the
stored data of requests), and `watch` (streams of snapshots and events).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from bus.calls import ProcessCalls, table
from bus.client import Speaker
from bus.links.reactor import AsyncioReactor
from bus.process.identity import new_boot
from bus.process.logs import Log, follow_level
from bus.process.memory import keep, tidy
from bus.process.stalls import StallMeter
from bus.service import stack_sampler
from bus.wire.calls.processes import OpenRequestsRead
from bus.wire.ids import Boot, RequestId, request_id
from gateway.access import AskingClients
from gateway.cluster import Cluster, short_name
from gateway.dialects.encode import json_bytes
from gateway.exchange import EndedRequests, OpenStreams, Parts, StreamFolder, call_refusal
from gateway.fetching import open_tools, providers
from gateway.records import AllRecords, Application, open_all
from gateway.requests.dispatcher import Dispatcher
from gateway.requests.tasks import follow_files, open_tasks
from gateway.tracing import sampler_of
from gateway.view.counters import Counters
from gateway.view.metrics import FLUSH_S, Metrics
from gateway.view.options import Options
from gateway.view.watching import Watch

TIDY_S = 1.0
LEAVES = "the gateway is shutting down; send the request again"


class HttpService:
    """The parts of one HTTP process: its four facades, and the methods that drain and stop the
    process."""

    def __init__(
        self, cluster: Cluster, parts: Parts, records: AllRecords, watch: Watch, boot: Boot
    ) -> None:
        self.options, self.reactor, self.log = cluster.options, cluster.reactor, cluster.log
        self.cluster, self.parts, self.records, self.watch = cluster, parts, records, watch
        self._was_busy = False
        self._stack = _sampled(self.options, boot)
        self._stalls = StallMeter(Path(self.options.endpoints.folder), cluster.bus.speaker.process)
        self.reactor.measure(self._stalls)
        self.reactor.every(FLUSH_S, parts.metrics.flush)
        self.reactor.every(TIDY_S, self._tidy)
        keep()

    def drain(self) -> None:
        """Refuse new requests (SIGTERM). After `drain_s`, open requests get an error."""
        dispatcher = self.parts.dispatcher
        if dispatcher.draining:
            return
        dispatcher.draining = True
        self._stopping = asyncio.ensure_future(self.records.job_runner.stop())
        self.watch.close()
        self.log.info("draining", open_requests=len(dispatcher.requests))
        self.reactor.later(self.options.drain_s, self.end_all)

    def end_all(self) -> None:
        """End every open request with an error now; jobs return to the queue."""
        self.records.job_runner.leave()
        self.parts.streams.leave()
        self.parts.dispatcher.fail_all("model_unavailable", LEAVES)
        self.parts.provided.stop_all(providers.ProviderFailed("shutdown", LEAVES))

    async def stop(self) -> None:
        """Return running jobs to the queue, write unwritten records, end open requests and close
        all resources of this process."""
        await self.records.job_runner.stop()
        await self.parts.clients.stop()
        await self.parts.ended_requests.stop()
        self.end_all()
        self.watch.close()
        self.parts.dispatcher.close()
        self.parts.streams.close()
        await self.parts.provided.connections.close()
        self.cluster.close()
        self.records.of_node.close()
        for held in (self.cluster.bus.traffic, self._stalls, self._stack):
            held.close()

    def _tidy(self) -> None:
        """Free unused memory once after a busy time, when no request is open."""
        was_busy, self._was_busy = self._was_busy, bool(self.parts.dispatcher.requests)
        if was_busy and not self._was_busy:
            tidy()


def build_service(
    options: Options, loop: asyncio.AbstractEventLoop, application: Application
) -> HttpService:
    """Build the parts of one HTTP process on its loop. `application` answers the requests of
    jobs."""
    boot, reactor = new_boot(), AsyncioReactor(loop)
    near = ProcessCalls(options.endpoints, reactor)
    speaker = Speaker(options.node, f"gateway:{near.number}", boot)
    log = Log(node=options.node, process=speaker.process, level=options.log_level)
    cluster = Cluster(options, speaker, reactor, log, near, call_refusal)
    counters = Counters()
    dispatcher = Dispatcher(options, cluster.bus, cluster.catalog, cluster.runners, counters)
    provided = providers.OpenAnswers(reactor.now)
    cluster.cancels.answer_for(dispatcher, provided)
    records = open_all(
        options,
        log,
        boot=boot,
        reactor=reactor,
        near=near,
        calls=cluster.calls,
        application=application,
        requests=dispatcher,
        stop=cluster.cancels.cancel_here,
    )
    near.answer(
        table.READ_OPEN_REQUESTS,
        lambda _: OpenRequestsRead(requests=dispatcher.rows() + provided.rows()),
    )
    clients = AskingClients(
        options,
        reactor=reactor,
        near=near,
        node_records=records.of_node,
        keys=cluster.api_keys,
        dispatcher=dispatcher,
        log=log,
    )
    metrics = Metrics(counters)
    parts = Parts(
        options=options,
        reactor=reactor,
        log=log,
        cluster=cluster,
        records=records,
        ids=_request_ids(options, short_name(near), boot),
        dispatcher=dispatcher,
        provided=provided,
        clients=clients,
        tasks=open_tasks(options.tasks_file, log, tells=near.number == 0),
        streams=OpenStreams(reactor, StreamFolder(Path(options.endpoints.folder) / "streams", log)),
        tools=open_tools(options, log),
        tracing=sampler_of(options, lambda: cluster.bus.state.trace_ratio, random.random),
        counters=counters,
        metrics=metrics,
        ended_requests=EndedRequests(
            reactor=reactor,
            log=log,
            metrics=metrics,
            records=records.of_node,
            models=cluster.catalog,
            clients=clients,
            options=options,
        ),
    )
    follow_files((parts.tasks, clients.book), reactor)
    near.answer(table.READ_STREAM, parts.streams.read_for)
    watch = Watch(options, cluster.bus, cluster.readings, counters, near, json_bytes)
    return HttpService(cluster, parts, records, watch, boot)


def _request_ids(options: Options, process: str, boot: Boot) -> Iterator[RequestId]:
    for count in itertools.count(1):
        yield request_id(options.node, process, boot, count)


def _sampled(options: Options, boot: Boot) -> contextlib.ExitStack:
    """Start sampling this process's stacks; closing the returned stack ends it."""
    stack = contextlib.ExitStack()
    # supervisord has one program `gateway`: the first HTTP process answers for it
    stack.enter_context(stack_sampler(options.endpoints, Speaker(options.node, "gateway", boot)))
    return stack


class ServiceHandle:
    """Gives resources the service of their process, once it has started."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.application: Application | None = None
        """The ASGI application of this process; the job runner sends it the requests of jobs."""
        self.on_start: Callable[[HttpService], None] | None = None
        """Called once the service has started, to register answers to calls."""
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
        self._service = build_service(self.options, asyncio.get_running_loop(), self.application)
        follow_level(self._service.log, self.options.levels, self._service.reactor.every)
        if self.on_start is not None:
            self.on_start(self._service)
        return self._service

    async def stop(self) -> None:
        """Stop and close the service."""
        if self._service is not None:
            await self._service.stop()
            self._service = None
