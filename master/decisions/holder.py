"""The work of the leader: each stimulus (a reading, a fact, a command, time) leads to events.

Pure: `log` is a draft of the next events, and the time is the argument `now`. Consequences of an
event (a new load attempt, a removal) are written directly after it. This module does not deal with
disks, votes or links. It gets stimuli only while its candidate is the leader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.messages.commands import Command, EndLease, PlaceModel, RenewLease, TakeLease
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import (
    EventBody,
    InstancePlaced,
    InstanceRemoved,
    LeaseEnded,
    LeaseGranted,
    LoadRefused,
    ModelPinned,
    RunnerEnded,
    RunnerUnloaded,
    SetbacksCounted,
    TermOpened,
)
from bus.wire.messages.readings import NodeReading, RunnerReading
from bus.wire.messages.wire import Message
from bus.wire.pool import Pin, PoolReading
from master.decisions import planner, replicating
from master.decisions.collective_tests import expire_tests
from master.decisions.crash_loop import LONGEST_PAUSE_S, CrashLoops, news_of
from master.decisions.decide import Decided, Decision, Known, Later, Policy, Scene, decide
from master.decisions.leasing import asked_back, not_wanted_back
from master.decisions.observations import Observations
from master.decisions.pool_view import claim_of, copies_of, pins_of_cards
from master.decisions.prune import SETTLE_GRACE_S, SilenceWatch, remove_deleted, remove_silent
from master.decisions.stand_ins import (
    BROKEN_S,
    Lost,
    StandIns,
    lost_copies,
    made_good,
    stood_down,
)
from master.log.sequencer import LogDraft, judge
from master.pool import PlanBook, Promise, pool_reading

Note = tuple[str, dict[str, str | int | None]]
"""A line of the process's log: its text and its fields."""
ASKED_S = 3.0
"""A waiting client repeats its request every second; after this many silent seconds it has gone."""


class Decide(Protocol):
    """The function that decides commands; `fresh` is an unused id for a new instance."""

    def __call__(self, command: Command, scene: Scene, fresh: InstanceId) -> Decision:
        """Return the events, the plan or the refusal for a command."""
        ...


class Holder:
    """The state that the leader keeps between stimuli (readings, facts, commands, or times).

    `view` collects readings and says if a new plan is due. `notes` collects log lines until they
    are taken. `new_instance` makes instance ids; `decide` is the function that decides commands.
    """

    def __init__(
        self,
        policy: Policy,
        new_instance: Callable[[], InstanceId],
        *,
        settle_grace_s: float = SETTLE_GRACE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
        decide: Decide = decide,
    ) -> None:
        self.view = Observations()
        self.notes: list[Note] = []
        self._policy = policy
        self._new_instance = new_instance
        self._decide = decide
        self._longest_pause_s = longest_pause_s
        self._memory = planner.PlannerNotes(crash_loops=CrashLoops(self._longest_pause_s))
        self._watch = SilenceWatch(settle_grace_s)
        self._stand_ins = StandIns()
        self._book = PlanBook()
        self._requests: dict[ModelId, tuple[PlaceModel | TakeLease, float]] = {}
        self._last_logged: dict[str, str] = {}

    def opened(self, log: LogDraft, now: float) -> None:
        """Begin a term: runners keep running, and unfinished changes are completed."""
        self._memory = planner.PlannerNotes(crash_loops=CrashLoops(self._longest_pause_s))
        self._stand_ins = StandIns()
        self._book, self._requests = PlanBook(), {}
        self._watch.begin(now)
        self._write(log, TermOpened(holder=log.holder, counter=log.term), now)
        planner.recall(self._memory, log.state, now, log.at_s - now)
        repairs = planner.repairs(log.state, self._memory.crash_loops, now)
        self._keep_setbacks(log, now)
        for body in repairs:
            self._write(log, body, now)

    def observe(self, message: Message, now: float) -> bool:
        """Process a reading. Return whether to plan immediately: for example, after a memory
        measurement while a model waits for memory."""
        moves = isinstance(message, NodeReading | RunnerReading) and bool(self._book.plans)
        return self.view.hear(message, now) or moves

    def take_fact(self, message: TellFact, log: LogDraft, now: float) -> bool:
        """Write a fact to the log. Return False if it comes too early and must be repeated."""
        verdict = judge(log.state, message)
        if verdict == "next":
            before = log.state
            log.add(message.fact, fact=message.fact_id)
            self._follow(log, message.fact, before, now)
        return verdict != "early"

    def take_command(
        self, command: Command, log: LogDraft, now: float, *, unsettled: Refusal | None
    ) -> Known | Refusal | None:
        """Decide on a command. Return its place in the log or a refusal; None if evictions come
        first and the client must repeat it. `unsettled`: why voters cannot be changed now."""
        wished = command.model if isinstance(command, PlaceModel | TakeLease) else None
        scene = self._scene(log.state, now, self._book.promises_beside(wished, log.state))
        is_meant = isinstance(command, PlaceModel) and not command.dry_run
        scene = replace(scene, insists=is_meant)
        decision = self._decide(command, scene, self._new_instance())
        if isinstance(command, PlaceModel):
            self._pin_placed(command, decision, log, now)
        elif isinstance(command, RenewLease) and isinstance(decision, Known):
            self._memory.leases.renewed(command.lease, command.used_bytes, now)
        elif isinstance(command, EndLease):
            self._requests.pop(ModelId(command.lease), None)  # it may still wait for memory
        self._note(
            "decided",
            command=command.kind,
            command_id=command.command_id,
            decision=type(decision).__name__.lower(),
        )
        is_lease = isinstance(command, TakeLease)
        match decision:
            case Decided() if unsettled is not None:
                return unsettled
            case Decided(events=bodies, instance=instance):
                for body in bodies[:-1]:
                    self._write(log, body, now)
                index = self._write(log, bodies[-1], now, command.command_id)
                return Known(index, instance)
            case Later(choice=choice, refusal=refusal):
                if not is_lease and any(victim.yielding.at > now for victim in choice.victims):
                    return refusal
            case Refusal(retry_after_s=again_s):
                if not is_lease or again_s is None:
                    return decision
            case Known():
                return decision
            case _:
                assert_never(decision)
        if isinstance(command, PlaceModel | TakeLease):
            # it is pursued as long as its asker asks again
            self._requests[command.model] = (command, now)
            self._memory.tenure.wished_at.setdefault(command.model, now)
        return decision if isinstance(decision, Refusal) else None

    def planned(self, log: LogDraft, now: float) -> None:
        """Do the work that is due: unload idle instances and those on silent nodes, remove those of
        deleted models, then place lost and requested instances."""
        scene = self._scene(log.state, now)
        over = expire_tests(scene.state, scene.observed, self._memory.failed_at, now)
        gone = [*remove_silent(scene, self._watch), *remove_deleted(scene, self._memory.failed_at)]
        idle = planner.drain_idle(scene, self._memory)
        back = stood_down(scene, self._stand_ins)
        wired = self._memory.bare.follow_wired(scene.state, self.view, now)
        for body in (*gone, *idle, *over, *back, *wired):
            self._note("unloads", what=body.kind, why=getattr(body, "why", ""))
            self._write(log, body, now)
        for lease, why in self._memory.leases.over(log.state, now).items():
            self._note("ended a lease", lease=lease, why=why)
            self._write(log, LeaseEnded(lease=lease, why=why), now)
        self._follow_cards(log, now)
        self._place_lost(log, now)
        self._pursue_wishes(log, now)
        scene, loads = self._scene(log.state, now), self._memory.loads
        for body in replicating.replicate(scene, loads, self._book, self._new_instance):
            why = body.instance.replica if isinstance(body, InstancePlaced) else body.why
            self._note("replicates", what=body.kind, why=why)
            self._write(log, body, now)

    def pool(self, state: ClusterState, holder: NodeId, now: float) -> PoolReading:
        """Return the models that wait for memory, the reasons, and the state of the instances."""
        copies = copies_of(self._scene(state, now))
        return pool_reading(holder, state.term, self._book, copies, self._policy.pool, now)

    def take_notes(self) -> list[Note]:
        """Return the collected log lines and clear the list."""
        notes, self.notes = self.notes, []
        return notes

    # --- inside ---

    def _scene(
        self,
        state: ClusterState,
        now: float,
        promises: tuple[Promise, ...] = (),
    ) -> Scene:
        tenure = self._memory.tenure
        for instance in state.instances.values():
            if instance.status == "ready":
                tenure.ready_at.setdefault(instance.instance, now)
        return Scene(
            state,
            self.view,
            self._policy,
            now,
            tenure=tenure,
            promises=promises,
            leases=self._memory.leases,
            barred=self._memory.crash_loops.barred(now),
        )

    def _pin_placed(
        self, command: PlaceModel, decision: Decision, log: LogDraft, now: float
    ) -> None:
        """Pin the model of a placement, if the placement requests that."""
        is_vain = isinstance(decision, Refusal) or command.dry_run or not command.pinned
        if not is_vain and command.model not in log.state.pins:
            pin = Pin(model=command.model, by="its placement", at_s=log.at_s)
            self._write(log, ModelPinned(pin=pin), now)

    def _follow_cards(self, log: LogDraft, now: float) -> None:
        """Pin the models whose `card.toml` says so, and remove pins that it no longer has."""
        for wish in pins_of_cards(self._scene(log.state, now)):
            command = wish.model_copy(update={"at_s": log.at_s})
            decision = self._decide(command, self._scene(log.state, now), self._new_instance())
            what = f"pin of {command.model}"
            match decision:
                case Decided(events=(body,)):
                    self._write(log, body, now)
                    self._say(what, body.kind, f"{body.kind}, because its card.toml says so")
                case Refusal(message=message):
                    self._say(what, message, message)
                case _:
                    pass

    def _pursue_wishes(self, log: LogDraft, now: float) -> None:
        """Place each requested model, most urgent first, or evict other instances for it. Memory
        that is reserved for one model is not available to the next."""
        before = log.state
        self._requests = {
            model: request
            for model, request in self._requests.items()
            if now - request[1] < ASKED_S
        }
        wishes = planner.wanted_commands(
            self._scene(before, now),
            self._memory,
            [request for request, _ in self._requests.values()],
        )
        wished_at = self._memory.tenure.wished_at
        self._memory.tenure.wished_at = {w.model: wished_at.get(w.model, now) for w in wishes}
        plans = self._book.plans
        self._book.begin()
        for wish in wishes:
            scene = self._scene(log.state, now, self._book.promises_beside(None, log.state))
            request = self._requests.get(wish.model)
            scene = replace(scene, insists=request is not None and request[0] == wish)
            decide = partial(self._decide, wish, fresh=self._new_instance())
            plan = plans.get(wish.model)
            decision = None if plan is None else planner.stayed(wish, scene, plan, decide)
            self._wished(wish, decision or decide(scene), scene, log)
        wished = [wish.model for wish in wishes]
        for body in (*self._book.withdrawn(before), *not_wanted_back(before, wished)):
            self._note("withdraws", what=body.kind)
            self._write(log, body, now)

    def _write(
        self, log: LogDraft, body: EventBody, now: float, command_id: CommandId | None = None
    ) -> int:
        """Write an event and its consequences; return its index."""
        before = log.state
        event = log.add(body, command_id)
        self._follow(log, body, before, now)
        return event.index

    def _follow(self, log: LogDraft, body: EventBody, before: ClusterState, now: float) -> None:
        planner.note_event(self._memory, body, before, now)
        if isinstance(body, InstanceRemoved):
            self._last_logged.pop(body.instance, None)
            self._keep_setbacks(log, now)
        if isinstance(body, InstancePlaced):
            self._book.plans.pop(body.instance.model, None)
        if isinstance(body, LeaseGranted):
            self._book.plans.pop(ModelId(body.lease.lease), None)
        if isinstance(body, RunnerEnded | LoadRefused | RunnerUnloaded):
            quiet = self.view.quiet_nodes(before.nodes, now)
            instance_before = replicating.as_it_stands(body.instance, before, quiet)
            loops, decide = self._memory.crash_loops, partial(self._decide, fresh=InstanceId(""))
            follows = planner.follow_up(instance_before, body, loops, now)
            if isinstance(body, RunnerEnded) and instance_before is not None:
                scene = self._scene(log.state, now)
                follows = [
                    made_good(instance_before, consequence, body, scene, loops, decide)
                    for consequence in follows
                ]
            self._keep_setbacks(log, now)
            for more in follows:
                self._note(
                    "the leader acts on the end of a rank",
                    what=more.kind,
                    instance=body.instance,
                    generation=body.generation,
                )
                self._write(log, more, now)

    def _keep_setbacks(self, log: LogDraft, now: float) -> None:
        """Write changed failure records for the next leader."""
        setbacks = planner.setbacks(self._memory, log.at_s - now)
        for change in news_of(setbacks, log.state.setbacks):
            self._write(log, SetbacksCounted(setbacks=change), now)

    def _place_lost(self, log: LogDraft, now: float) -> None:
        """Place the instances of lost nodes on other nodes, or log why they wait. Each placement
        changes what the next one finds free. A failure from the loss of a node does not count
        against the model."""
        self._memory.crash_loops.excuse(self.view.lost_since(now, BROKEN_S))
        self._memory.crash_loops.expire(log.state.instances.values(), now)
        planner.forget_replaced(self._memory, log.state, self.view.living_cards(now))
        self._keep_setbacks(log, now)
        for name in [lost.instance.instance for lost in lost_copies(self._scene(log.state, now))]:
            scene = self._scene(log.state, now)
            for lost in lost_copies(scene):
                if lost.instance.instance == name:
                    self._place_anew(lost, log, now)

    def _place_anew(self, lost: Lost, log: LogDraft, now: float) -> None:
        name = lost.instance.instance
        decision = self._decide(lost.command, lost.scene, self._new_instance())
        match decision:
            case Decided(events=bodies, instance=fresh) if fresh is not None:
                self._say(name, "placed", "placed again because its node is lost")
                for body in (*lost.removed, *bodies):
                    self._write(log, body, now)
                if not lost.removed:
                    self._stand_ins.of[name] = fresh
            case (Refusal() as why) | Later(refusal=why):
                self._say(name, why.reason, f"waiting for its node: {why.message}")
            case _:
                pass

    def _wished(
        self, wish: PlaceModel | TakeLease, decision: Decision, scene: Scene, log: LogDraft
    ) -> None:
        model, now = wish.model, scene.now
        match decision:
            case Decided(events=bodies):
                request = self._requests.pop(model, None)
                for body in bodies[:-1]:
                    self._write(log, body, now)
                is_asked = request is not None and request[0] == wish
                self._write(log, bodies[-1], now, wish.command_id if is_asked else None)
                self._say(model, "placed", "placed")
            case Later(claim=claim, choice=choice):
                tenure = self._memory.tenure
                unsettled = tenure.unsettled(choice.needs, self.view.measured_at, now)
                for body in self._book.pursue(claim, choice, tenure, unsettled, now):
                    self._note("eviction step", what=body.kind, why=getattr(body, "why", ""))
                    self._write(log, body, now)
                self._say(model, "waits", f"waiting for memory: {decision.refusal.message}")
            case Refusal(message=message, reason=reason, retry_after_s=again_s):
                in_vain = reason == "no_capacity" and again_s is None
                self._book.refuse(claim_of(scene, wish), message, in_vain=in_vain)
                self._say(model, message, message)
                if reason == "no_capacity":
                    decide = partial(self._decide, wish, fresh=InstanceId(""))
                    for body in asked_back(wish, scene, decide):
                        self._note("requests release of a lease", lease=body.lease, why=body.why)
                        self._write(log, body, now)
            case Known():
                return
            case _:
                assert_never(decision)

    def _say(self, what: str, key: str, text: str) -> None:
        """Log `text` about `what` (a model or an instance), unless its last `key` was the same."""
        if self._last_logged.get(what) != key:
            self._last_logged[what] = key
            self._note("placement of a requested model", what=what, outcome=text)

    def _note(self, line: str, /, **facts: str | int | None) -> None:
        self.notes.append((line, facts))
