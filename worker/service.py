"""Talks to the bus: builds the parts of the worker, connects them, and announces the node.

It joins the cluster and announces the models on the disk. It reconciles the slots whenever the
cluster's state changes, and twice a second. Stopping a worker stops no runner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bus.client import BusClient
from bus.links.transport import Link
from bus.models.kv import KvLimits
from bus.process.clock import wall
from bus.process.identity import new_boot
from bus.process.supervisor import Supervisor
from bus.replica.outbox import Outbox
from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.codec import Envelope
from bus.wire.kv import SeekRun
from bus.wire.messages.events import NodeJoined
from bus.wire.messages.gateways import AskSearch, ChangePull
from bus.wire.messages.readings import CardReading, NodeReading, RunnerReading
from bus.wire.messages.wire import Message
from worker.eviction import Evictions, Near, StoreSettings
from worker.looks import STUCK_S, Looked, Looks, Notices
from worker.machine.awake import KeepAwake
from worker.machine.blas_repeats import BlasRepeats
from worker.machine.devices import DeviceWatch
from worker.machine.memory_speed import MemorySpeed
from worker.machine.node_card import FreeMemory, chip, machine_facts
from worker.machine.ports import PortPool
from worker.machine.rank_addresses import RankAddresses
from worker.machine.rdma_watch import RdmaWatch
from worker.models.files import tags_of
from worker.models.last_used import LastUsed, minute_of
from worker.models.local_models import LocalModels
from worker.models.weights import Weights
from worker.pulling import Pulls, PullSettings, Searches
from worker.slots import runner_specs
from worker.slots.admission import USUAL, NodeInventory, SlotTiming
from worker.slots.beside import SlotNotes
from worker.slots.control import SlotControl
from worker.slots.executor import Executor
from worker.slots.processes import SlotProcesses
from worker.transfer.downloads import Downloads
from worker.transfer.kv_moves import KvMoves
from worker.transfer.thread import WeightsSettings
from worker.verifying import Verifications

TICK_S = 0.5
CARD_S = 30.0
LOAD_TIMES_FILE = "load_seconds.json"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The worker's settings. `memory_bytes` 0: runners may use all of the machine's memory. Ranges
    of ports are (first port, number of ports)."""

    node_name: str
    slots: int
    memory_bytes: int
    runner: runner_specs.RunnerDefaults
    data: runner_specs.DataPorts
    ring_ports: tuple[int, int]
    plan_ports: tuple[int, int]
    weights: WeightsSettings
    pulls: PullSettings
    store: StoreSettings
    launched_by: str = ""
    llama_server: tuple[str, ...] = ()
    spare: bool = False
    group_connect_s: float = 20.0
    timing: SlotTiming = USUAL
    measure_again: tuple[str, ...] = ()
    """The command that measures the BLAS libraries again."""
    runner_variables: Path = Path()
    engines_file: Path | None = None
    environments: Path | None = None
    memory_speed: Path | None = None
    """The file with the measured speed of this machine's memory; None: it is not measured."""
    kv_files: KvLimits | None = None
    """The limits of the folder with the KV of long prompts; None: there is no such folder."""


class Worker:
    """The worker of this node: connects its parts to the bus and to each other."""

    def __init__(
        self,
        client: BusClient,
        settings: WorkerSettings,
        supervisor: Supervisor,
        weights: Weights,
        ring_secret: runner_specs.RingSecret = runner_specs.open_secret,
    ) -> None:
        self.client = client
        self._reactor = reactor = client.reactor
        self._log = client.log
        self._settings = settings
        times = settings.weights.hashes / LOAD_TIMES_FILE
        self._notes = SlotNotes(times, settings.weights.models, client.log)
        self._devices = DeviceWatch(settings.llama_server)
        self._models = LocalModels(
            weights,
            settings.weights.models,
            self._notes.load_s,
            settings.engines_file,
            LastUsed(settings.weights.hashes.with_name("engines-memory.json")),
            settings.environments,
        )
        self._downloads = Downloads(client, settings.weights)
        self._pulls = Pulls(client, settings.pulls, self._downloads, self._models)
        self._verifications = Verifications(client, self._models)
        self._rdma = RdmaWatch(client)
        self._awake = KeepAwake(client.log)
        self._repeats = BlasRepeats(settings.runner_variables, settings.measure_again, client.log)
        self._speed = MemorySpeed(settings.memory_speed, chip(), client.log)
        self._announced: tuple[tuple[object, ...], float] = ((), -CARD_S)
        self._notices = Notices(client.log)
        self._last_used = LastUsed(settings.weights.hashes.with_name("models-used.json"))
        self._used = self._last_used.read()
        self._seated = False
        self._memory = FreeMemory()
        self._link = Link("router")
        self._link.bind(client.endpoints.worker)
        seen = RankAddresses(client.speaker.node)
        self._slots = self._slot_control(supervisor, seen, ring_secret)
        self.table = self._slots.table
        verifying = self._verifications.models
        self._evictions = Evictions(
            client,
            settings.store,
            Near(self._models, self._used, self._downloads, self.table, verifying),
        )
        reactor.watch(self._link, self._slots.received)
        reactor.watch_changes(self._link, self._slots.connection)
        client.hear(f"reading.node.{client.speaker.node}", self._heard_reading)
        client.hear(f"reading.runner.{client.speaker.node}", self._heard_use)
        for kind in ("peers", "link"):
            client.hear(
                f"reading.{kind}", lambda _, envelope: seen.hear(envelope.message, reactor.now())
            )
        client.on_state.append(self._on_state)
        self._join()
        self._saw(Looked(self._models.scan(), frozenset(), reactor.now()))
        self._looks = Looks(self._models, self._last_used, settings.kv_files)
        self._slots.list_slots()
        reactor.every(settings.timing.list_s, self._slots.list_if_due)
        reactor.every(TICK_S, self._tick)

    def close(self) -> None:
        """Close the worker's connections. The runners continue to run."""
        self._reactor.unwatch(self._link)
        self._link.close()
        self._slots.close()
        self._looks.close()
        self._devices.close()
        self._pulls.close()
        self._searches.close()
        self._verifications.close()
        self._evictions.close()
        self._notes.close()
        self._downloads.close()
        self._rdma.close()
        self._awake.release()
        self._repeats.close()
        self.client.close()

    def _slot_control(
        self, supervisor: Supervisor, seen: RankAddresses, ring_secret: runner_specs.RingSecret
    ) -> SlotControl:
        client, settings = self.client, self._settings
        processes = SlotProcesses(supervisor, client.endpoints, client.log)
        specs = runner_specs.RunnerSpecs(
            client.endpoints,
            settings.runner,
            settings.data,
            self._models,
            ring_secret,
            settings.group_connect_s,
        )
        seats = runner_specs.RankSeats(
            node=client.speaker.node,
            data=settings.data,
            ring_ports=PortPool(*settings.ring_ports),
            plan_ports=PortPool(*settings.plan_ports),
            seen=seen,
            devices=lambda: self._rdma.devices,
            log=client.log,
        )
        executor = Executor(
            client=client,
            link=self._link,
            processes=processes,
            specs=specs,
            seats=seats,
            downloads=self._downloads,
        )
        self._places = runner_specs.ProposerPlaces(client, self._models, seen)
        self._searches = Searches(executor.send, offline=settings.pulls.offline)
        self._kv_moves = None
        if settings.kv_files is not None:
            self._kv_moves = KvMoves(
                client,
                self._downloads,
                settings.kv_files,
                lambda: {node: reading for node, (reading, _) in seen.links.items()},
                self._models,
                executor.send,
            )

        def change_pull(question: ChangePull, asker: bytes) -> None:
            self._pulls.changes.ask(question, partial(executor.send, asker))

        others: dict[type[Message], Callable[[Any, bytes], None]] = {
            AskSearch: self._searches.ask,
            ChangePull: change_pull,
        }
        if self._kv_moves is not None:
            others[SeekRun] = self._kv_moves.seek
        return SlotControl(executor, self._inventory, settings.timing, self._notes, others)

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
        self._slots.reconcile()

    def _rejoin(self) -> None:
        """Send the leader everything about this node again, because the cluster's log with it is
        lost."""
        self._log.warning("the cluster no longer knows this node; joining again")
        old, speaker = self.client.outbox, self.client.speaker
        self.client.outbox = Outbox(speaker.node, speaker.process, new_boot())
        self._slots.forget_ready()
        self._join()
        for fact in old.waiting.values():
            self.client.tell(fact)

    def _look(self, now: float) -> None:
        """Use the result of the last disk scan, if it has ended, and start the next scan if it is
        due."""
        try:
            looked = self._looks.ended(now)
        except OSError as error:
            looked = None
            self._log.warning("cannot scan the model folders", error=str(error))
        if looked is not None:
            self._saw(looked)
        if self._looks.is_stuck(now):
            self._log.warning("the disk with the models does not respond", silent_s=STUCK_S)
        came = {*self._downloads.came(), *self._pulls.came()}
        if self._pulls.awaits_scan():
            self._looks.hurry()
        self._looks.begin(now, came, self._used)

    def _saw(self, looked: Looked) -> None:
        """Use a scan of the model folders, and publish the node card if it changed or is due."""
        self._models.take(looked.seen)
        self._notices.take(self._models.passed_over)
        self._downloads.looked(self._models, looked.came)
        self._pulls.looked(looked.came, looked.began_at)
        self._announce()

    def _announce(self) -> None:
        """Publish the node card if the node's models, GPUs or other facts have changed since the
        last one, or if the last one is `CARD_S` old."""
        addresses, passed_over = self._downloads.addresses, self._notices.entries
        now, ports, devices = self._reactor.now(), self._rdma.ports, self._rdma.devices
        models = tuple(self._with_use(card) for card in self._models.cards.values())
        parts, count = tuple(self._models.parts.values()), len(self._models.passed_over)
        cannot_run = self._slots.ability.why_not(now)
        gpus, tags = self._devices.devices, self._devices.tags
        announced = (
            *(models, parts, addresses, ports, devices, passed_over, count, cannot_run),
            *(self._speed.bytes_per_s, gpus, tags),
        )
        if announced == self._announced[0] and now - self._announced[1] < CARD_S:
            return
        self._announced = (announced, now)
        settings, node = self._settings, self.client.speaker.node
        facts = machine_facts(
            settings.memory_bytes,
            has_llama_server=bool(settings.llama_server),
            devices=gpus,
            llama_tags=tags,
        )
        facts["backends"] = (*facts["backends"], *tags_of(models))
        facts["cannot_run"] = cannot_run or facts["cannot_run"]
        card = NodeCard(
            node=node,
            name=settings.node_name,
            slots=settings.slots,
            models=models,
            parts=parts,
            weights_addresses=addresses,
            announced_at_s=wall(),
            launched_by=settings.launched_by,
            rdma_ports=ports,
            rdma=devices,
            passed_over=passed_over,
            passed_over_count=count,
            memory_bytes_per_s=self._speed.bytes_per_s,
            **facts,
        )
        self.client.publish(f"card.{node}", CardReading(card=card))

    def _with_use(self, card: ModelCard) -> ModelCard:
        used_at_s = self._used.get(card.model, 0)
        speed = self._notes.tokens_per_s.get(card.model, 0.0)
        if not used_at_s and not speed:
            return card
        return card.model_copy(update={"last_used_at_s": used_at_s, "tokens_per_s": speed})

    def _heard_use(self, _topic: str, envelope: Envelope) -> None:
        reading = envelope.message
        if (
            isinstance(reading, RunnerReading)
            and reading.model is not None
            and reading.phase == "ready"
        ):
            at_s = minute_of(wall() - reading.last_used_ago_s)
            self._used[reading.model] = max(at_s, self._used.get(reading.model, 0))
            self._models.measured(reading.model, reading.process_bytes)
            is_whole = any(
                instance.instance == reading.instance and len(instance.shards) == 1
                for instance in self.client.state.instances.values()
            )
            if is_whole and reading.row_tokens_per_s:
                self._notes.decoded(reading.model, reading.row_tokens_per_s, self._reactor.now())

    def _heard_reading(self, _topic: str, envelope: Envelope) -> None:
        if isinstance(envelope.message, NodeReading):
            self._memory.take(envelope.message.memory_available_bytes, self._reactor.now())

    # --- what to do ---

    def _tick(self) -> None:
        now = self._reactor.now()
        self._slots.tick(now)
        self._slots.executor.send_places(self._places, self.table.slots, now)
        self._look_at_devices()
        living = (slot.hello for slot in self.table.slots.values() if slot.life != "free")
        hellos = [hello for hello in living if hello is not None]
        self._awake.look(hellos, now)
        if not self._repeats.is_measuring:
            self._speed.look(hellos, now)
        if self._repeats.look(hellos, now):
            self._slots.stop_spares("the runner's BLAS was chosen before the last measurement")
        self._downloads.tick(now)
        self._pulls.tick(now)
        self._searches.tick()
        if self._kv_moves is not None:
            self._kv_moves.tick(now)
        self._verifications.tick(now)
        self._evictions.tick(now)
        self._look(now)
        self._slots.reconcile()

    def _look_at_devices(self) -> None:
        """Measure the GPUs at once if a runner has started or ended, and announce what changed."""
        self._devices.hurry_after(tuple(slot.life for slot in self.table.slots.values()))
        if (self._devices.devices, self._devices.tags) != self._announced[0][-2:]:
            self._announce()

    def _inventory(self, settled: bool, now: float) -> NodeInventory:
        node = self.client.speaker.node
        return NodeInventory(
            node=node,
            settled=settled,
            free_bytes=self._memory.free_bytes(now),
            paths=frozenset(self._models.cards),
            load_deadline_s=self._settings.runner.load_deadline_s,
            now=now,
            parts=self._models.parts,
            elsewhere=self._downloads.elsewhere(now),
            timing=self._settings.timing,
            spare=self._settings.spare,
            devices=self._devices.devices,
            on_devices=frozenset(
                instance.instance
                for instance in self.client.state.instances.values()
                if any(shard.devices and shard.node == node for shard in instance.shards)
            ),
        )
