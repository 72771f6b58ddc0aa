"""The state of each runner slot, the table of the transitions between states, and the last message
of the slot's runner.

Pure: time arrives as `now`. supervisord lists slots with a process (`listed`), runners say what
they are (`heard`, `ended`), and the worker notes its actions (`note`). A slot's `task` is the task
that its runner has or will get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bus.wire.ids import Boot
from bus.wire.messages.control import SlotEnded, SlotHello
from worker.slots import actions
from worker.slots.actions import SlotAction, Task

Life = Literal["free", "starting", "idle", "loading", "ready", "draining", "stopping", "killed"]
Deed = Literal["start", "give", "drain", "stop", "kill"]

AFTER: Mapping[Life, Mapping[Deed, Life]] = {
    "free": {"start": "starting"},
    "starting": {"stop": "stopping", "kill": "killed"},
    "idle": {"give": "loading", "stop": "stopping", "kill": "killed"},
    "loading": {"give": "loading", "drain": "draining", "stop": "stopping", "kill": "killed"},
    "ready": {"drain": "draining", "stop": "stopping", "kill": "killed"},
    "draining": {"drain": "draining", "stop": "stopping", "kill": "killed"},
    "stopping": {"kill": "killed"},
    "killed": {"kill": "killed"},
}
"""The state (life) of a slot after each action of the worker; other actions change nothing. The
runner's own reports also move a slot, for example to `idle` and `ready` (`SAID`). A slot becomes
`free` only when supervisord says that its process has ended."""

SAID: Mapping[str, Life] = {
    "idle": "idle",
    "loading": "loading",
    "warming": "loading",
    "ready": "ready",
    "draining": "draining",
    "ended": "stopping",
}
"""The state that a hello's phase implies, for a slot that was not asked to leave."""

STEADY: frozenset[Life] = frozenset({"free", "idle", "ready"})
"""States that last until the worker's next action."""

LEAVING: frozenset[Life] = frozenset({"draining", "stopping", "killed"})
"""States of a runner that is ending, whose memory will be free."""

FORWARD: Mapping[Life, int] = {life: place for place, life in enumerate(AFTER)}
"""A runner passes through its states in one direction, in the order of the keys of `AFTER`. So a
late hello with an earlier state is ignored."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot.

    `since_at` is the beginning of its present state, `heard_at` its runner's last message (or its
    start). `lost_s` and `unheard_s` are the seconds since `since_at` and since `heard_at` that do
    not count, because its runner had no core. `doom` is why the worker ended it; `last_word` is its
    own last message.
    """

    name: str
    life: Life = "free"
    pid: int = 0
    boot: Boot | None = None
    task: Task | None = None
    since_at: float = 0.0
    heard_at: float = 0.0
    hello: SlotHello | None = None
    last_word: SlotEnded | None = None
    drain_deadline_s: float | None = None
    doom: str = ""
    lost_s: float = 0.0
    unheard_s: float = 0.0

    def silent_s(self, now: float) -> float:
        """Return for how long the slot's runner has been silent. Time in which it could not report
        is left out."""
        return max(0.0, now - self.heard_at - self.unheard_s)


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of one slot in supervisord's list."""

    name: str
    alive: bool
    pid: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Gone:
    """A process that has ended: its slot as it was, and the exit code (None if unknown)."""

    slot: Slot
    exit_code: int | None


@dataclass(slots=True)
class SlotTable:
    """The slots of this node by name (`00`, `01`, ...)."""

    slots: dict[str, Slot] = field(default_factory=dict[str, Slot])

    @property
    def is_steady(self) -> bool:
        """Return whether no slot is changing (starting, stopping or killed)."""
        return all(slot.life in STEADY for slot in self.slots.values())

    def listed(self, seen: Sequence[Seen], now: float) -> list[Gone]:
        """Update the slots from supervisord's list; return the slots whose process has ended since
        the last list.

        A process with another pid means that the slot was started again. An unknown living process
        is `starting`: it must say hello.
        """
        gone: list[Gone] = []
        for process in seen:
            slot = self.slots.get(process.name, Slot(process.name))
            lost = slot.life != "free" and (
                not process.alive or (slot.pid not in (0, process.pid) and process.pid != 0)
            )
            if lost:
                gone.append(Gone(slot, process.exit_code))
                slot = Slot(process.name, since_at=now)
            if process.alive and slot.life == "free":
                slot = replace(slot, life="starting", since_at=now, heard_at=now)
            if process.alive and process.pid:
                slot = replace(slot, pid=process.pid)
            self.slots[process.name] = slot
        return gone

    def take_hello(self, hello: SlotHello, now: float) -> Gone | None:
        """Process a runner's hello. If the slot has a runner with another boot id, that older
        process must have ended. Return the older process if it had a task, otherwise None."""
        slot = self.slots.get(hello.slot, Slot(hello.slot))
        gone: Gone | None = None
        if slot.boot not in (None, hello.boot):
            gone = Gone(slot, None) if slot.task is not None else None
            slot = Slot(hello.slot)
        implied, life = SAID[hello.phase], slot.life
        told_to_go = life in ("stopping", "killed")
        if not told_to_go and (slot.boot is None or FORWARD[implied] >= FORWARD[life]):
            life = implied
        self.slots[hello.slot] = replace(
            slot,
            life=life,
            pid=hello.pid,
            boot=hello.boot,
            task=_task_of(hello) or slot.task,
            hello=hello,
            heard_at=now,
            unheard_s=0.0,
            since_at=now if life != slot.life else slot.since_at,
            lost_s=0.0 if life != slot.life else slot.lost_s,
        )
        return gone

    def ended(self, word: SlotEnded) -> None:
        """Store the message with which a runner says that it ends, until its process has ended."""
        slot = self.slots.get(word.slot)
        if slot is not None and slot.boot in (None, word.boot):
            self.slots[word.slot] = replace(slot, last_word=word)

    def note(self, action: SlotAction, now: float) -> None:
        slot = self.slots[action.slot]
        match action:
            case actions.AssignSlot(task=task):
                slot = replace(slot, task=task)
            case actions.StartSlot(task=task):
                slot = replace(_done(slot, "start", now), task=task, heard_at=now, unheard_s=0.0)
            case actions.GiveSpec():
                slot = replace(_done(slot, "give", now), heard_at=now, since_at=now)
                slot = replace(slot, lost_s=0.0, unheard_s=0.0)
            case actions.DrainSlot(deadline_s=deadline_s):
                slot = replace(_done(slot, "drain", now), drain_deadline_s=deadline_s, since_at=now)
            case actions.RefuseSlot(message=why) | actions.StopSlot(why=why):
                slot = replace(_done(slot, "stop", now), doom=why or slot.doom)
            case actions.KillSlot(why=why):
                slot = replace(_done(slot, "kill", now), doom=why or slot.doom)
        self.slots[action.slot] = slot

    def forgive(self, now: float) -> None:
        """Count no silence of any runner before `now`, because the worker itself was asleep or
        stalled."""
        for name, slot in self.slots.items():
            since_at = max(slot.since_at, now)
            self.slots[name] = replace(
                slot, heard_at=now, since_at=since_at, lost_s=0.0, unheard_s=0.0
            )

    def excuse(self, name: str, lost_s: float) -> None:
        """Do not count these seconds as silence: the slot's runner had no core, or the whole
        machine stood still."""
        slot = self.slots[name]
        lost_s, unheard_s = slot.lost_s + lost_s, slot.unheard_s + lost_s
        self.slots[name] = replace(slot, lost_s=lost_s, unheard_s=unheard_s)

    def of(self, task: Task) -> Slot | None:
        """Return the living slot whose runner has this task, or that is assigned to it."""
        return next((s for s in self.slots.values() if s.task == task and s.life != "free"), None)


def _done(slot: Slot, deed: Deed, now: float) -> Slot:
    life = AFTER[slot.life].get(deed, slot.life)
    if life == slot.life:
        return slot
    return replace(slot, life=life, since_at=now, lost_s=0.0)


def _task_of(hello: SlotHello) -> Task | None:
    if hello.instance is None:
        return None
    return Task(hello.instance, hello.generation, hello.rank)
