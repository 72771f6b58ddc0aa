"""A pool in simulated time: the real holder, and clients, gateways and runners that are simple.

A gateway gives what waits to a ready copy that takes requests, by priority, then by age. A copy
loads for as long as its model takes, answers `rows` at a time, and leaves when it is drained and
empty. What the holder sees comes late, as it does: readings each second. Only names that earlier
builds have, too, are imported: `tests/bench/pool.py` runs their rules in the same world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import (
    EventBody,
    FactId,
    GenerationOpened,
    InstanceDraining,
    InstancePlaced,
    NodeJoined,
    RunnerEnded,
    RunnerReady,
    RunnerUnloaded,
)
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    ModelDemand,
    NodeReading,
    RunnerReading,
)
from master.decisions.decide import Policy
from master.decisions.holder import Holder
from master.log.sequencer import LogDraft

STEP_S = 0.1
PLAN_S = 0.5
UNLOAD_S = 0.2
TOLD_S = 1.0
"""How old a reading may be: what began since then the holder could not know."""
AHEAD_S = 1e9
"""So far the wall's clock is ahead of the holder's."""
GB = 10**9
HOLDER = NodeId("holder")
NUMBERS = (
    "prompt_tokens", "generation_tokens", "kv_bytes", "kv_limit_bytes", "prefix_bytes",
    "prefix_hits", "prefix_hit_tokens", "preemptions", "active_bytes", "peak_bytes", "step",
)  # fmt: skip


@dataclass
class Kind:
    """A model: its size, and how long it takes to load."""

    name: ModelId
    gigabytes: float
    load_s: float


@dataclass
class Ask:
    """One request. `began_at`: a copy took it."""

    model: ModelId
    priority: int
    at: float
    work_s: float
    client: str = ""
    began_at: float | None = None
    left_s: float = 0.0


@dataclass
class Held:
    """A copy as its runner knows it."""

    instance: InstanceId
    model: ModelId
    node: NodeId
    since: float
    ready_at: float | None = None
    used_at: float = 0.0
    running: list[Ask] = field(default_factory=list[Ask])
    empty_at: float | None = None
    told: int = -1
    idle_told: bool = False


class Broken(AssertionError):
    """An invariant does not hold."""


class PoolWorld:
    """Nodes with `slots` each, models, and all that asks for them. `done` are the answered."""

    def __init__(
        self,
        kinds: Iterable[Kind],
        nodes: dict[str, tuple[float, int]],
        policy: Policy | None = None,
        *,
        rows: int = 4,
    ) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.nodes = {NodeId(name): one for name, one in nodes.items()}
        self.policy = policy or Policy()
        self.rows = rows
        self.now = 100.0
        self.state = ClusterState()
        self.waiting: list[Ask] = []
        self.done: list[Ask] = []
        self.held: dict[InstanceId, Held] = {}
        self.story: list[str] = []
        self.told: list[EventBody] = []
        self.loads: list[tuple[ModelId, float, float]] = []
        self.evictions = 0
        self.on_done: Callable[[Ask], None] = lambda _ask: None
        self.on_event: Callable[[EventBody, ClusterState], None] = lambda _body, _before: None
        self._count = 0
        self._seq: dict[str, int] = {}
        self._planned_at = 0.0
        self._demand_told: Any = None
        self.lost: dict[NodeId, float] = {}
        """Since when nodes are gone."""
        self.broken_off: list[Ask] = []
        """What ran where a runner or its node failed: its client was told so."""
        self._were_lost = False
        self.outside: dict[NodeId, float] = {}
        """Gigabytes that something other than models takes on a node."""
        self.card_files: dict[tuple[NodeId, ModelId], tuple[float, bool]] = {}
        """When a model's `card.toml` on a node was written, and whether that pins it."""
        self.chips: dict[NodeId, str] = {}
        """What nodes say that they are, by which they are faster or slower."""
        self.broken: dict[NodeId, str] = {}
        """Why no runner starts on a node, as its card says."""
        self.begin_term()
        for node in self.nodes:
            self._tell(NodeJoined(node=node, name=node), node)

    # --- what tests do --------------------------------------------------------------------

    def begin_term(self) -> None:
        """A new holder, which knows nothing but the state."""
        self.holder = Holder(self.policy, self._fresh)
        draft = self._draft()
        self.holder.opened(draft, self.now)
        self._take(draft)
        self._measure(everything=True)
        self._demand_told = None

    def ask(self, model: str, *, work_s: float = 1.0, priority: int = 10, client: str = "") -> Ask:
        """A request comes."""
        ask = Ask(ModelId(model), priority, self.now, work_s, client, left_s=work_s)
        self.waiting.append(ask)
        return ask

    def give_up(self, ask: Ask) -> None:
        """A client that waits goes away."""
        if ask in self.waiting:
            self.waiting.remove(ask)

    def command(self, command: Any) -> Any:
        """Somebody asks the holder for something; returns its answer."""
        draft = self._draft()
        answer = self.holder.take_command(command, draft, self.now, unsettled=None)
        self._take(draft)
        return answer

    def lose(self, node: NodeId) -> None:
        """A node loses its power: its runners are gone, and nothing is heard of it."""
        self.lost[node] = self.now
        self._were_lost = True
        for held in [one for one in self.held.values() if one.node == node]:
            self._end(held)

    def find(self, node: NodeId) -> None:
        """A lost node is back. Its worker tells what has ended there, and starts what is asked
        of it."""
        del self.lost[node]
        self._measure(everything=True)
        for name, one in list(self.state.instances.items()):
            if one.shards[0].node != node or name in self.held:
                continue
            if one.status == "placed":
                self.held[one.instance] = Held(one.instance, one.model, node, self.now)
            elif one.status == "ready":
                self._ended(one.instance, one.generation, node, 1, "its node was gone")
            elif one.status == "draining":
                self._unloaded(one.instance, one.generation, node)

    def crash(self, held: Held, exit_code: int = 1) -> None:
        """A runner's process ends by itself."""
        generation = self.state.instances[held.instance].generation
        self._end(held)
        self._ended(held.instance, generation, held.node, exit_code, "it crashed")

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, at most until something holds."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            if until is not None and until():
                return True
            self.step()
        return until is not None and until()

    def step(self) -> None:
        """A tenth of a second."""
        self.now += STEP_S
        self._answer()
        self._live()
        self._serve()
        moved = self._measure()
        if moved or self.now - self._planned_at >= PLAN_S - 1e-9:
            self._plan()

    def copy_of(self, model: str) -> Held | None:
        """The copy of a model that takes requests, if there is one."""
        return next((one for one in self._open() if one.model == model), None)

    # --- the cluster ----------------------------------------------------------------------

    def _open(self) -> list[Held]:
        found: list[Held] = []
        for held in self.held.values():
            instance = self.state.instances.get(held.instance)
            is_ready = instance is not None and instance.status == "ready"
            if is_ready and not getattr(instance, "yields_to", ""):
                found.append(held)
        return found

    def _answer(self) -> None:
        for held in self.held.values():
            for ask in list(held.running):
                ask.left_s -= STEP_S
                held.used_at = self.now
                if ask.left_s <= 1e-9:
                    held.running.remove(ask)
                    self.done.append(ask)
                    self.on_done(ask)

    def _live(self) -> None:
        for held in list(self.held.values()):
            instance = self.state.instances.get(held.instance)
            if instance is None:
                self._end(held)
            elif instance.status == "draining" and held.ready_at is None:
                del self.held[held.instance]  # what loads still is not waited for
                self._unloaded(held.instance, instance.generation, held.node)
            elif held.ready_at is None:
                if self.now - held.since >= self.kinds[held.model].load_s - 1e-9:
                    held.ready_at = held.used_at = self.now
                    self.loads.append((held.model, held.since, self.now))
                    self._tell(
                        RunnerReady(
                            instance=held.instance, generation=instance.generation, rank=0,
                            node=held.node, process=f"runner:{held.instance}", pid=1,
                            addresses=("ipc://x",),
                        ),
                        held.node,
                    )  # fmt: skip
            elif instance.status == "draining":
                if held.running:
                    held.empty_at = None
                    continue
                held.empty_at = held.empty_at or self.now
                if self.now - held.empty_at >= UNLOAD_S - 1e-9:
                    del self.held[held.instance]
                    self._unloaded(held.instance, instance.generation, held.node)

        for name, one in list(self.state.instances.items()):
            # a copy that had failed has no runner; its worker says so when it is told to unload it
            node = one.shards[0].node
            if one.status == "draining" and name not in self.held and node not in self.lost:
                self._unloaded(one.instance, one.generation, node)

    def _end(self, held: Held) -> None:
        self.broken_off += held.running
        del self.held[held.instance]

    def _ended(
        self, instance: InstanceId, generation: int, node: NodeId, exit_code: int, said: str
    ) -> None:
        fact = RunnerEnded(
            instance=instance, generation=generation, rank=0, node=node, exit_code=exit_code,
            message=said,
        )  # fmt: skip
        self._tell(fact, node)

    def _unloaded(self, instance: InstanceId, generation: int, node: NodeId) -> None:
        fact = RunnerUnloaded(instance=instance, generation=generation, rank=0, node=node)
        self._tell(fact, node)

    def _serve(self) -> None:
        for held in self._open():
            mine = [ask for ask in self.waiting if ask.model == held.model]
            for ask in sorted(mine, key=lambda one: (one.priority, one.at)):
                if len(held.running) >= self.rows:
                    break
                self.waiting.remove(ask)
                ask.began_at = held.used_at = self.now
                held.running.append(ask)

    def hear_cards(self) -> None:
        """Each node tells anew what lies on its disk."""
        for node in self.nodes:
            if node not in self.lost:
                self.holder.view.hear(CardReading(card=self._card(node)), self.now)

    # --- what the holder hears --------------------------------------------------------------

    def _measure(self, *, everything: bool = False) -> bool:
        """Tell what is due; whether the holder wants to plan at once."""
        second = int(self.now + 1e-6)
        moved = False
        hear = getattr(self.holder, "observe", self.holder.view.hear)
        if self._were_lost:
            hear(self._peers(), self.now)
        for number, node in enumerate(self.nodes):
            if node in self.lost:
                continue
            due = int(self.now + 0.3 * number + 1e-6) != int(
                self.now - STEP_S + 0.3 * number + 1e-6
            )
            if everything:
                self.holder.view.hear(CardReading(card=self._card(node)), self.now)
            if everything or due:
                moved |= hear(self._reading(node), self.now)
        for held in self.held.values():
            rests = not held.running and self.now - held.used_at >= 0.3 - 1e-9
            if held.ready_at is not None and (held.told != second or rests > held.idle_told):
                held.told, held.idle_told = second, rests
                moved |= hear(self._runner(held), self.now)
        demand = self._demand()
        gist = {(one.model, one.best_priority) for one in demand.models}
        told = (gist, second)
        if self._demand_told is None or gist != self._demand_told[0] or told != self._demand_told:
            self._demand_told = told
            moved |= hear(demand, self.now)
        return moved

    def _card(self, node: NodeId) -> NodeCard:
        gigabytes, slots = self.nodes[node]
        # of models without a card file nothing is told of one, as builds without them would not
        said: dict[tuple[NodeId, ModelId], dict[str, Any]] = {
            place: {"pin": pin, "card_at_s": at_s} for place, (at_s, pin) in self.card_files.items()
        }
        models = tuple(
            ModelCard(
                model=kind.name, path="/m", family="qwen3", layers=4, kv_bytes_per_token=1_000,
                weights_bytes=int(kind.gigabytes * GB), size_bytes=int(kind.gigabytes * GB),
                context_tokens=4_096, vocabulary=100, unsplit_because="it is in one piece",
                **said.get((node, kind.name), {}),
            )
            for kind in self.kinds.values()
        )  # fmt: skip
        return NodeCard(
            node=node, name=node, platform="linux", cores=2,
            memory_bytes=int(gigabytes / 0.75 * GB), backends=("mlx-cpu",), mlx_version="",
            shoal_version="", chip=self.chips.get(node, ""), slots=slots, models=models,
            announced_at_s=1.0, ttl_s=1e9,
            **({"cannot_run": self.broken[node]} if node in self.broken else {}),
        )  # fmt: skip

    def _reading(self, node: NodeId) -> NodeReading:
        total = int(self.nodes[node][0] / 0.75 * GB)
        used = sum(
            1.1 * self.kinds[h.model].gigabytes for h in self.held.values() if h.node == node
        )
        free = self.nodes[node][0] - used - self.outside.get(node, 0.0)
        return NodeReading(
            node=node, memory_total_bytes=total,
            memory_available_bytes=max(0, int(free * GB)),
            cpu_ratio=0.0, load_1m=0.0, disk_total_bytes=1, disk_free_bytes=1, measured_at_s=0.0,
        )  # fmt: skip

    def _peers(self) -> PeersReading:
        """What the holder's own switchboard says of the nodes."""
        peers = [
            PeerReading(
                node=node, name=node, status="silent" if node in self.lost else "linked",
                silent_s=self.now - self.lost.get(node, self.now),
            )
            for node in self.nodes
        ]  # fmt: skip
        return PeersReading(node=HOLDER, peers=tuple(peers))

    def _runner(self, held: Held) -> RunnerReading:
        best = min((ask.priority for ask in held.running), default=None)
        told = {"best_running_priority": best}
        more = {name: one for name, one in told.items() if name in RunnerReading.model_fields}
        return RunnerReading(
            node=held.node, process=f"runner:{held.instance}", instance=held.instance,
            model=held.model, generation=self.state.instances[held.instance].generation,
            phase="ready", running=len(held.running), waiting=0, max_running=self.rows,
            max_waiting=8, best_waiting_priority=None,
            prompt_tokens_per_s=0.0, generation_tokens_per_s=0.0, step_ms=0.0,
            last_used_ago_s=0.0 if held.running else self.now - held.used_at,
            **dict.fromkeys(NUMBERS, 0), **more,
        )  # fmt: skip

    def _demand(self) -> DemandReading:
        """Unmet demand: what waits for a model without a copy that takes it."""
        open_models = {held.model for held in self._open()}
        models: list[ModelDemand] = []
        for model in self.kinds:
            mine = [ask for ask in self.waiting if ask.model == model]
            if not mine or model in open_models:
                continue
            more: dict[str, Any] = {}
            if "classes" in ModelDemand.model_fields:
                more["classes"] = [
                    {
                        "priority": priority,
                        "waiting": sum(ask.priority == priority for ask in mine),
                        "oldest_s": self.now - min(a.at for a in mine if a.priority == priority),
                    }
                    for priority in sorted({ask.priority for ask in mine})
                ]
            best, oldest_s = min(ask.priority for ask in mine), self.now - min(a.at for a in mine)
            models.append(
                ModelDemand.model_validate(
                    {
                        "model": model,
                        "waiting": len(mine),
                        "best_priority": best,
                        "oldest_s": oldest_s,
                        **more,
                    }
                )
            )
        return DemandReading(node=next(iter(self.nodes)), process="gateway:0", models=tuple(models))

    # --- the log ----------------------------------------------------------------------------

    def _plan(self) -> None:
        self._planned_at = self.now
        for node in self.nodes:
            known = self.holder.view.cards.get(node)
            if known is None and node not in self.lost:
                self.holder.view.hear(CardReading(card=self._card(node)), self.now)
        draft = self._draft()
        self.holder.planned(draft, self.now)
        self._take(draft)

    def _draft(self) -> LogDraft:
        return LogDraft(self.state, 1, HOLDER, self.now + AHEAD_S)

    def _tell(self, fact: Any, node: NodeId) -> None:
        self._seq[node] = self._seq.get(node, 0) + 1
        fact_id = FactId(node=node, process="worker", boot=Boot("b"), seq=self._seq[node])
        draft = self._draft()
        if not self.holder.take_fact(TellFact(fact=fact, fact_id=fact_id), draft, self.now):
            raise Broken(f"a fact was not taken: {fact}")
        self._take(draft)

    def _take(self, draft: LogDraft) -> None:
        for event, after in draft.events:
            before, body = self.state, event.body
            self.story.append(f"{self.now:8.1f} {body.kind} {body.model_dump(exclude={'kind'})}")
            self.told.append(body)
            self.state = after
            if isinstance(body, InstancePlaced):
                placed = body.instance
                node = placed.shards[0].node
                if node not in self.lost:
                    self.held[placed.instance] = Held(placed.instance, placed.model, node, self.now)
            if isinstance(body, GenerationOpened) and body.instance in after.instances:
                opened = after.instances[body.instance]
                node = opened.shards[0].node
                if node not in self.lost:
                    self.held[opened.instance] = Held(opened.instance, opened.model, node, self.now)
            if isinstance(body, InstanceDraining) and body.why.startswith("evicted for"):
                self.evictions += 1
            self.on_event(body, before)

    def _fresh(self) -> InstanceId:
        self._count += 1
        return InstanceId(f"i{self._count}")


class Client:
    """Asks for one of its models after the other, the next as soon as one is answered."""

    def __init__(
        self, world: PoolWorld, models: list[str], *, work_s: float, priority: int = 10
    ) -> None:
        self.world = world
        self.models = models
        self.work_s = work_s
        self.priority = priority
        self.asks: list[Ask] = []
        self.open: Ask | None = None

    def next(self) -> None:
        """Ask, unless something is open."""
        if self.open is None or self.open in self.world.done:
            model = self.models[len(self.asks) % len(self.models)]
            self.open = self.world.ask(model, work_s=self.work_s, priority=self.priority)
            self.asks.append(self.open)


def run_clients(world: PoolWorld, clients: list[Client], seconds: float) -> None:
    """Let closed loops go on for a while."""
    end = world.now + seconds
    while world.now < end:
        for client in clients:
            client.next()
        world.step()


def chance(seed: int) -> random.Random:
    """The dice of a schedule."""
    return random.Random(seed)
