"""Talks to the bus: the cluster as one HTTP process sees it, and the changes that it can ask for.

`Cluster` is the facade for everything that concerns more than this process: the replicated state,
what nodes report, the leader's commands, and calls to the gateways of other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from bus.calls import Around, NodeCalls, ProcessCalls, Standing, TypedCall, refusal_of, standing_of
from bus.client import Speaker
from bus.links.reactor import AsyncioReactor
from bus.process.clock import wall
from bus.process.identity import new_name
from bus.process.logs import Log
from bus.service import open_client
from bus.wire.codec import Envelope
from bus.wire.errors import ShoalError
from bus.wire.ids import CommandId, ModelId, NodeId
from bus.wire.messages.commands import Acknowledged, Command, CommandRefused, KeepAlive
from bus.wire.messages.gateways import CallRefusal
from bus.wire.messages.peers import PeersReading
from bus.wire.topics import RELAYED
from gateway.access import ApiKeys
from gateway.control.cancels import CancelRouter
from gateway.control.card_files import CardFiles
from gateway.control.keep_alive import KeepAliveWishes
from gateway.control.removals import Removals
from gateway.dialects.faults import HttpFaultRaised, of_refusal
from gateway.requests.catalog import ModelCatalog
from gateway.runners.pool import RunnerClients
from gateway.view.fleet import FleetView
from gateway.view.options import Options
from gateway.view.readings import TOPICS, ClusterReadings

WISHES_S = 1.0
NOTICED_S, NOTICED_LOOK_S = 5.0, 0.01


class Cluster:
    """The cluster as one HTTP process sees it. `near` reaches the HTTP processes of this node;
    `catalog` has the models and instances, `runners` the connections to the runners. If this node
    fails to answer a call of another node, `refusal_of_error` makes the refusal from the error."""

    def __init__(
        self,
        options: Options,
        speaker: Speaker,
        reactor: AsyncioReactor,
        log: Log,
        near: ProcessCalls,
        refusal_of_error: Callable[[ShoalError], CallRefusal],
    ) -> None:
        self.options, self.reactor, self.log = options, reactor, log
        self.near = near
        self.bus = open_client(speaker, options.endpoints, reactor, log, options.cluster_keys)
        self.readings = ClusterReadings(self._forgotten, options.node)
        self.fleet = FleetView(self.readings, self._forgotten)
        self.api_keys = ApiKeys(self.bus, self.readings)
        for topic in TOPICS:
            self.bus.hear(topic, self._receive)
        self.bus.hear(RELAYED, self._receive_relayed)
        self.runners = RunnerClients(self.bus, short_name(near))
        self.catalog = ModelCatalog(
            self.bus, self.readings, self.runners, options.pull_names, options.pull_on_demand
        )
        self.calls = NodeCalls(
            self.bus,
            Around(self.standing, self._everyone, self._judge, refusal_of_error),
            number=near.number,
            processes=options.processes,
        )
        self.cancels = CancelRouter(processes=options.processes, near=near, calls=self.calls)
        self.removals = Removals(self.bus, self.readings, self.calls, options.models_folder)
        self.card_files = CardFiles(self.bus, self.readings, self.calls)
        self._wishes = KeepAliveWishes()
        reactor.every(WISHES_S, self._tell_wishes)

    def command_id(self) -> CommandId:
        """Return a new id for a command."""
        return CommandId(new_name("cmd"))

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

    def keep_alive(self, model: ModelId, seconds: float) -> None:
        """Request a keep-alive time for all instances of a model. Does not wait."""
        for instance in self.bus.state.instances.values():
            if instance.model == model and instance.status in ("placed", "ready"):
                self._wishes.wish(instance.instance, seconds)
        self._tell_wishes()

    def standing(self, node: NodeId) -> Standing | None:
        """Return the state of a node, as this node sees it; None for an unknown node."""
        now = self.reactor.now()
        names = {card.node: card.name for card in self.readings.cards(now)}
        names |= {NodeId(node_id): facts.name for node_id, facts in self.bus.state.nodes.items()}
        peers = self.readings.peers(now)
        return standing_of(node, own=self.options.node, names=names, peers=peers)

    def close(self) -> None:
        """Close the connections to runners, other nodes and the switchboard."""
        self.runners.close()
        self.calls.close()
        self.near.close()
        self.bus.close()

    def _forgotten(self) -> Collection[NodeId]:
        return self.bus.mirror.state.forgotten

    def _everyone(self) -> set[NodeId]:
        """Return the nodes of the cluster, including ours."""
        cards = self.readings.cards(self.reactor.now())
        return {NodeId(node) for node in self.bus.state.nodes} | {card.node for card in cards}

    def _judge(self, call: TypedCall[Any, Any], asker: NodeId, key: str) -> CallRefusal | None:
        return refusal_of(call, self.standing(asker), key, self.api_keys.book.keys, wall())

    def _receive(self, _topic: str, envelope: Envelope) -> None:
        message = envelope.message
        self.readings.heard(message, self.reactor.now())
        if isinstance(message, PeersReading):
            self.runners.heard_peers(message)
        self.api_keys.take_over(envelope)

    def _receive_relayed(self, _topic: str, envelope: Envelope) -> None:
        self.fleet.take(envelope.message, self.reactor.now())

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


def short_name(near: ProcessCalls) -> str:
    """Return the name of this process in ids of requests, and to runners."""
    return f"h{near.number}"
