"""What the holder of the term does: a stimulus in, the events that it leads to out.

Pure: `log` is a draft of what is appended next, and instants arrive as `now`. What follows from an
event (another generation, a removal) is written right behind it. Nothing here knows of disks,
votes or links; a stimulus is given only while its candidate holds the term.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from bus.replica.state import ClusterState
from bus.wire.errors import Refusal
from bus.wire.ids import CommandId, InstanceId
from bus.wire.messages.commands import Command
from bus.wire.messages.control import TellFact
from bus.wire.messages.events import (
    EventBody,
    InstanceRemoved,
    LoadRefused,
    RunnerEnded,
    RunnerUnloaded,
    TermOpened,
)
from master.decisions import planner
from master.decisions.collective_tests import expire_tests
from master.decisions.crash_loop import LONGEST_PAUSE_S, CrashLoops
from master.decisions.decide import Decided, Decision, Known, Later, Policy, Scene, decide
from master.decisions.evict import SETTLE_S
from master.decisions.observations import Observations
from master.decisions.prune import SETTLE_GRACE_S, SilenceWatch, remove_silent
from master.decisions.stand_ins import BROKEN_S, Lost, StandIns, lost_copies, stood_down
from master.log.sequencer import LogDraft, judge

Note = tuple[str, dict[str, str | int | None]]
"""A line for the log of the process: what is said, and the facts beside it."""
Decide = Callable[[Command, Scene, InstanceId], Decision]


class Holder:
    """What the holder remembers between two stimuli. `view` hears readings, and says whether to
    plan at once. `notes` gathers lines for the log of the process until they are taken.
    `new_instance` names instances, `decide` is the rule for commands."""

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
        self._memory = self._new_notes()
        self._watch = SilenceWatch(settle_grace_s)
        self._stand_ins = StandIns()
        self._settled_at = 0.0
        self._said: dict[str, str] = {}

    def opened(self, log: LogDraft, now: float) -> None:
        """Begin a term: runners go on running; only what was left half done is taken up."""
        self._memory = self._new_notes()
        self._stand_ins = StandIns()
        self._watch.begin(now)
        self._write(log, TermOpened(holder=log.holder, counter=log.term), now)
        for body in planner.repairs(log.state):
            self._write(log, body, now)

    def told(self, told: TellFact, log: LogDraft, now: float) -> bool:
        """Take a fact. Return False where it comes too early, so that it has to be told again."""
        verdict = judge(log.state, told)
        if verdict == "next":
            before = log.state
            log.add(told.fact, fact=told.fact_id)
            self._follow(log, told.fact, before, now)
        return verdict != "early"

    def asked(
        self, command: Command, log: LogDraft, now: float, *, unsettled: Refusal | None
    ) -> Known | Refusal | None:
        """Decide about a command. Return where it is in the log, or why it is refused; None where
        others make way first, so that it has to be asked again. `unsettled` is why voters cannot
        be changed now."""
        decision = self._decide(command, self._scene(log.state, now), self._new_instance())
        self._note(
            "decided",
            command=command.kind,
            command_id=command.command_id,
            decision=type(decision).__name__.lower(),
        )
        match decision:
            case Decided() if unsettled is not None:
                return unsettled
            case Decided(events=bodies, instance=instance):
                for body in bodies[:-1]:
                    self._write(log, body, now)
                index = self._write(log, bodies[-1], now, command.command_id)
                return Known(index, instance)
            case Later(events=bodies):
                for body in bodies:
                    self._write(log, body, now)
                return None
            case Known() | Refusal():
                return decision
            case _:
                assert_never(decision)

    def planned(self, log: LogDraft, now: float) -> None:
        """Do what is due unasked: unload what idles or is silent, then place what is lost or
        wanted."""
        scene = self._scene(log.state, now)
        over = expire_tests(scene.state, scene.observed, self._memory.failed_at, now)
        silent, idle = remove_silent(scene, self._watch), planner.drain_idle(scene, self._memory)
        back = stood_down(scene, self._stand_ins)
        for body in (*silent, *idle, *over, *back):
            self._note("unloads", what=body.kind, why=getattr(body, "why", ""))
            self._write(log, body, now)
        self._place_lost(log, now)
        scene = self._scene(log.state, now)
        for wish in planner.wanted_commands(scene, self._memory):
            scene = self._scene(log.state, now)
            self._wished(wish.model, self._decide(wish, scene, self._new_instance()), log, now)

    def take_notes(self) -> list[Note]:
        """Return the lines for the log of the process, and forget them."""
        notes, self.notes = self.notes, []
        return notes

    # --- inside ---

    def _new_notes(self) -> planner.PlannerNotes:
        return planner.PlannerNotes(crash_loops=CrashLoops(self._longest_pause_s))

    def _scene(self, state: ClusterState, now: float) -> Scene:
        return Scene(state, self.view, self._policy, self._settled_at, now)

    def _write(
        self, log: LogDraft, body: EventBody, now: float, command_id: CommandId | None = None
    ) -> int:
        """Write an event and what follows from it; return its index."""
        before = log.state
        event = log.add(body, command_id)
        self._follow(log, body, before, now)
        return event.index

    def _follow(self, log: LogDraft, body: EventBody, before: ClusterState, now: float) -> None:
        planner.note_event(self._memory, body, before, now)
        if isinstance(body, InstanceRemoved):
            self._settled_at = now + SETTLE_S
            self._said.pop(body.instance, None)
        if isinstance(body, RunnerEnded | LoadRefused | RunnerUnloaded):
            known = before.instances.get(body.instance)
            for more in planner.follow_up(known, body, self._memory.crash_loops, now):
                self._note(
                    "follows from a rank's leaving",
                    what=more.kind,
                    instance=body.instance,
                    generation=body.generation,
                )
                self._write(log, more, now)

    def _place_lost(self, log: LogDraft, now: float) -> None:
        """Place anew what lost nodes held, where the others can hold it now; else say why it
        waits. What the next one finds free depends on the one before. What failed because a node
        was lost did not fail for its model's sake."""
        self._memory.crash_loops.excuse(self.view.lost_since(now, BROKEN_S))
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
                self._say(name, "placed", "is placed anew, for its node is lost")
                for body in (*lost.removed, *bodies):
                    self._write(log, body, now)
                if not lost.removed:
                    self._stand_ins.of[name] = fresh
            case (Refusal() as why) | Later(refusal=why):
                self._say(name, why.reason, f"waits for its node: {why.message}")
            case _:
                pass

    def _wished(self, model: str, decision: Decision, log: LogDraft, now: float) -> None:
        said = ""
        match decision:
            case Decided(events=bodies) | Later(events=bodies):
                for body in bodies:
                    self._write(log, body, now)
                said = "waits for room" if isinstance(decision, Later) else "is placed"
            case Refusal(message=message):
                said = message
            case Known():
                return
            case _:
                assert_never(decision)
        self._say(model, said, said)

    def _say(self, what: str, key: str, said: str) -> None:
        """Note what becomes of a model or an instance, once for each key in a row."""
        if self._said.get(what) != key:
            self._said[what] = key
            self._note("wished for", what=what, outcome=said)

    def _note(self, line: str, /, **facts: str | int | None) -> None:
        self.notes.append((line, facts))
