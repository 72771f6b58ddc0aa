"""What the worker knows of each runner slot: a life as a table, and what the runner last said.

Pure: time arrives as `now`. supervisord says which slots have a process (`listed`), runners
say what they are (`heard`, `ended`), the worker notes what it did (`note`). A slot's `task` is
what its runner is, or is meant to become.
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
"""What each deed of the worker leads to; a deed that is not listed changes nothing. A slot
becomes `free` only when supervisord says that its process is gone."""

SAID: Mapping[str, Life] = {
    "idle": "idle",
    "loading": "loading",
    "warming": "loading",
    "ready": "ready",
    "draining": "draining",
    "ended": "stopping",
}
"""What a hello's phase makes of a slot that was not told to go."""

STEADY: frozenset[Life] = frozenset({"free", "idle", "ready"})
"""Lives that last until somebody wants something."""

LEAVING: frozenset[Life] = frozenset({"draining", "stopping", "killed"})
"""Lives that end with the memory given back."""

FORWARD: Mapping[Life, int] = {life: place for place, life in enumerate(AFTER)}
"""A runner's life goes one way, that of `AFTER`: what a hello says late is not believed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot.

    `since_at` is when its present life began, `heard_at` when its runner last spoke (or the
    slot was started). `lost_s` and `unheard_s` are the time since then that does not count, for
    its runner had no core. `doom` is why the worker ended it; `last_word` what it said itself.
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
        """Return for how long its runner could have said something, and did not."""
        return max(0.0, now - self.heard_at - self.unheard_s)


@dataclass(frozen=True, slots=True)
class Seen:
    """One slot in supervisord's list."""

    name: str
    alive: bool
    pid: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Gone:
    """A slot's process is gone: what it was, and how it ended."""

    slot: Slot
    exit_code: int | None


@dataclass(slots=True)
class SlotTable:
    """All slots by name (`00`, `01`, ...)."""

    slots: dict[str, Slot] = field(default_factory=dict[str, Slot])

    @property
    def is_steady(self) -> bool:
        """Return whether no slot is on its way to another life."""
        return all(slot.life in STEADY for slot in self.slots.values())

    def listed(self, seen: Sequence[Seen], now: float) -> list[Gone]:
        """Take supervisord's list in; returns the slots whose process has gone since.

        A process of another pid than the one we know is a new life of the slot. An unknown
        living process is `starting`: it has to say what it is.
        """
        gone: list[Gone] = []
        for one in seen:
            known = self.slots.get(one.name, Slot(one.name))
            lost = known.life != "free" and (
                not one.alive or (known.pid not in (0, one.pid) and one.pid != 0)
            )
            if lost:
                gone.append(Gone(known, one.exit_code))
                known = Slot(one.name, since_at=now)
            if one.alive and known.life == "free":
                known = replace(known, life="starting", since_at=now, heard_at=now)
            if one.alive and one.pid:
                known = replace(known, pid=one.pid)
            self.slots[one.name] = known
        return gone

    def heard(self, hello: SlotHello, now: float) -> Gone | None:
        """Take a hello in. A new boot in a slot that we thought alive means that the old
        process is gone."""
        known = self.slots.get(hello.slot, Slot(hello.slot))
        gone: Gone | None = None
        if known.boot not in (None, hello.boot):
            gone = Gone(known, None) if known.task is not None else None
            known = Slot(hello.slot)
        said, life = SAID[hello.phase], known.life
        told_to_go = life in ("stopping", "killed")
        if not told_to_go and (known.boot is None or FORWARD[said] >= FORWARD[life]):
            life = said
        self.slots[hello.slot] = replace(
            known,
            life=life,
            pid=hello.pid,
            boot=hello.boot,
            task=_task_of(hello) or known.task,
            hello=hello,
            heard_at=now,
            unheard_s=0.0,
            since_at=now if life != known.life else known.since_at,
            lost_s=0.0 if life != known.life else known.lost_s,
        )
        return gone

    def ended(self, word: SlotEnded) -> None:
        """Keep a runner's last word until its process is gone."""
        known = self.slots.get(word.slot)
        if known is not None and known.boot in (None, word.boot):
            self.slots[word.slot] = replace(known, last_word=word)

    def note(self, action: SlotAction, now: float) -> None:
        """Note what the worker did to a slot."""
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
        """Forgive all silence till now: the worker itself was away (asleep, stalled)."""
        for name, slot in self.slots.items():
            since_at = max(slot.since_at, now)
            self.slots[name] = replace(
                slot, heard_at=now, since_at=since_at, lost_s=0.0, unheard_s=0.0
            )

    def excuse(self, name: str, lost_s: float) -> None:
        """Do not count so many seconds: the slot's runner had no core, or all stood still."""
        slot = self.slots[name]
        lost_s, unheard_s = slot.lost_s + lost_s, slot.unheard_s + lost_s
        self.slots[name] = replace(slot, lost_s=lost_s, unheard_s=unheard_s)

    def of(self, task: Task) -> Slot | None:
        """Return the living slot that is, or is to be, this task."""
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
