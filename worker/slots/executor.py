"""Talks to the bus, supervisord and the slots: performs the actions of `reconcile`.

If an action fails (a closed connection, a supervisord that does not answer), it is not recorded as
done. So `reconcile` requests it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from bus.client import BusClient
from bus.links.transport import Link
from bus.process.installation import installed_code, running_code
from bus.process.logs import Log
from bus.process.supervisor import ProcessRefused
from bus.wire.errors import PortTaken, Refusal, Unavailable
from bus.wire.messages.control import SlotDrain, SlotRefused
from bus.wire.messages.wire import Message
from worker.slots import actions
from worker.slots.actions import Action, SeatRank, SlotAction, Task, Tell
from worker.slots.facts import ended, refused
from worker.slots.processes import GROUP, SlotProcesses
from worker.slots.runner_specs import CannotSeat, ProposerPlaces, RankSeats, RunnerSpecs
from worker.slots.table import Slot
from worker.transfer.downloads import Downloads

Noted = SlotAction | SeatRank | Tell


@dataclass(frozen=True, slots=True)
class Executor:
    """Performs the worker's actions. `link` is the ROUTER socket to the runners in the slots."""

    client: BusClient
    link: Link
    processes: SlotProcesses
    specs: RunnerSpecs
    seats: RankSeats
    downloads: Downloads

    @property
    def log(self) -> Log:
        return self.client.log

    def send(self, peer: bytes, message: Message) -> bool:
        """Send a message to the peer with this ROUTER identity; return False if there is no such
        peer."""
        return self.link.send(peer, self.client.write(message))

    def send_places(self, places: ProposerPlaces, slots: Mapping[str, Slot], now: float) -> None:
        """Tell lead runners where their draft models are ready, if they do not know it yet."""
        for slot, place in places.news(slots, now):
            if not self._say(slot, place):
                places.forget(slot.name)

    def do(self, action: Action, slots: Mapping[str, Slot], now: float) -> Sequence[Noted]:
        """Do one action. Return what the caller must note: the action if it was done, or the fact
        that was reported if supervisord refused the action or a rank got no address (seat)."""
        try:
            return self._act(action, slots, now)
        except Unavailable as error:
            self.processes.say_once(str(error))
        except ProcessRefused as error:
            self.log.error("supervisord refused", action=type(action).__name__, error=str(error))
            if isinstance(action, actions.StartSlot) and action.task is not None:
                text = f"{GROUP}{action.slot} could not be started: {error}"
                return [self._tell(ended(action.task, self.client.speaker.node, text))]
        return [action] if isinstance(action, actions.StopSlot | actions.KillSlot) else []

    def _act(self, action: Action, slots: Mapping[str, Slot], now: float) -> Sequence[Noted]:
        match action:
            case actions.AssignSlot(task=task):
                return self._mixing(task) or [action]
            case actions.StartSlot(slot=slot, task=None):
                return self._start(action) if installed_code() == running_code() else []
            case actions.StartSlot(slot=slot, task=task):
                return self._mixing(task) or self._start(action)
            case actions.GiveSpec(slot=slot):
                return [action] if self._say(slots[slot], self.specs.spec(action)) else []
            case SeatRank():
                return [action, *self._seat(action, now)]
            case actions.DrainSlot(slot=slot, task=task, why=why):
                drain = SlotDrain(
                    instance=task.instance,
                    generation=task.generation,
                    deadline_s=action.deadline_s,
                    why=why,
                )
                if self._say(slots[slot], drain):
                    self.log.info("drains", slot=slot, instance=task.instance, why=why)
                return [action]
            case actions.RefuseSlot(slot=slot, message=message):
                self._say(slots[slot], SlotRefused(message=message))
                return [action]
            case actions.StopSlot(slot=slot, why=why):
                self.log.info("stops", slot=slot, why=why)
                self.processes.stop(slot)
                return [action]
            case actions.KillSlot(slot=slot, why=why):
                self.log.warning("kills", slot=slot, why=why)
                self.processes.kill(slot)
                return [action]
            case Tell(fact=fact):
                self.log.info("tells", fact=fact.kind)
                return [self._tell(action)]
            case actions.FetchModel(model=model, layers=layers):
                self.downloads.fetch(model, now, layers)
                return []
            case actions.CancelFetch(model=model):
                self.downloads.cancel(model)
                return []
            case _:
                assert_never(action)

    def _start(self, action: actions.StartSlot) -> list[Noted]:
        task = action.task
        what = {} if task is None else {"instance": task.instance, "rank": task.rank}
        self.log.info(
            "starts a runner" if what else "starts a spare runner", slot=action.slot, **what
        )
        return [action] if self.processes.start(action.slot) else []

    def _mixing(self, task: Task | None) -> list[Tell]:
        """If the installed code is not the code of this worker, a new runner would run another
        version. Then report to the leader that the task is refused, and return that report.
        Otherwise return an empty list."""
        if task is None or (installed := installed_code()) == running_code():
            return []
        return [self._tell(refused(task, self.client.speaker.node, _mixed(installed)))]

    def _say(self, slot: Slot, message: Message) -> bool:
        return slot.boot is not None and self.send(identity_of(slot.name, slot.boot), message)

    def _seat(self, action: SeatRank, now: float) -> list[Tell]:
        """Choose and announce the address of a rank. If this node has no suitable address, return
        the report that the rank is refused."""
        try:
            self.client.tell(self.seats.choose(action, now))
        except (PortTaken, CannotSeat) as error:
            refusal = Refusal(reason="unsupported", message=str(error))
            return [self._tell(refused(action.task, self.client.speaker.node, refusal))]
        return []

    def _tell(self, tell: Tell) -> Tell:
        self.client.tell(tell.fact)
        return tell


def _mixed(installed: str) -> Refusal:
    """Return the refusal to start a runner because the `installed` code differs from the code that
    this worker runs."""
    return Refusal(
        reason="protocol",
        message=(
            f"this node runs {running_code()}, but {installed} is installed now: a "
            "new runner would mix both; run `shoal restart` on that node"
        ),
    )


def identity_of(slot: str, boot: str) -> bytes:
    """Return the identity of a slot's runner at the worker's ROUTER."""
    return f"{GROUP}{slot}/{boot}".encode()
