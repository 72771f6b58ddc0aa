"""Talks to the operating system about ports and addresses: makes the specs and seats of runners.

A rank of a group first gets a seat: the address at which its left neighbour reaches this node, with
a port that was not used recently. When all seats are known each rank gets its `RunnerSpec`. A lead
runner is also told where the draft model of its card is ready, if that is in another runner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256

from bus.client import BusClient
from bus.models.role_plan import choose_proposer, round_trips_of
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.wire.cards import ModelCard
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankSeat, reachable
from bus.wire.messages.control import GroupSpec, ProposerPlace, RunnerSpec
from bus.wire.messages.events import RankSeated
from worker.machine.node_card import addresses
from worker.machine.ports import PortPool
from worker.machine.rank_addresses import LINK_READING_S, RankAddresses
from worker.machine.rdma import device_row
from worker.models.local_models import LocalModels
from worker.slots.actions import GiveSpec, SeatRank
from worker.slots.table import Slot


@dataclass(frozen=True, slots=True)
class RunnerDefaults:
    """The values that are the same in every `RunnerSpec` of this node."""

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
    """Return the secret with which the ranks of a group greet each other in a cluster without keys.
    It distinguishes generations (attempts to load the instance), but it does not keep other users'
    processes out."""
    return sha256(f"{instance}/{generation}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class DataPorts:
    """Where runners of this node accept connections of other nodes. `port` is the first slot's TCP
    port, `listen` is the address to bind (empty: none), `hosts` are the announced addresses, best
    first."""

    listen: str
    port: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankSeats:
    """Chooses the addresses of ranks on this `node`. `devices` returns for each peer the RDMA
    device that leads to it now."""

    node: NodeId
    data: DataPorts
    ring_ports: PortPool
    plan_ports: PortPool
    seen: RankAddresses
    devices: Callable[[], Mapping[str, str]]
    log: Log

    def choose(self, action: SeatRank, now: float) -> RankSeated:
        """Return the address of a rank: for its left neighbour on the ring and, on the lead, for
        its followers' plan connections. Raises PortTaken, CannotSeat."""
        data, task, shard, nodes = self.data, action.task, action.shard, action.nodes
        if not data.listen or not data.hosts:
            raise CannotSeat(
                "this node does not accept connections from others; set `cluster.listen`"
            )
        rdma = self._device_row(action)
        ring = self.ring_ports.fresh(data.listen)
        plans = self.plan_ports.fresh(data.listen) if task.rank == 0 else None
        ips, left = addresses(), nodes[task.rank - 1]
        if rdma and task.rank == 0:
            # JACCL's ranks all meet rank 0 here, and its neighbours by the device matrix alone.
            seen = self.seen.shared_host(nodes[1:], ips, now)
        else:
            seen = self.seen.host_for(left, ips, now)
        host = seen or data.hosts[0]
        followers = self.seen.hosts_for(nodes[1:], ips, now) or (host,)
        self.log.info("seats", rank=task.rank, host=host, left=left, seen=seen is not None)
        seat = RankSeat(
            rank=task.rank,
            node=self.node,
            first_layer=shard.first_layer,
            last_layer=shard.last_layer,
            ring=(f"{host}:{ring}",),
            plans=tuple(f"tcp://{ip}:{plans}" for ip in followers) if plans else (),
            rdma=rdma,
        )
        return RankSeated(instance=task.instance, generation=task.generation, seat=seat)

    def _device_row(self, action: SeatRank) -> tuple[str, ...]:
        """Return a rank's row of JACCL's device matrix, with "" for the rank itself; () if the
        group is a ring. Raises CannotSeat if a device is missing, because its port went down after
        the placement."""
        if action.instance.collectives != "jaccl":
            return ()
        row = device_row(action.nodes, self.node, self.devices())
        if isinstance(row, str):
            raise CannotSeat(f"no active RDMA port leads from this node to {row}")
        return row


@dataclass(frozen=True, slots=True)
class RunnerSpecs:
    """Makes the spec of each slot's runner."""

    endpoints: Endpoints
    defaults: RunnerDefaults
    data: DataPorts
    models: LocalModels
    ring_secret: RingSecret
    group_connect_s: float

    def spec(self, give: GiveSpec) -> RunnerSpec:
        """Return the spec of one rank. Raises KeyError if its model is not on this node."""
        instance, data = give.instance, self.data
        test = instance.test
        card = None if test is not None else self.models.card(instance.reads)
        local, port = self.endpoints.runner(give.slot), data.port + int(give.slot)
        abroad = (f"tcp://{data.listen}:{port}",) if data.listen else ()
        announced = (tuple(f"tcp://{host}:{port}" for host in data.hosts),) if abroad else ()
        defaults = asdict(self.defaults)
        if card is not None and card.default_max_tokens is not None:
            defaults["default_max_tokens"] = card.default_max_tokens
        return RunnerSpec(
            **asdict(give.task),
            **defaults,
            size=len(give.instance.shards),
            model=instance.model,
            path="" if card is None else card.path,
            dtype="float32" if card is None else card.dtype,
            first_layer=give.shard.first_layer,
            last_layer=give.shard.last_layer,
            context_tokens=give.instance.context_tokens,
            addresses=(local, *abroad),
            announced=((local,), *announced),
            memory_limit_bytes=give.shard.bytes_reserved,
            thinking=card is not None and card.thinking,
            makes="text" if card is None else card.makes,
            group=self._group(give.instance),
            test=test,
            kv=give.instance.kv,
            quantizes=instance.quantizes,
            metal_fast_synch=card is not None and card.metal_fast_synch,
            adapters=_adapters(card),
            tool_parser="" if card is None else card.tool_parser,
            reasoning_parser="" if card is None else card.reasoning_parser,
            special_tokens_in_messages=card is not None and card.special_tokens_in_messages,
            speculate=None if card is None else card.speculate,
            draft=None if card is None else card.draft,
            devices=give.shard.devices,
            into="" if instance.quantizes is None else str(self.models.folder),
        )

    def _group(self, instance: Instance) -> GroupSpec | None:
        if len(instance.shards) == 1:
            return None
        over_rdma = instance.collectives == "jaccl"
        return GroupSpec(
            sharding="tensor" if instance.sharding == "tensor" else "pipeline",
            backend="jaccl" if over_rdma else "ring",
            coordinator=instance.seats[0].ring[0] if over_rdma else "",
            ranks=instance.seats,
            secret=self.ring_secret(instance.instance, instance.generation),
            form_deadline_s=self.group_connect_s,
        )


class ProposerPlaces:
    """Where the draft models of this node's lead runners are ready. A runner gets the place when it
    is new, and when the place changes. `seen` has the readings of peers and links."""

    def __init__(self, client: BusClient, models: LocalModels, seen: RankAddresses) -> None:
        self._client = client
        self._models = models
        self._seen = seen
        self._sent: dict[str, tuple[Boot, ProposerPlace]] = {}

    def news(self, slots: Mapping[str, Slot], now: float) -> list[tuple[Slot, ProposerPlace]]:
        """Return the places (of draft models) to send now, by slot. They count as sent unless
        `forget` is called afterwards."""
        news: list[tuple[Slot, ProposerPlace]] = []
        for name, slot in slots.items():
            instance = self._led(slot)
            card = None if instance is None else self._models.cards.get(instance.model)
            draft = None if card is None else card.draft
            is_model = draft is not None and draft.drafter == "draft_model"
            if instance is None or draft is None or not is_model or slot.boot is None:
                self._sent.pop(name, None)
                continue
            boot, before = self._sent.get(name, (None, None))
            before = before if boot == slot.boot else None
            place = self._place(instance, draft.model, before, now)
            if place != before:
                self._sent[name] = slot.boot, place
                news.append((slot, place))
        return news

    def forget(self, slot: str) -> None:
        """Send the place again, because the runner did not get it."""
        self._sent.pop(slot, None)

    def _led(self, slot: Slot) -> Instance | None:
        """Return the instance whose lead runner is in this slot; None if there is none."""
        if slot.task is None or slot.task.rank or slot.life not in ("loading", "ready"):
            return None
        instance = self._client.state.instances.get(slot.task.instance)
        return instance if instance is not None and instance.serves else None

    def _place(
        self, instance: Instance, draft: ModelId, before: ProposerPlace | None, now: float
    ) -> ProposerPlace:
        me, seen = self._client.speaker.node, self._seen
        trips = round_trips_of(
            reading for reading, at in seen.links.values() if now - at <= LINK_READING_S
        )
        present = None if before is None else before.proposer
        others = self._client.state.instances.values()
        chosen = choose_proposer(instance, draft, others, trips, present)
        empty = ProposerPlace(
            instance=instance.instance, generation=instance.generation, model=draft
        )
        if isinstance(chosen, str):
            return empty.model_copy(update={"why": chosen})
        lead = chosen.lead
        peers = seen.peers.get(me)
        hosts = {} if peers is None else {peer.node: peer.host for peer in peers[0].peers}
        address = None if lead is None else reachable(lead, me, hosts)
        if lead is None or address is None:
            why = f"{draft} runs on a node that does not listen for other nodes"
            return empty.model_copy(update={"why": why})
        return empty.model_copy(
            update={
                "node": lead.node,
                "proposer": chosen.instance,
                "proposer_generation": chosen.generation,
                "address": address,
            }
        )


def _adapters(card: ModelCard | None) -> tuple[str, ...] | None:
    """Return the names of the adapters to load, as the model's card names them; None (all adapters)
    if it names none."""
    if card is None or "adapters" not in card.noted:
        return None
    return tuple(adapter.name for adapter in card.adapters)
