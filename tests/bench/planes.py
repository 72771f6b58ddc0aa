"""How long a message takes on each plane of one node: `python -m tests.bench.planes`.

Control: a command until it is acknowledged, and until a mirror has applied its event. Telemetry:
a value from one process until another hears it by the switchboard. Data: a request for one token
over HTTP, less the seconds that the runner says it took. Prints milliseconds and writes
bench-results/planes.json. Never fails for a slow figure.
"""

from __future__ import annotations

import io
import json
import os
import time
from typing import Any

import httpx

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.process.identity import new_boot, new_name
from bus.process.logs import Log
from bus.wire.codec import Envelope
from bus.wire.ids import CommandId, InstanceId, NodeId
from bus.wire.messages.commands import Acknowledged, CommandRefused, RenameNode
from bus.wire.messages.readings import TokenTap
from conf.settings import load_settings
from tests.bench.load import percentile
from tests.harness.nodes import ROOT, Node, running_node

COUNT = 300
TOPIC = "token.bench"


class Voices:
    """Two clients of a node's bus in one thread: one speaks, the other listens."""

    def __init__(self, node: Node) -> None:
        settings = load_settings(home=node.home)
        self.reactor = PollReactor()
        self.node = NodeId(node.node_id())
        log = Log(node="bench", process="bench", stream=io.StringIO())
        self.clients = [
            BusClient(
                Speaker(self.node, f"bench-{os.getpid()}-{number}", new_boot()),
                settings.endpoints,
                self.reactor,
                log,
            )
            for number in range(2)
        ]
        self.until(lambda: all(one.mirror.live for one in self.clients), 30.0)

    def until(self, done: Any, seconds: float = 15.0) -> None:
        """Turn the reactor until `done`; fail after so many seconds."""
        ends_at = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < ends_at, "not in time"
            self.reactor.turn(0.001)

    def control_ms(self) -> tuple[list[float], list[float]]:
        """From a command to its acknowledgement, and to the other client's mirror."""
        told: list[float] = []
        applied: list[float] = []
        for number in range(COUNT):
            answers: list[Acknowledged | CommandRefused] = []
            command = RenameNode(
                command_id=CommandId(new_name("bench")), node=self.node, name=f"name-{number}"
            )
            began = time.perf_counter()
            self.clients[0].command(command, answers.append)
            self.until(lambda answers=answers: answers)
            told.append(1000 * (time.perf_counter() - began))
            (answer,) = answers
            assert isinstance(answer, Acknowledged), answer
            self.until(lambda index=answer.index: self.clients[1].state.index >= index)
            applied.append(1000 * (time.perf_counter() - began))
        return told, applied

    def telemetry_ms(self) -> list[float]:
        """From a published value to the client that hears it."""
        heard: list[Envelope] = []
        self.clients[1].hear(TOPIC, lambda _, envelope: heard.append(envelope))
        value = TokenTap(
            instance=InstanceId("bench"), request_id="bench", choice=0, channel="text",
            text="a", step=0,
        )  # fmt: skip
        ends_at = time.monotonic() + 15.0
        while not heard and time.monotonic() < ends_at:  # the subscription takes a moment
            self.clients[0].publish(TOPIC, value)
            self.reactor.turn(0.05)
        taken: list[float] = []
        for _ in range(COUNT):
            self.reactor.turn(0.0)
            heard.clear()
            began = time.perf_counter()
            self.clients[0].publish(TOPIC, value)
            self.until(lambda: heard)
            taken.append(1000 * (time.perf_counter() - began))
        return taken

    def close(self) -> None:
        for one in self.clients:
            one.close()
        self.reactor.close()


def data_ms(node: Node) -> list[float]:
    """From a request over a kept connection to its whole answer, less the runner's seconds."""
    taken: list[float] = []
    with httpx.Client(base_url=node.url, timeout=30.0) as client:
        body = {
            "model": "shoal-tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
        }
        for _ in range(COUNT):
            began = time.perf_counter()
            answer = client.post("/v1/chat/completions", json=body)
            seconds = time.perf_counter() - began
            taken.append(1000 * (seconds - answer.raise_for_status().json()["timing"]["seconds"]))
    return taken


def main() -> None:
    with running_node() as node:
        node.chat("hi", max_tokens=1)
        voices = Voices(node)
        try:
            told, applied = voices.control_ms()
            telemetry = voices.telemetry_ms()
        finally:
            voices.close()
        data = data_ms(node)
    found = {
        name: {f"ms_{label}": round(percentile(values, part), 3)
               for label, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
        for name, values in (
            ("control: command acknowledged", told),
            ("control: event applied by another process", applied),
            ("telemetry: value heard by another process", telemetry),
            ("data: request and answer beyond the runner's time", data),
        )
    }  # fmt: skip
    out = ROOT / "bench-results" / "planes.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
