"""Talks to telemetry: stacks of runners that fell silent; and who asked what of a runner through
its worker, and until when, which is pure.

A runner that finds itself stuck tells its own stacks before it leaves.

A runner's answer goes to everybody who asked the same; who is not answered in time is told so. A
runner that falls silent is looked into each time, once: what was seen last is kept until its
process is gone, and goes with the last account of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from bus.client import BusClient
from bus.links.transport import Link
from bus.service import stacks_content
from bus.wire.codec import decode
from bus.wire.errors import BadMessage
from bus.wire.messages.control import AskDiagnosis, Diagnosis, DiagnosisRefused

PATIENCE_S = 3.0
BUSY = 429
"""Telemetry looks into another process, and is to be asked again."""
AGAIN_S = 0.5
STACKS_S = 20.0
"""Telemetry brings stacks within this, or why there are none."""
STACKS_BYTES = 256 << 10


class OpenQuestions:
    """Askers (as the ROUTER names them) by what they asked, with their deadlines."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[tuple[bytes, float]]] = {}

    def ask(self, question: str, asker: bytes, now: float) -> None:
        """Note that an asker waits for the answer to this question."""
        self.waiting.setdefault(question, []).append((asker, now + PATIENCE_S))

    def answered(self, question: str) -> list[bytes]:
        """Return the askers of this question; they wait no longer."""
        return [asker for asker, _ in self.waiting.pop(question, [])]

    def expired(self, now: float) -> list[bytes]:
        """Return the askers whose patience is over; they wait no longer."""
        late: list[bytes] = []
        for question, askers in list(self.waiting.items()):
            late += [asker for asker, deadline_at in askers if now >= deadline_at]
            self.waiting[question] = [one for one in askers if now < one[1]]
        self.waiting = {question: askers for question, askers in self.waiting.items() if askers}
        return late


@dataclass(slots=True)
class _Look:
    """A look at a process that telemetry was asked for; `link` is None while it is busy."""

    process: str
    until: float
    again_at: float = 0.0
    link: Link | None = field(default=None)


class SuspectStacks:
    """The stacks of runners that fell silent or were stuck, by pid, as telemetry tells them
    (`Diagnosis`)."""

    def __init__(self, client: BusClient) -> None:
        self._client = client
        self._reactor = client.reactor
        self._open: dict[int, _Look] = {}
        self._found: dict[int, bytes] = {}

    def look(self, process: str, pid: int) -> None:
        """Have the stacks of a process found, unless that is under way."""
        now = self._reactor.now()
        if pid and pid not in self._open:
            self._open[pid] = _Look(process, now + STACKS_S)
            self._ask(pid, self._open[pid])

    def of(self, pid: int) -> bytes:
        """Return the stacks of a process that was suspect; empty where none are known."""
        return self._found.get(pid, b"")

    def told(self, process: str, pid: int, content: bytes) -> None:
        """Keep the stacks that a process told of itself before it leaves; they are newer than any
        that are still looked for."""
        look = self._open.pop(pid, None)
        if look is not None:
            self._close(look)
        self._found[pid] = _checked(content, process, pid)

    def forget(self, pid: int) -> bytes:
        """Return what is known of a process that is gone, and forget it."""
        look = self._open.pop(pid, None)
        if look is not None:
            self._close(look)
            self._found.setdefault(pid, _none(look.process, pid, "it was gone before it was seen"))
        return self._found.pop(pid, b"")

    def tick(self, now: float) -> None:
        """Ask again where telemetry was busy; give up where it has said nothing for long."""
        for pid, look in list(self._open.items()):
            if now >= look.until:
                self._ended(pid, look, _none(look.process, pid, "telemetry did not answer in time"))
            elif look.link is None and now >= look.again_at:
                self._ask(pid, look)

    def close(self) -> None:
        """Wait for no answer any more."""
        for look in self._open.values():
            self._close(look)
        self._open.clear()

    def _ask(self, pid: int, look: _Look) -> None:
        look.link = link = Link("dealer")
        link.connect(self._client.endpoints.telemetry)
        self._reactor.watch(link, lambda frames: self._answered(pid, look, frames))
        link.send(self._client.write(AskDiagnosis(want="stacks", process=look.process)))

    def _answered(self, pid: int, look: _Look, frames: list[bytes]) -> None:
        try:
            answer: object = decode(frames[-1]).message
        except BadMessage as error:
            answer = error
        if isinstance(answer, DiagnosisRefused) and answer.status == BUSY:
            self._close(look)
            look.again_at = self._reactor.now() + AGAIN_S
        elif isinstance(answer, Diagnosis):
            self._ended(pid, look, _checked(answer.content, look.process, pid))
        else:
            why = answer.message if isinstance(answer, DiagnosisRefused) else str(answer)
            self._ended(pid, look, _none(look.process, pid, why))

    def _ended(self, pid: int, look: _Look, found: bytes) -> None:
        self._close(look)
        self._open.pop(pid, None)
        self._found[pid] = found
        note = json.loads(found)["note"]
        self._client.log.info("looked into a silent runner", process=look.process, note=note)

    def _close(self, look: _Look) -> None:
        if look.link is not None:
            self._reactor.unwatch(look.link)
            look.link.close()
            look.link = None


def _checked(content: bytes, process: str, pid: int) -> bytes:
    """Return what telemetry found, where it is of this very process and not too long."""
    try:
        found = cast(dict[str, Any], json.loads(content))
        if found["pid"] != pid:
            return _none(process, pid, "another process had its place before it was seen")
    except (ValueError, KeyError, TypeError) as error:
        return _none(process, pid, f"telemetry was not understood: {error!r}")
    if len(content) > STACKS_BYTES:
        return _none(process, pid, f"its stacks have {len(content)} bytes, too many to be kept")
    return content


def _none(process: str, pid: int, why: str) -> bytes:
    """Return, in the form of stacks, that there are none, and why."""
    return stacks_content(process, pid, "none", why, [])
