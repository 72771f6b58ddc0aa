"""A small HTTP server that answers as a node does, for the command line to talk to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard, NodeCard, PartialModel
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.readings import RunnerReading
from tests.harness.http_servers import running

NODE = NodeId("n1")
COUNTS = (
    "running",
    "waiting",
    "prompt_tokens",
    "generation_tokens",
    "kv_bytes",
    "kv_limit_bytes",
    "prefix_bytes",
    "prefix_hits",
    "prefix_hit_tokens",
    "preemptions",
    "active_bytes",
    "peak_bytes",
    "step",
)
Answer = Callable[[str, str, dict[str, Any]], tuple[int, Any] | Iterable[Any]]


def card(name: str, path: Path, **more: Any) -> ModelCard:
    return ModelCard(
        model=ModelId(name),
        path=str(path),
        family="qwen3",
        layers=8,
        weights_bytes=16_000_000,
        size_bytes=8_000_000,
        kv_bytes_per_token=4096,
        context_tokens=4096,
        vocabulary=3000,
        parameters=4_000_000,
        **more,
    )


def instance(model: str, status: Any = "ready", **more: Any) -> Instance:
    rank = RankReady(rank=0, node=NODE, process="runner:00", addresses=("ipc:///x",), pid=9)
    return Instance(
        instance=InstanceId(f"inst-{model}"),
        model=ModelId(model),
        shards=(Shard(rank=0, node=NODE, first_layer=0, last_layer=8, bytes_reserved=1),),
        context_tokens=4096,
        keep_alive_s=-1.0,
        status=status,
        ready=(rank,),
        **more,
    )


def reading(one: Instance) -> RunnerReading:
    numbers: dict[str, int] = dict.fromkeys(COUNTS, 3)
    return RunnerReading(
        node=NODE,
        process="runner:00",
        instance=one.instance,
        model=one.model,
        generation=one.generation,
        phase="ready",
        max_running=32,
        max_waiting=8,
        best_waiting_priority=None,
        prompt_tokens_per_s=0.0,
        generation_tokens_per_s=42.0,
        step_ms=1.0,
        last_used_ago_s=5.0,
        found={"template": "arguments of tool calls as JSON text"},
        drafters={"ngram": (5, 40, 30)},
        **numbers,
    )


def state(
    cards: list[ModelCard],
    instances: list[Instance],
    parts: tuple[PartialModel, ...] = (),
    others: tuple[NodeCard, ...] = (),
) -> dict[str, Any]:
    """`GET /state` of a node with these models on disk and in memory, beside `others`."""
    node = NodeCard(
        node=NODE,
        name="desk",
        platform="linux",
        cores=2,
        memory_bytes=8 << 30,
        backends=("mlx-cpu",),
        mlx_version="0",
        shoal_version="0",
        slots=8,
        models=tuple(cards),
        parts=parts,
        announced_at_s=1.0,
    )
    held = ClusterState(term=1, holder=NODE, instances={str(i.instance): i for i in instances})
    return {
        "state": held.model_dump(mode="json"),
        "node": NODE,
        "holder": NODE,
        "live": True,
        "telemetry": {
            "nodes": {},
            "runners": [reading(one).model_dump(mode="json") for one in instances],
            "cards": [one.model_dump(mode="json") for one in (*others, node)],
            "demand": [],
            "peers": {},
        },
        "nodeHealth": {NODE: {"status": "ok", "code": "ok", "message": "", "remediation": ""}},
    }


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The URL of a server that gives `answer(method, path, body)`: (status, JSON), or
    events to stream as they come (a bare string is sent as it is). TOML comes as `toml`."""

    class Desk(BaseHTTPRequestHandler):
        def reply(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            sent = self.rfile.read(length)
            is_toml = self.headers.get("content-type") == "application/toml"
            body = {"toml": sent.decode()} if is_toml else json.loads(sent or b"{}")
            found = answer(self.command, self.path, body)
            if not isinstance(found, tuple):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for event in found:
                    text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
                    self.wfile.write(text.encode())
                return
            payload = json.dumps(found[1]).encode()
            self.send_response(found[0])
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PUT = do_DELETE = reply

        def log_message(self, format: str, *args: Any) -> None:
            return

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Desk)) as port:
        yield f"http://127.0.0.1:{port}"
