"""Talks to telemetry: gets the stack traces of silent runners. The pure class `OpenQuestions`
tracks who asked a question about a runner, and until when an answer is awaited.

A runner that finds itself stuck reports its own stacks before it leaves.

A runner's answer goes to all clients that asked the same question; after the timeout a client gets
an error. A runner is examined once per silence. The last result is kept until the runner's process
ends, and goes into the last report about it.
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
"""The status with which telemetry refuses a request while it examines another process; it can be
repeated later."""
AGAIN_S = 0.5
STACKS_S = 20.0
"""Telemetry returns stacks, or an error, within this time."""
STACKS_BYTES = 256 << 10


class OpenQuestions:
    """Questions about runners that are not answered yet: by question, the ROUTER identities of the
    askers and their deadlines."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[tuple[bytes, float]]] = {}

    def ask(self, question: str, asker: bytes, now: float) -> None:
        """Record who asked a question about a runner, so that the answer can be sent to them."""
        self.waiting.setdefault(question, []).append((asker, now + PATIENCE_S))

    def answered(self, question: str) -> list[bytes]:
        """Return the askers of this question, which is answered now, and forget them."""
        return [asker for asker, _ in self.waiting.pop(question, [])]

    def expired(self, now: float) -> list[bytes]:
        """Return the askers whose deadline has passed, and forget them."""
        late: list[bytes] = []
        for question, askers in list(self.waiting.items()):
            late += [asker for asker, deadline_at in askers if now >= deadline_at]
            self.waiting[question] = [
                waiting_asker for waiting_asker in askers if now < waiting_asker[1]
            ]
        self.waiting = {question: askers for question, askers in self.waiting.items() if askers}
        return late


@dataclass(slots=True)
class _Look:
    """A request to telemetry for the stacks of a runner. `link` is None while telemetry is busy
    with another process."""

    process: str
    until: float
    again_at: float = 0.0
    link: Link | None = field(default=None)


class SuspectStacks:
    """The stacks of silent or stuck runners, by pid, from telemetry (`Diagnosis`)."""

    def __init__(self, client: BusClient) -> None:
        self._client = client
        self._reactor = client.reactor
        self._open: dict[int, _Look] = {}
        self._stacks: dict[int, bytes] = {}

    def look(self, process: str, pid: int) -> None:
        """Request the stacks of a process from telemetry, unless they are already requested."""
        now = self._reactor.now()
        if pid and pid not in self._open:
            self._open[pid] = _Look(process, now + STACKS_S)
            self._ask(pid, self._open[pid])

    def of(self, pid: int) -> bytes:
        """Return the stacks of a suspect process, as text; empty if unknown."""
        return self._stacks.get(pid, b"")

    def keep(self, process: str, pid: int, content: bytes) -> None:
        """Store the stacks that a process reported before it left. They replace requested stacks,
        which are older."""
        look = self._open.pop(pid, None)
        if look is not None:
            self._close(look)
        self._stacks[pid] = _checked(content, process, pid)

    def forget(self, pid: int) -> bytes:
        """Remove and return the stacks of an ended process."""
        look = self._open.pop(pid, None)
        if look is not None:
            self._close(look)
            self._stacks.setdefault(
                pid, _none(look.process, pid, "the process ended before it was examined")
            )
        return self._stacks.pop(pid, b"")

    def tick(self, now: float) -> None:
        """Repeat requests that telemetry refused as busy, and end requests that have timed out."""
        for pid, look in list(self._open.items()):
            if now >= look.until:
                self._ended(pid, look, _none(look.process, pid, "telemetry did not answer in time"))
            elif look.link is None and now >= look.again_at:
                self._ask(pid, look)

    def close(self) -> None:
        """Stop waiting for telemetry's answers."""
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

    def _ended(self, pid: int, look: _Look, stacks: bytes) -> None:
        self._close(look)
        self._open.pop(pid, None)
        self._stacks[pid] = stacks
        note = json.loads(stacks)["note"]
        self._client.log.info("examined a silent runner", process=look.process, note=note)

    def _close(self, look: _Look) -> None:
        if look.link is not None:
            self._reactor.unwatch(look.link)
            look.link.close()
            look.link = None


def _checked(content: bytes, process: str, pid: int) -> bytes:
    """Return telemetry's result; if it is of another process, unreadable or too long, return a
    result that says so instead."""
    try:
        diagnosis = cast(dict[str, Any], json.loads(content))
        if diagnosis["pid"] != pid:
            return _none(process, pid, "another process replaced it before it was examined")
    except (ValueError, KeyError, TypeError) as error:
        return _none(process, pid, f"cannot read telemetry's answer: {error!r}")
    if len(content) > STACKS_BYTES:
        return _none(process, pid, f"the stack traces have {len(content)} bytes, too many to keep")
    return content


def _none(process: str, pid: int, why: str) -> bytes:
    """Return a result in the form of stack traces that says why there are none."""
    return stacks_content(process, pid, "none", why, [])
