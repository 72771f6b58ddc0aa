"""Talks to the bus, supervisord and the slots: the shell around `reconcile`.

Twice a second supervisord's list is taken in; with each state, hello and quarter of a second
the slots are reconciled and the actions done. Stopping a worker stops no runner: the next one
finds them by their hellos.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.client import BusClient
from bus.links.reactor import Reactor
from bus.links.transport import Change, Link
from bus.process.clock import wall
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.process.supervisor import Supervisor
from bus.replica.outbox import Outbox
from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard, PartialModel
from bus.wire.codec import Envelope, decode
from bus.wire.errors import BadMessage
from bus.wire.ids import InstanceId, ModelId
from bus.wire.messages.control import (
    AskRunner,
    DiagnosisRefused,
    RunnerReport,
    SlotEnded,
    SlotHello,
    SlotRefused,
)
from bus.wire.messages.events import NodeJoined
from bus.wire.messages.readings import CardReading, NodeReading
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN
from worker.machine.node_card import free_bytes, node_card
from worker.machine.ports import PortPool
from worker.machine.rank_addresses import RankAddresses
from worker.machine.rdma_watch import RdmaWatch
from worker.models.weights import Weights
from worker.slots.admission import NodeInventory
from worker.slots.diagnoses import OpenQuestions
from worker.slots.executor import (
    DataPorts,
    Executor,
    RingSecret,
    RunnerDefaults,
    identity_of,
    open_secret,
)
from worker.slots.facts import Reported, exit_fact
from worker.slots.reconcile import (
    SUSPECT_S,
    instance_slot,
    is_settled,
    reconcile,
    silent_ones,
)
from worker.slots.table import Gone, SlotTable
from worker.transfer.downloads import PeerDownloads
from worker.transfer.staging import parts_held
from worker.transfer.thread import WeightsSettings, WeightsThread, link_maker

TICK_S = 0.25
LIST_S, LIST_STEADY_S = 0.5, 2.0
REAPED_S, RESTLESS_S = 0.1, 2.0
LOOK_S = 5.0
CARD_S = 30.0
STALL_S = 3.0
FRESH_READING_S = 3.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the composition root read. `memory_bytes` 0: what the machine has. Ports come as
    (first, count)."""

    node_name: str
    slots: int
    memory_bytes: int
    runner: RunnerDefaults
    data: DataPorts
    ring_ports: tuple[int, int]
    plan_ports: tuple[int, int]
    weights: WeightsSettings | None = None
    """None: weights are neither fetched from other nodes nor given to them."""
    launched_by: str = ""


class Worker:
    """This node's worker."""

    def __init__(
        self,
        client: BusClient,
        reactor: Reactor,
        log: Log,
        settings: WorkerSettings,
        supervisor: Supervisor,
        weights: Weights,
        ring_secret: RingSecret = open_secret,
    ) -> None:
        self.client = client
        self.table = SlotTable()
        self._reactor = reactor
        self._log = log
        self._settings = settings
        self._weights = weights
        self._told = Reported()
        self._questions = OpenQuestions()
        self._models: dict[ModelId, ModelCard] = {}
        self._parts: dict[ModelId, PartialModel] = {}
        self._part_cards: dict[ModelId, ModelCard] = {}
        self._supply = self._supplied(client, settings.weights)
        self._rdma = RdmaWatch(client)
        self._announced: tuple[object, ...] = ()
        self._announced_at = -CARD_S
        self._began_at: float | None = None
        self._settled = False
        self._seated = False
        self._measured: tuple[int, float] | None = None
        self._ticked_at = reactor.now()
        self._suspects: set[str] = set()
        self._listed_at = self._lost_at = -LIST_STEADY_S
        self._link = Link("router")
        self._link.bind(client.endpoints.worker)
        ways = RankAddresses(client.speaker.node)
        self._hands = Executor(
            client,
            self._link,
            supervisor,
            log,
            self.table,
            self._told,
            settings.runner,
            self._models,
            settings.data,
            PortPool(*settings.ring_ports),
            PortPool(*settings.plan_ports),
            ways,
            self._supply,
            ring_secret,
            lambda: self._rdma.devices,
            self._part_cards,
        )
        reactor.watch(self._link, self._received)
        reactor.watch_changes(self._link, self._connection)
        client.hear(f"reading.node.{client.speaker.node}", self._heard_reading)
        for kind in ("peers", "link"):
            client.hear(f"reading.{kind}", lambda _, one: ways.hear(one.message, reactor.now()))
        client.on_state.append(self._on_state)
        self._join()
        self._look()
        self._list()
        reactor.every(LIST_S, self._list_if_due)
        reactor.every(TICK_S, self._tick)
        reactor.every(LOOK_S, self._look)

    def close(self) -> None:
        """Leave; the runners stay."""
        self._reactor.unwatch(self._link)
        self._link.close()
        if self._supply is not None:
            self._supply.close()
        self._rdma.close()
        self.client.close()

    def _supplied(self, client: BusClient, weights: WeightsSettings | None) -> PeerDownloads | None:
        if weights is None:
            return None
        link = link_maker(client.security)
        thread = WeightsThread(weights, client.speaker, self._log, link=link)
        return PeerDownloads(client, thread)

    # --- who we are ---

    def _join(self) -> None:
        node = self.client.speaker.node
        hosts = self._settings.data.hosts
        self.client.tell(NodeJoined(node=node, name=self._settings.node_name, addresses=hosts))

    def _on_state(self, state: ClusterState) -> None:
        here = self.client.speaker.node in state.nodes
        if self._seated and not here:
            self._rejoin()
        self._seated = here
        self._reconcile()

    def _rejoin(self) -> None:
        """The holder has lost its log: what it does not know of us has to be told afresh."""
        self._log.warning("the cluster has forgotten this node; it joins anew")
        old, speaker = self.client.outbox, self.client.speaker
        self.client.outbox = Outbox(speaker.node, speaker.process, new_boot())
        self._told.ready.clear()
        self._join()
        for fact in old.waiting.values():
            self.client.tell(fact)

    def _look(self) -> None:
        """See what lies on the disk; announce it when it changed, or it is time."""
        models = {card.model: card for card in self._weights.look()}
        for folder, trouble in self._weights.troubles.items():
            self._log.debug("cannot read a model", folder=folder, error=trouble)
        addresses = () if self._supply is None else self._supply.addresses
        known, self._parts = self._parts, self._look_at_parts(models)
        if self._supply is not None:
            spans = {model: part.layers for model, part in self._parts.items()}
            self._supply.looked(models, self._weights.troubles, spans)
        now, ports, devices = self._reactor.now(), self._rdma.ports, self._rdma.devices
        announced = (addresses, ports, tuple(sorted(devices.items())))
        same = (models, announced, self._parts) == (self._models, self._announced, known)
        if same and now - self._announced_at < CARD_S:
            return
        self._models.clear()
        self._models.update(models)
        self._announced, self._announced_at = announced, now
        if self._supply is not None:
            self._supply.offers(models.values())
        settings, node = self._settings, self.client.speaker.node
        card = node_card(
            node,
            settings.node_name,
            slots=settings.slots,
            memory_bytes=settings.memory_bytes,
            models=tuple(models.values()),
            weights_addresses=addresses,
            announced_at_s=wall(),
            launched_by=settings.launched_by,
            rdma_ports=ports,
            rdma=devices,
        )
        card = card.model_copy(update={"parts": tuple(self._parts.values())})
        self.client.publish(f"card.{node}", CardReading(card=card))

    def _look_at_parts(self, whole: Mapping[ModelId, ModelCard]) -> dict[ModelId, PartialModel]:
        """What lies here in part only: of each model the stage that has most."""
        self._part_cards.clear()
        if self._settings.weights is None:
            return {}
        found: dict[ModelId, PartialModel] = {}
        for one in sorted(parts_held(self._settings.weights.models), key=lambda p: p.have_bytes):
            card = None if one.model in whole else self._weights.part(one.model, one.folder)
            if card is not None:
                self._part_cards[one.model] = card
                found[one.model] = PartialModel(
                    model=one.model,
                    layers=one.layers,
                    have_bytes=one.have_bytes,
                    size_bytes=one.size_bytes,
                    path=str(one.folder.parent),
                )
        return found

    def _heard_reading(self, _topic: str, envelope: Envelope) -> None:
        if isinstance(envelope.message, NodeReading):
            measured = envelope.message.memory_available_bytes
            self._measured = (measured, self._reactor.now())

    # --- what slots say ---

    def _received(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            return
        identity, payload = frames
        try:
            message = decode(payload).message
        except BadMessage as error:
            self._log.warning("dropped a slot's message", error=str(error)[:200])
            return
        match message:
            case SlotHello():
                self._hello(message, identity)
            case SlotEnded():
                self.table.ended(message)
                self._log.info("a runner leaves", slot=message.slot, why=message.message)
                self._reactor.later(0.05, self._list)
            case RunnerReport():
                if message.instance is not None:
                    for asker in self._questions.answered(message.instance):
                        self._hands.send(asker, message)
            case AskRunner(instance=instance):
                self._ask_runner(instance, identity)
            case _:
                self._log.warning("unexpected from a slot", kind=type(message).__name__)

    def _hello(self, hello: SlotHello, identity: bytes) -> None:
        if hello.protocol_max < PROTOCOL_MIN or hello.protocol_min > PROTOCOL_MAX:
            text = (
                f"the runner speaks protocols {hello.protocol_min} to {hello.protocol_max}, "
                f"this worker {PROTOCOL_MIN} to {PROTOCOL_MAX}"
            )
            self._log.error("refused a runner", slot=hello.slot, why=text)
            self._hands.send(identity, SlotRefused(message=text))
            return
        gone = self.table.heard(hello, self._reactor.now())
        if gone is not None:
            self._left(gone)
        self._reconcile()

    def _ask_runner(self, instance: InstanceId, asker: bytes) -> None:
        slot = instance_slot(self.table, instance)
        if slot is None or slot.boot is None:
            text = f"no runner of {instance} is on this node"
            self._hands.send(asker, DiagnosisRefused(status=404, message=text))
            return
        self._questions.ask(instance, asker, self._reactor.now())
        self._hands.send(identity_of(slot.name, slot.boot), AskRunner(instance=instance))

    # --- what supervisord says ---

    def _list_if_due(self) -> None:
        """Often while a slot changes, one has just dropped its connection or supervisord is in
        trouble; now and then otherwise."""
        now = self._reactor.now()
        restless = self._began_at is None or self._hands.trouble or not self.table.is_steady
        if restless or now - self._lost_at < RESTLESS_S or now - self._listed_at >= LIST_STEADY_S:
            self._list()

    def _connection(self, change: Change) -> None:
        """A runner that dies drops its connection. The first call makes supervisord look after its
        children, the second hears of it."""
        if change == "lost":
            self._lost_at = self._reactor.now()
            for delay_s in (0.0, REAPED_S):
                self._reactor.later(delay_s, self._list)

    def _list(self) -> None:
        self._listed_at = self._reactor.now()
        seen = self._hands.list_slots()
        if seen is None:
            return
        now = self._reactor.now()
        if self._began_at is None:
            self._began_at = now
        for gone in self.table.listed(seen, now):
            self._left(gone)
        self._hands.sweep({one.name for one in seen if not one.alive})
        self._reconcile()

    def _left(self, gone: Gone) -> None:
        slot = gone.slot
        words = ""
        if slot.last_word is None and not slot.doom and slot.task is not None:
            words = self._hands.last_words(slot.name)
        now, node = self._reactor.now(), self.client.speaker.node
        told = exit_fact(gone, self.client.state, node, self._told, words, now)
        self._log.info("a slot is free", slot=slot.name, pid=slot.pid, exit_code=gone.exit_code)
        for action in told:
            self._hands.do(action, now)

    # --- what to do ---

    def _tick(self) -> None:
        now = self._reactor.now()
        if now - self._ticked_at > STALL_S:
            self._log.warning("was away", seconds=round(now - self._ticked_at, 1))
            self.table.forgive(now)
        self._ticked_at = now
        for asker in self._questions.expired(now):
            text = "the runner did not answer in time"
            self._hands.send(asker, DiagnosisRefused(status=504, message=text))
        self._suspect(now)
        if self._supply is not None:
            self._supply.tick(now)
            if self._supply.has_arrived():
                self._look()
        self._reconcile()

    def _suspect(self, now: float) -> None:
        silent = {
            name
            for name, slot in self.table.slots.items()
            if slot.life in ("ready", "draining") and now - slot.heard_at >= SUSPECT_S
        }
        for name in silent - self._suspects:
            self._log.warning("a runner has fallen silent", slot=name)
        self._suspects = silent

    def _reconcile(self) -> None:
        if not self.client.mirror.live or self._began_at is None:
            return
        now = self._reactor.now()
        if not self._settled and is_settled(self.table, self._began_at, now):
            self._settled = True
            self._log.info("took stock", slots=len(self.table.slots))
            for action in silent_ones(self.table):
                self._hands.do(action, now)
        supply = self._supply
        desk = NodeInventory(
            node=self.client.speaker.node,
            settled=self._settled,
            free_bytes=self._free_bytes(now),
            paths=frozenset(self._models),
            load_deadline_s=self._settings.runner.load_deadline_s,
            now=now,
            announced={} if supply is None else supply.announced(now),
            fetches={} if supply is None else supply.fetches(),
            has_heard=supply is None or supply.has_heard(now),
            arrived=frozenset() if supply is None else supply.arrived(),
            parts={str(model): frozenset(part.layers) for model, part in self._parts.items()},
            announced_parts={} if supply is None else supply.announced_parts(now),
            cards={} if supply is None else supply.cards_of(now),
        )
        for action in reconcile(self.client.state, self.table, desk, self._told):
            self._hands.do(action, now)

    def _free_bytes(self, now: float) -> int:
        """telemetry's figure where it is fresh (it knows macOS's arithmetic), else our own."""
        if self._measured is not None and now - self._measured[1] < FRESH_READING_S:
            return self._measured[0]
        return free_bytes()
