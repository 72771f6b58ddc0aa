"""A runner that holds no model: it speaks a slot's side of `SlotTalk` and nothing else.

python -P standin_runner.py <runtime folder> <slot> [old]
`old` makes it speak a protocol that nobody else does.
"""

from __future__ import annotations

import os
import signal
import sys

from bus.client import Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.service import die_with_supervisor
from bus.wire.codec import Envelope, decode, encode
from bus.wire.ids import NodeId
from bus.wire.messages.control import (
    AskRunner,
    Phase,
    RunnerReport,
    RunnerSpec,
    SlotDrain,
    SlotEnded,
    SlotHello,
    SlotRefused,
)
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message

HELLO_S = 0.2


class StandIn:
    """One slot's process."""

    def __init__(self, folder: str, slot: str, protocol: tuple[int, int]) -> None:
        self.slot, self.protocol = slot, protocol
        self.reactor = PollReactor()
        self.speaker = Speaker(NodeId("n1"), f"runner:{slot}", new_boot())
        self.spec: RunnerSpec | None = None
        self.phase: Phase = "idle"
        self.link = Link("dealer", identity=f"runner:{slot}/{self.speaker.boot}")
        self.link.connect(Endpoints(folder).worker)
        self.reactor.watch(self.link, self.heard)
        self.reactor.every(HELLO_S, self.hello)
        self.hello()

    def say(self, message: Message) -> None:
        speaker = self.speaker
        envelope = Envelope(speaker.node, speaker.process, speaker.boot, 0, message)
        self.link.send(encode(envelope))

    def hello(self) -> None:
        spec = self.spec
        self.say(
            SlotHello(
                slot=self.slot,
                pid=os.getpid(),
                boot=self.speaker.boot,
                protocol_min=self.protocol[0],
                protocol_max=self.protocol[1],
                phase=self.phase,
                instance=spec.instance if spec else None,
                generation=spec.generation if spec else 0,
                rank=spec.rank if spec else 0,
                addresses=spec.addresses if spec else (),
            )
        )

    def heard(self, frames: list[bytes]) -> None:
        message = decode(frames[-1]).message
        match message:
            case RunnerSpec():
                self.spec = message
                self.enter("loading")
                self.reactor.later(0.2, lambda: self.enter("ready"))
            case SlotDrain():
                self.enter("draining")
                self.reactor.later(0.2, lambda: self.leave(0, message.why))
            case SlotRefused():
                self.leave(74, message.message)
            case AskRunner():
                self.say(
                    RunnerReport(
                        slot=self.slot,
                        pid=os.getpid(),
                        instance=message.instance,
                        generation=self.spec.generation if self.spec else 0,
                        phase=self.phase,
                    )
                )
            case _:
                raise AssertionError(f"a slot hears {type(message).__name__}")

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.hello()

    def leave(self, exit_code: int, why: str) -> None:
        spec = self.spec
        self.say(
            SlotEnded(
                slot=self.slot,
                boot=self.speaker.boot,
                instance=spec.instance if spec else None,
                generation=spec.generation if spec else 0,
                rank=0,
                exit_code=exit_code,
                message=why,
            )
        )
        self.reactor.later(0.1, lambda: os._exit(exit_code))


def main() -> None:
    folder, slot, *old = sys.argv[1:]
    runner = StandIn(folder, slot, (90, 99) if old else (PROTOCOL_MIN, PROTOCOL_MAX))
    die_with_supervisor(lambda: os._exit(75))
    signal.signal(signal.SIGTERM, lambda _n, _f: os._exit(0))
    print("a stand-in speaks", flush=True)
    runner.reactor.run()


if __name__ == "__main__":
    main()
