"""Talks to the lead runners that this HTTP process uses. Each runner gets one connection, made when
the first request needs it.

The connections follow the cluster's state. If an instance is gone or its runners were replaced by a
new load attempt (a new generation), its connection ends, and its open requests receive their
terminal entries. A runner that has finished draining sends its own terminal entries first, so its
connection stays for `GONE_S`. If another log of the cluster replaces this node's log, an instance
with open requests may disappear from the state. Its connection then stays as long as a drain may
take, so that these requests can finish.
"""

from __future__ import annotations

from functools import partial

from bus.client import BusClient
from bus.replica.state import ClusterState
from bus.wire.errors import FailReason, Refusal
from bus.wire.ids import InstanceId, NodeId, RequestId
from bus.wire.instances import DRAIN_S, Instance, reachable
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Cancel, Recall
from bus.wire.shares import Sharer
from gateway.runners.connection import RunnerConnection
from gateway.runners.observer import RequestObserver
from gateway.runners.resuming import Resumption

TICK_S = 1.0
LATE_S = 0.5
"""If the check of a silent runner is late by this, it is put off until after the next tick, because
this process may not have read the runner's messages."""
GONE_S = 0.5
"""Time in seconds from an instance's removal, or the end of its drain, to the end of its
connection."""
FIRST = Resumption()
_GONE: tuple[FailReason, str] = ("model_unavailable", "the model's instance was removed")
_REPLACED: tuple[FailReason, str] = ("runner_lost", "the runner ended and is being replaced")


class RunnerClients:
    """The connections to runners, and which connection each request uses. `process` is this
    process's name in request ids (`h0`)."""

    def __init__(self, bus: BusClient, process: str) -> None:
        speaker = bus.speaker
        self.hosts: dict[NodeId, str] = {}
        """The host (address) at which this node's switchboard reached each peer."""
        self._bus = bus
        self._identity = f"gw:{speaker.node}:{process}:{speaker.boot}"
        self._connections: dict[InstanceId, RunnerConnection] = {}
        self._at: dict[RequestId, RunnerConnection] = {}
        self._leaving: set[RunnerConnection] = set()
        self._timer = bus.reactor.every(TICK_S, self._tick)

    def submit(
        self,
        instance: Instance,
        request: GenerationRequest,
        observer: RequestObserver,
        *,
        remaining_ms: int,
        sharer: Sharer,
        waited_ms: int = 0,
        again: Resumption = FIRST,
    ) -> None:
        """Send a request to an instance's lead runner, `again` if another runner was lost with it.
        Raises ValueError if the instance has no ready lead."""
        connection = self._connection(instance)
        if connection is None:
            observer.refused(_unreachable(instance))
            return
        self._at[request.request_id] = connection
        connection.submit(
            request,
            observer,
            remaining_ms=remaining_ms,
            sharer=sharer,
            waited_ms=waited_ms,
            again=again,
        )

    def ask(self, message: Cancel | Recall) -> bool:
        """Ask a runner to stop a request or to return it to this gateway. Return False if no runner
        has the request."""
        connection = self._at.get(message.request_id)
        if connection is None:
            return False
        connection.ask(message)
        return True

    def sent_to_client(self, request_id: RequestId, choice: int, count: int) -> None:
        """Count `count` entries of a choice as sent to the client."""
        connection = self._at.get(request_id)
        if connection is not None:
            connection.sent_to_client(request_id, choice, count)

    def forget(self, request_id: RequestId) -> None:
        """Drop a request that has ended, or a request whose client does not want the rest of the
        answer."""
        connection = self._at.pop(request_id, None)
        if connection is not None:
            connection.forget(request_id)

    def open_at(self, instance: InstanceId) -> int:
        """Return the number of this process's open requests at an instance."""
        connection = self._connections.get(instance)
        return 0 if connection is None else connection.open_requests

    def suspect(self, instance: InstanceId) -> bool:
        """Return whether the instance's runner is overdue: it is silent, or it makes no progress
        with a request that could advance."""
        connection = self._connections.get(instance)
        return connection is not None and connection.verdict != "well"

    def follow(self, state: ClusterState) -> None:
        """Follow a new state of the cluster: after a moment, end the connections to instances that
        the state no longer has."""
        for connection in set(self._connections.values()) - self._leaving:
            instance = state.instances.get(connection.instance)
            replaced = instance is not None and instance.generation > connection.generation
            if not _holds(instance, connection):
                drains = connection.open_requests and not replaced
                after_s = DRAIN_S + GONE_S if drains else GONE_S
                self._leaving.add(connection)
                self._bus.reactor.later(after_s, partial(self._part, connection))

    def close(self) -> None:
        """End all connections; open requests fail."""
        self._timer.cancel()
        for connection in list(self._connections.values()):
            connection.end("model_unavailable", "the gateway is shutting down")

    def _connection(self, instance: Instance) -> RunnerConnection | None:
        """Return the existing connection or a new one; None if this node can reach no address of
        the runner."""
        lead = instance.lead
        if lead is None:
            raise ValueError(f"{instance.instance} has no ready lead runner")
        current = self._connections.get(instance.instance)
        if current is not None:
            if current.generation == instance.generation:
                return current
            current.end(*_REPLACED)
        address = reachable(lead, self._bus.speaker.node, self.hosts)
        if address is None:
            return None
        connection = RunnerConnection(
            instance=instance,
            address=address,
            identity=self._identity,
            bus=self._bus,
            on_dead=self._died,
        )
        self._connections[instance.instance] = connection
        return connection

    def heard_peers(self, reading: PeersReading) -> None:
        """Store the addresses of peers from this node's own reading. Readings of other nodes are
        ignored."""
        if reading.node == self._bus.speaker.node:
            self.hosts = {peer.node: peer.host for peer in reading.peers if peer.host}

    def _part(self, connection: RunnerConnection) -> None:
        """End a connection, unless its instance has meanwhile returned to the cluster's state."""
        self._leaving.discard(connection)
        instance = self._bus.state.instances.get(connection.instance)
        if not _holds(instance, connection):
            connection.end(*(_GONE if instance is None else _REPLACED))

    def _died(self, connection: RunnerConnection) -> None:
        self._leaving.discard(connection)
        if self._connections.get(connection.instance) is connection:
            del self._connections[connection.instance]
        for request_id in [key for key, at in self._at.items() if at is connection]:
            del self._at[request_id]

    def _tick(self) -> None:
        now = self._bus.reactor.now()
        for connection in list(self._connections.values()):
            connection.tick(now)
            if connection.open_requests and connection.life.leave_at < now + TICK_S:
                due_at = max(connection.life.leave_at, now)
                look = partial(self._leave_if_stuck, connection, due_at)
                self._bus.reactor.later(due_at - now, look)

    def _leave_if_stuck(self, connection: RunnerConnection, due_at: float) -> None:
        """If a runner is silent or makes no progress, and another instance of its model is ready,
        move its requests to that instance."""
        now = self._bus.reactor.now()
        if connection.life.leave_at <= now < due_at + LATE_S and self._has_other(connection):
            connection.leave()

    def _has_other(self, connection: RunnerConnection) -> bool:
        return any(
            instance.accepts and not self.suspect(instance.instance)
            for instance in self._bus.state.instances.values()
            if instance.model == connection.model and instance.instance != connection.instance
        )


def _holds(instance: Instance | None, connection: RunnerConnection) -> bool:
    """Return whether the cluster's state has the connection's instance with the same runners."""
    return instance is not None and instance.generation == connection.generation


def _unreachable(instance: Instance) -> Refusal:
    return Refusal(
        reason="not_ready",
        message=(
            f"{instance.model} runs on a node that does not listen for other nodes "
            "(`cluster.listen` in its shoal.toml)"
        ),
    )
