"""Talks HTTP to a gateway in this very process, and prints what its pages are made of.

The gateway is told of a cluster by the same envelopes that a switchboard would bring, and counts
requests that were never made. Of JSON pages the shape is told (keys, and what sort of value each
has), of the metrics every sample; nothing in it depends on the clock. Run by `tests.recorded
.record.pages`, with `PROMETHEUS_MULTIPROC_DIR` set.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeVar, cast

from falcon.asgi import App
from falcon.testing import ASGIConductor

from bus.process.endpoints import Endpoints
from bus.replica.state import ClusterState
from bus.wire.accelerators import HardwareReading
from bus.wire.cards import NodeCard
from bus.wire.codec import Envelope, encode
from bus.wire.ids import Boot
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.gateways import KeyUseReading
from bus.wire.messages.peers import PeersReading
from bus.wire.messages.readings import (
    CardReading,
    DemandReading,
    LinkReading,
    NodeReading,
    RunnerReading,
    WeightsReading,
)
from bus.wire.messages.requests import Usage
from bus.wire.messages.wire import Message
from gateway.access import hashed
from gateway.http.middleware import AccessControl, ErrorHandlers
from gateway.http.routes import add_routes, routed
from gateway.service import HttpService, ServiceHandle
from gateway.view.options import Options
from tests.recorded.history import N1, N2, WHOLE, folded, story
from tests.recorded.specimens import full

ASKED = (
    "/",
    "/state",
    "/queue",
    "/health",
    "/livez",
    "/readyz",
    "/v1/models",
    "/v1/models/model-0",
    "/api/tags",
    "/api/ps",
    "/api/version",
    "/ollama/api/version",
    "/instance/inst-1",
    "/instance/none",
    "/rdma-test/inst-1",
    "/store/health",
    "/store/registry",
    "/store/models/model-0",
)
TOKEN = "sk-of-the-owner"
OWNER = {"authorization": f"Bearer {TOKEN}"}
UNTIL = 13
"""So many events of the story have happened: instances are ready, nodes are draining."""
_Model = TypeVar("_Model", bound=Message)


def main() -> int:
    """Print the pages as JSON."""
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as folder:
        sys.stdout.write(json.dumps(asyncio.run(asked(Path(folder)))))
    return 0


async def asked(folder: Path) -> dict[str, Any]:
    """Start a gateway, tell it of a cluster, ask it for every page."""
    endpoints = Endpoints(str(folder))
    handle = ServiceHandle(
        Options(
            node=N1,
            node_name="box",
            endpoints=endpoints,
            metrics_folder="-",
            logs_folder=str(folder),
            version="0",
            owner_key=hashed(TOKEN),
        )
    )
    app: App[Any, Any] = App(middleware=[AccessControl(handle, routed())])
    ErrorHandlers(handle).install(app)
    add_routes(app, handle)
    handle.application = cast(Any, app)
    async with ASGIConductor(app) as client:
        tell(handle.service)
        found: dict[str, Any] = {}
        for path in ASKED:
            answer = await client.simulate_get(path, host="127.0.0.1", headers=OWNER)
            sort = answer.headers["content-type"]
            shown = shape(answer.json) if "json" in sort else None
            found[path] = {"status": answer.status_code, "type": sort, "shape": shown}
        scraped = await client.simulate_get("/metrics", host="127.0.0.1")
        found["/metrics"] = {
            "type": scraped.headers["content-type"],
            "samples": sorted(
                of_no_machine(line)
                for line in scraped.text.splitlines()
                if not line.startswith("# HELP")
            ),
        }
    return found


def of_no_machine(sample: str) -> str:
    """Return a sample, as of a machine on which no loop ever stood still."""
    return re.sub(r"^(shoal_loop_stall\S+) \S+$", r"\1 0.0", sample)


def tell(service: HttpService) -> None:
    """Have a gateway know the cluster of the story, its readings, and some requests."""
    mirror = service.cluster.bus.mirror
    mirror.state, mirror.live, mirror.holder = folded(ClusterState(), story()[:UNTIL]), True, N1
    for seq, (topic, reading) in enumerate(readings(), 1):
        envelope = Envelope(N1, "worker", Boot("b00f0001"), seq, reading)
        service.cluster.bus._receive([topic.encode(), encode(envelope)])
    service.parts.counters.tokens("model-0", 1, None)
    service.parts.counters.tokens("model-0", 4, 0.125)
    for outcome, first_s in (("ok", 0.5), ("failed", None)):
        service.parts.metrics.ended("model-0", outcome, 17, first_s, 2.5)
        service.parts.metrics.queued("model-0", 0.25)
    service.parts.counters.loaded("model-0", 3.0)
    counts = {"ngram": (3, 20, 15), "block": (2, 8, 5)}
    drafted = Usage(drafters=counts, proposals={"block": (2, 4096)})
    service.parts.counters.drafted("model-0", drafted)
    service.parts.counters.lost("model-0", "resumed")
    service.parts.counters.split("model-0", "elsewhere")
    service.parts.metrics.fault(429)
    service.parts.metrics.ignored("openai", {"other": 1})
    service.parts.metrics.exported("taken", 1)
    service.parts.metrics.spilled("tiny", "cloud:large", "answered")
    if (way := service.cluster.bus.traffic.way(N2, "data")) is not None:
        way.sent([b"entries"])
        way.received([b"hello", b"submit"])


def readings() -> list[tuple[str, Message]]:
    """List a reading of every sort that a gateway hears."""
    runner = of(RunnerReading, N1, process="runner:00", instance=WHOLE, generation=1, rank=0)
    return [
        ("card." + N1, CardReading(card=of(NodeCard, N1, cannot_run=""))),
        ("reading.node." + N1, of(NodeReading, N1)),
        ("reading.node." + N2, of(NodeReading, N2, findings=())),
        ("reading.hardware." + N1, of(HardwareReading, N1)),
        ("reading.runner." + N1, runner),
        ("reading.demand." + N1, of(DemandReading, N1, process="gateway:0")),
        ("reading.peers." + N1, of(PeersReading, N1)),
        ("reading.link." + N1, of(LinkReading, N1)),
        ("reading.weights." + N1, of(WeightsReading, N1)),
        ("reading.keys." + N1, of(KeyUseReading, N1, process="gateway:0")),
        ("reading.collective." + N1, of(CollectiveReading, N1, instance=WHOLE)),
    ]


def of(cls: type[_Model], node: str, **fields: Any) -> _Model:
    """Make a specimen of a reading of this node."""
    return full(cls).model_copy(update={"node": node, **fields})


def shape(value: Any) -> Any:
    """Tell the keys of JSON data, and of what sort each value is."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        shapes: list[Any] = []
        for inner in map(shape, value):
            if inner not in shapes:
                shapes.append(inner)
        return shapes
    return type(value).__name__


if __name__ == "__main__":
    sys.exit(main())
