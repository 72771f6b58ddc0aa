"""How many validated events a mirror applies each second: bytes in, state out."""

from __future__ import annotations

import json
import time

from bus.process.clock import now
from bus.replica.mirror import Mirror
from bus.replica.state import ClusterState
from bus.wire.codec import Envelope, decode, encode
from bus.wire.ids import Boot, InstanceId, NodeId
from bus.wire.messages.control import Snapshot
from bus.wire.messages.events import Event, KeepAliveSet, RunnerReady
from tests.bus.replica.test_mirror import placed

COUNT = 50_000


def frames() -> list[bytes]:
    """Events as they come from the wire, on eight instances."""
    names = [f"i{n}" for n in range(8)]
    bodies = [placed(name) for name in names]
    made: list[bytes] = []
    for index in range(1, COUNT + 1):
        name = InstanceId(names[index % 8])
        body = (
            bodies[index - 1] if index <= 8
            else KeepAliveSet(instance=name, keep_alive_s=index) if index % 2
            else RunnerReady(
                instance=name, generation=1, rank=0, node=NodeId("n"), process="runner:00",
                pid=index, addresses=("ipc:///x",),
            )
        )  # fmt: skip
        event = Event(term=1, index=index, at_s=0.0, body=body)
        made.append(encode(Envelope(NodeId("n"), "master", Boot("b"), index, event)))
    return made


def main() -> None:
    data = frames()
    rates: list[float] = []
    for _ in range(3):
        mirror = Mirror()
        mirror.heard_snapshot(Snapshot(term=1, index=0, state=ClusterState().model_dump()), now())
        began = time.perf_counter()
        for frame in data:
            event = decode(frame).message
            assert isinstance(event, Event)
            mirror.heard_event(event, 0.0)
        rates.append(COUNT / (time.perf_counter() - began))
        assert mirror.state.index == COUNT
    print(json.dumps({"validated events/s": [round(rate) for rate in rates], "target": 20_000}))


if __name__ == "__main__":
    main()
