"""Talks to py-spy and to the processes' own samplers: answers questions about a process.

It examines supervisord's processes and the gateway's children (gunicorn's HTTP processes:
`gateway/1`, `gateway/2`, ...), one at a time. If py-spy fails or ptrace is forbidden, the process
itself sends its stacks, and the answer says why; a profile is refused with the reason. Everything
here blocks, so it runs in its own thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bus.client import Speaker
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.service import sampled_thread, stacks_content
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import BadMessage
from bus.wire.messages.control import (
    AskDiagnosis,
    AskStacks,
    Diagnosis,
    DiagnosisRefused,
    StackSample,
)
from telemetry import diagnose
from telemetry.diagnose import Capability, CaptureFailed

SAMPLE_TIMEOUT_S = 2.0
Answer = Diagnosis | DiagnosisRefused


@dataclass(frozen=True, slots=True)
class ProcessTarget:
    """A process that may be examined; `pid` is 0 if it is not running. `children`, the HTTP
    processes of a gateway, are examined with it."""

    name: str
    pid: int
    status: str
    children: tuple[int, ...] = ()


@dataclass(slots=True)
class Examiner:
    """Examines processes, one question at a time. `targets` asks supervisord for the processes on
    each call."""

    speaker: Speaker
    endpoints: Endpoints
    capability: Capability
    targets: Callable[[], Mapping[str, ProcessTarget]]
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def start(self, ask: AskDiagnosis, done: Callable[[Answer], None]) -> None:
        """Call `done` with the answer exactly once: from another thread, or at once if the answer
        needs no waiting."""
        if ask.want == "capability":
            done(self._capability())
            return
        if not self._turn.acquire(blocking=False):
            text = "another examination is running on this node; try again when it has finished"
            done(DiagnosisRefused(status=429, message=text))
            return

        def examine() -> None:
            """Examine the process in this thread and pass the answer to `done`; refuse if the
            examination raises."""
            try:
                answer = self.examine(ask)
            except Exception as error:
                # Without this the question would stay unanswered.
                text = f"the examination failed: {type(error).__name__}: {error}"
                answer = DiagnosisRefused(status=500, message=text)
            finally:
                self._turn.release()
            done(answer)

        threading.Thread(target=examine, name="examiner", daemon=True).start()

    def examine(self, ask: AskDiagnosis) -> Answer:
        """Return the stacks or the profile of a process, or why there is none. Blocks."""
        targets = self.targets()
        target = targets.get(ask.process)
        if target is None:
            names = ", ".join(sorted(targets)) or "none"
            text = f"supervisord has no process {ask.process!r}; it has {names}"
            return DiagnosisRefused(status=404, message=text)
        if target.pid == 0:
            text = f"{target.name} is not running ({target.status})"
            return DiagnosisRefused(status=409, message=text)
        return self._stacks(target) if ask.want == "stacks" else self._profile(target, ask)

    def _capability(self) -> Diagnosis:
        can = self.capability
        content = {"py_spy": can.allowed, "reason": can.reason}
        return Diagnosis(
            method="py-spy" if can.allowed else "in-process",
            note=can.reason,
            content=json.dumps(content).encode(),
        )

    def _stacks(self, target: ProcessTarget) -> Answer:
        note = self.capability.reason
        if self.capability.allowed and self.capability.program is not None:
            try:
                pids = (target.pid, *target.children)
                threads = diagnose.stacks(self.capability.program, pids)
                return stacks_answer(target, "py-spy", "", threads)
            except CaptureFailed as error:
                note = str(error)
        sampled = self._own_sample(target)
        if sampled is None:
            text = f"no stacks of {target.name}: {note}; the process itself does not answer either"
            return DiagnosisRefused(status=504, message=text)
        return stacks_answer(target, "in-process", note, sampled)

    def _profile(self, target: ProcessTarget, ask: AskDiagnosis) -> Answer:
        program = self.capability.program
        if not self.capability.allowed or program is None:
            text = f"no profiles on this node: {self.capability.reason}; stacks are still available"
            return DiagnosisRefused(status=501, message=text)
        try:
            content = diagnose.profile(
                program,
                target.pid,
                seconds=ask.seconds,
                rate_hz=ask.rate_hz,
                form=ask.format,
                children=target.children,
            )
        except diagnose.Forbidden as error:
            return DiagnosisRefused(status=501, message=str(error))
        except CaptureFailed as error:
            return DiagnosisRefused(status=500, message=f"no profile of {target.name}: {error}")
        kind = diagnose.CONTENT_TYPES[ask.format]
        return Diagnosis(method="py-spy", content_type=kind, content=content)

    def _own_sample(self, target: ProcessTarget) -> list[dict[str, Any]] | None:
        """Return the stacks of all threads that the process itself sends; None if it does not
        answer."""
        link = Link("dealer")
        try:
            link.connect(self.endpoints.stacks(target.name.replace("/", "-")))
            who = self.speaker
            link.send(encode(Envelope(who.node, who.process, who.boot, 0, AskStacks())))
            if not link.socket.poll(int(SAMPLE_TIMEOUT_S * 1000)):
                return None
            frames = link.receive()
            message = decode(frames[-1]).message if frames else None
        except BadMessage:
            return None
        finally:
            link.close()
        if not isinstance(message, StackSample):
            return None
        return [sampled_thread(target.pid, thread) for thread in message.threads]


def stacks_answer(
    target: ProcessTarget, method: str, note: str, threads: list[dict[str, Any]]
) -> Diagnosis:
    """Return the answer to a question for stacks, in the form of `bus.service.stacks_content`.
    `method` and `note` say how the stacks were taken."""
    content = stacks_content(target.name, target.pid, method, note, threads)
    return Diagnosis(method=method, note=note, content=content)
