"""Talks to supervisord and the slots: does what `reconcile` asked, and notes it in the table.

What could not be done (a slot whose connection is gone, a supervisord that does not answer) is
not noted, so that it is asked for again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, assert_never, cast

from bus.client import BusClient
from bus.links.transport import Link
from bus.process.logs import Log
from bus.process.supervisor import ProcessRefused, Supervisor
from bus.service import sweep_role
from bus.wire.cards import ModelCard
from bus.wire.codec import encode
from bus.wire.errors import PortTaken, Refusal, Unavailable
from bus.wire.ids import InstanceId, ModelId
from bus.wire.instances import RankSeat
from bus.wire.messages.control import GroupSpec, RunnerSpec, SlotDrain, SlotRefused
from bus.wire.messages.events import RankSeated, RunnerEnded
from bus.wire.messages.wire import Message
from worker.machine.node_card import addresses
from worker.machine.ports import PortPool
from worker.machine.rank_addresses import RankAddresses
from worker.machine.rdma import device_row
from worker.slots.actions import (
    Action,
    CancelFetch,
    DrainSlot,
    FetchModel,
    GiveSpec,
    KillSlot,
    RefuseSlot,
    SeatRank,
    SlotAction,
    StartSlot,
    StopSlot,
    Tell,
)
from worker.slots.facts import Reported, refused
from worker.slots.table import Seen, SlotTable, Task
from worker.transfer.downloads import PeerDownloads

GROUP = "runner:"


@dataclass(frozen=True, slots=True)
class RunnerDefaults:
    """What every `RunnerSpec` gets from the settings."""

    max_rows: int
    max_waiting: int
    prefill_share: float
    prefix_cache_bytes: int
    default_max_tokens: int
    drop_idle_s: float
    load_deadline_s: float


class CannotSeat(Exception):
    """This node cannot be a rank of the group; `args[0]` says why."""


RingSecret = Callable[[InstanceId, int], str]


def open_secret(instance: InstanceId, generation: int) -> str:
    """What the ranks of a cluster without keys greet each other with: it tells generations
    apart and keeps nobody out."""
    return sha256(f"{instance}/{generation}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class DataPorts:
    """Where runners of this node serve other nodes: the first slot's TCP `port`, on `listen`
    (empty: they do not), dialled at `hosts`, best first."""

    listen: str
    port: int
    hosts: tuple[str, ...]


@dataclass(slots=True)
class Executor:
    """The worker's way to act. `table` and `told` are the worker's own."""

    client: BusClient
    link: Link
    supervisor: Supervisor
    log: Log
    table: SlotTable
    told: Reported
    runner: RunnerDefaults
    models: Mapping[ModelId, ModelCard]
    data: DataPorts
    ring_ports: PortPool
    plan_ports: PortPool
    ways: RankAddresses
    supply: PeerDownloads | None = None
    ring_secret: RingSecret = open_secret
    rdma: Callable[[], Mapping[str, str]] = dict[str, str]
    """Peer to the RDMA device that leads there, now."""
    parts: Mapping[ModelId, ModelCard] = field(default_factory=dict[ModelId, ModelCard])
    """Models that lie here in part, each with the folder of what there is."""
    trouble: str = ""
    swept: set[str] = field(default_factory=set[str])

    def do(self, action: Action, now: float) -> None:
        """Do one action; what supervisord refuses is logged and told where it matters."""
        if isinstance(action, FetchModel | CancelFetch):
            self._fetch(action, now)
            return
        try:
            self._act(action, now)
        except Unavailable as error:
            self.say_once(str(error))
        except ProcessRefused as error:
            self.log.error("supervisord refused", action=type(action).__name__, error=str(error))
            if isinstance(action, StartSlot):
                self._could_not_start(action, str(error), now)

    def list_slots(self) -> list[Seen] | None:
        """The runner slots as supervisord has them; None when it does not answer."""
        try:
            found = self.supervisor.list_processes()
        except ProcessRefused as error:
            if error.reason != "shutting_down":
                self.say_once(str(error))
            return None
        except Unavailable as error:
            self.say_once(str(error))
            return None
        self.trouble = ""
        return [
            Seen(p.name.removeprefix(GROUP), p.alive, p.pid, p.exit_code)
            for p in found
            if p.name.startswith(GROUP)
        ]

    def sweep(self, free: set[str]) -> None:
        """A runner that was killed leaves its sockets: once for each slot that came free."""
        for slot in sorted(free - self.swept):
            left = sweep_role(self.client.endpoints, GROUP + slot)
            if left:
                files = ", ".join(left)
                self.log.info("swept after a runner that was killed", slot=slot, files=files)
        self.swept = free

    def last_words(self, slot: str) -> str:
        """The last line of a slot's log, readable."""
        try:
            tail = self.supervisor.last_words(GROUP + slot)
        except (Unavailable, ProcessRefused):
            return ""
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        return _readable(lines[-1])[:300] if lines else ""

    def send(self, identity: bytes, message: Message) -> bool:
        """To whom the ROUTER knows by that name; False when it knows nobody."""
        return self.link.send(identity, encode(self.client.envelope(message)))

    def say_once(self, trouble: str) -> None:
        """Log a trouble with supervisord, once for as long as it lasts."""
        if trouble != self.trouble:
            self.trouble = trouble
            self.log.error("supervisord does not answer", error=trouble)

    def _act(self, action: SlotAction, now: float) -> None:
        table = self.table
        match action:
            case StartSlot(slot=slot, task=task):
                self.log.info("starts", slot=slot, instance=task.instance, rank=task.rank)
                if self.supervisor.start(GROUP + slot):
                    table.did(slot, "start", now)
                    table.assign(slot, task)
            case GiveSpec(slot=slot):
                boot = table.slots[slot].boot
                if boot and self.send(identity_of(slot, boot), self._spec(action)):
                    table.did(slot, "give", now)
            case SeatRank():
                self._seat(action, now)
            case DrainSlot(slot=slot, task=task, deadline_s=deadline_s, why=why):
                boot = table.slots[slot].boot
                drain = SlotDrain(
                    instance=task.instance,
                    generation=task.generation,
                    deadline_s=deadline_s,
                    why=why,
                )
                if boot and self.send(identity_of(slot, boot), drain):
                    self.log.info("drains", slot=slot, instance=task.instance, why=why)
                table.did(slot, "drain", now)
                table.drained(slot, deadline_s)
            case RefuseSlot(slot=slot, message=message):
                boot = table.slots[slot].boot
                if boot:
                    self.send(identity_of(slot, boot), SlotRefused(message=message))
                table.did(slot, "stop", now, doom=message)
            case StopSlot(slot=slot, why=why):
                self.log.info("stops", slot=slot, why=why)
                table.did(slot, "stop", now, doom=why)
                self.supervisor.stop(GROUP + slot, wait=False)
            case KillSlot(slot=slot, why=why):
                self.log.warning("kills", slot=slot, why=why)
                table.did(slot, "kill", now, doom=why)
                self.supervisor.signal(GROUP + slot, "KILL")
            case Tell(fact=fact):
                self.log.info("tells", fact=fact.kind)
                self.client.tell(fact)
            case _:
                assert_never(action)

    def _seat(self, action: SeatRank, now: float) -> None:
        """Tell where a rank will be met: by its left neighbour on the ring and, where it leads,
        by its followers for step plans."""
        data, node = self.data, self.client.speaker.node
        task, shard, nodes = action.task, action.shard, action.nodes
        try:
            if not data.listen or not data.hosts:
                raise CannotSeat("this node does not listen for others (`cluster.listen`)")
            rdma = self._devices(task)
            ring = self.ring_ports.fresh(data.listen)
            plans = self.plan_ports.fresh(data.listen) if task.rank == 0 else None
        except (PortTaken, CannotSeat) as error:
            self.told.left[task] = now
            refusal = Refusal(reason="unsupported", message=str(error))
            self.client.tell(refused(task, node, refusal))
            return
        ips, left = addresses(), nodes[task.rank - 1]
        if rdma and task.rank == 0:
            # JACCL's ranks all meet rank 0 here, and its neighbours by the device matrix alone.
            seen = self.ways.shared_host(nodes[1:], ips, now)
        else:
            seen = self.ways.host_for(left, ips, now)
        host = seen or data.hosts[0]
        followers = self.ways.hosts_for(nodes[1:], ips, now) or (host,)
        self.log.info("seats", rank=task.rank, host=host, left=left, seen=seen is not None)
        seat = RankSeat(
            rank=task.rank,
            node=node,
            first_layer=shard.first_layer,
            last_layer=shard.last_layer,
            ring=(f"{host}:{ring}",),
            plans=tuple(f"tcp://{one}:{plans}" for one in followers) if plans else (),
            rdma=rdma,
        )
        self.client.tell(RankSeated(instance=task.instance, generation=task.generation, seat=seat))

    def _devices(self, task: Task) -> tuple[str, ...]:
        """A JACCL rank's row of the device matrix, "" for itself; none for a ring. CannotSeat
        where a device is missing (its port went down after the placement)."""
        instance = self.client.state.instances.get(task.instance)
        if instance is None or instance.collectives != "jaccl":
            return ()
        order = [shard.node for shard in instance.shards]
        row = device_row(order, self.client.speaker.node, self.rdma())
        if isinstance(row, str):
            raise CannotSeat(f"no active RDMA port leads from this node to {row}")
        return row

    def _group(self, give: GiveSpec) -> GroupSpec | None:
        instance = give.instance
        if len(instance.shards) == 1:
            return None
        over_rdma = instance.collectives == "jaccl"
        return GroupSpec(
            sharding="tensor" if instance.sharding == "tensor" else "pipeline",
            backend="jaccl" if over_rdma else "ring",
            coordinator=instance.seats[0].ring[0] if over_rdma else "",
            ranks=instance.seats,
            secret=self.ring_secret(instance.instance, instance.generation),
        )

    def _fetch(self, action: FetchModel | CancelFetch, now: float) -> None:
        if self.supply is None:
            self.log.error("this worker fetches no weights", model=action.model)
        elif isinstance(action, FetchModel):
            self.supply.fetch(action.model, now, action.layers)
        else:
            self.supply.cancel(action.model)

    def _could_not_start(self, action: StartSlot, why: str, now: float) -> None:
        task = action.task
        self.told.left[task] = now
        self.client.tell(
            RunnerEnded(
                instance=task.instance,
                generation=task.generation,
                rank=task.rank,
                node=self.client.speaker.node,
                message=f"runner:{action.slot} could not be started: {why}",
            )
        )

    def _spec(self, give: GiveSpec) -> RunnerSpec:
        model, test = give.instance.model, give.instance.test
        card = None if test is not None else self.models.get(model) or self.parts[model]
        runner, data = self.runner, self.data
        local, port = self.client.endpoints.runner(give.slot), data.port + int(give.slot)
        abroad = (f"tcp://{data.listen}:{port}",) if data.listen else ()
        announced = (tuple(f"tcp://{host}:{port}" for host in data.hosts),) if abroad else ()
        return RunnerSpec(
            instance=give.task.instance,
            generation=give.task.generation,
            rank=give.task.rank,
            size=len(give.instance.shards),
            model=model,
            path="" if card is None else card.path,
            dtype="float32" if card is None else card.dtype,
            first_layer=give.shard.first_layer,
            last_layer=give.shard.last_layer,
            context_tokens=give.instance.context_tokens,
            addresses=(local, *abroad),
            announced=((local,), *announced),
            memory_limit_bytes=give.shard.bytes_reserved,
            max_rows=runner.max_rows,
            max_waiting=runner.max_waiting,
            prefill_share=runner.prefill_share,
            prefix_cache_bytes=runner.prefix_cache_bytes,
            default_max_tokens=runner.default_max_tokens,
            thinking=card is not None and card.thinking,
            load_deadline_s=runner.load_deadline_s,
            drop_idle_s=runner.drop_idle_s,
            group=self._group(give),
            test=test,
        )


def identity_of(slot: str, boot: str) -> bytes:
    """How a slot's runner names itself to our ROUTER."""
    return f"{GROUP}{slot}/{boot}".encode()


def _readable(line: str) -> str:
    """A log line's own message, where it is one of our JSON lines."""
    try:
        found: Any = json.loads(line)
    except ValueError:
        return line
    if not isinstance(found, dict):
        return line
    record = cast(dict[str, Any], found)
    error = str(record.get("error", "")).strip().splitlines()
    return ": ".join([str(record.get("message", line)), *error[-1:]])
