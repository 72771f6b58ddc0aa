"""Talks to the gateways of all nodes: collects a capture (diagnostic files) of each node in one
archive.

Each node makes its own capture and stores it on its disk. The node that answers the client polls
the other nodes until their captures are ready. The archive always has a manifest, which names the
nodes that were unreachable, refused, or were too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from falcon.asgi import Request, Response
from pydantic import Field

from bus.calls import CallFailed, table
from bus.process.clock import wall
from bus.process.identity import new_name
from bus.process.logs import story_of
from bus.wire.calls.jobs import Noted
from bus.wire.calls.nodes import Capture, ForgetCapture, TakeCapture
from bus.wire.errors import BadMessage, ShoalError
from bus.wire.ids import NodeId
from gateway.cluster import Cluster
from gateway.control.captures import (
    Captured,
    KeptCaptures,
    NodeCapture,
    NotReached,
    archive_of,
    capture_of,
    packed_capture,
    remover_of,
)
from gateway.dialects.body import Closed
from gateway.exchange import Parts
from gateway.http.callers import key_behind
from gateway.http.diagnostics.cluster import answer_node
from gateway.http.diagnostics.gathering import CaptureTiming, gathered
from gateway.http.diagnostics.peers import chosen, names_of, node_named
from gateway.http.diagnostics.processes import answer_examined
from gateway.http.diagnostics.restart import answer_restarts
from gateway.http.diagnostics.runners import answer_cancels
from gateway.http.diagnostics.timeline import answer_runners
from gateway.http.middleware import Resource, tell_missing

TIMING = CaptureTiming()
FORMAT = 1
LOOK_S = 0.5
SLACK_S = 20.0
"""Extra time to pack and send a node's capture."""
SILENCES = 3
"""A node that does not answer this many polls in a row counts as unreachable."""


class CaptureBody(Closed):
    """`POST /v1/diagnostics/capture`; `nodes` are ids or names; empty: all nodes."""

    nodes: list[str] = Field(default=[], max_length=1024)


class ClusterCapture(Resource):
    """`POST /v1/diagnostics/capture`."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Answer with a tar.gz: a folder for each reached node, and `manifest.json`."""
        body = await self.read(req, CaptureBody)
        names = names_of(self.cluster)
        await _answer(self.parts, req, resp, names, chosen(names, body.nodes, "nodes"))


class CaptureOfNode(Resource):
    """`POST /v1/diagnostics/node/capture`; for another node
    `POST /v1/diagnostics/cluster/{node}/capture`."""

    async def on_post(self, req: Request, resp: Response, node: str = "") -> None:
        """Answer with the capture of one node, as a tar.gz with one folder and `manifest.json`. 404
        for an unknown node."""
        where = node_named(self.cluster, node)
        await _answer(self.parts, req, resp, names_of(self.cluster), [where])


async def _answer(
    parts: Parts,
    req: Request,
    resp: Response,
    names: Mapping[NodeId, str],
    nodes: Sequence[NodeId],
) -> None:
    within_s, cluster = TIMING.whole_s + SLACK_S, parts.cluster
    capture = new_name("capture")
    key = key_behind(req)
    captured = await asyncio.gather(
        *(_captured(cluster, key, node, names[node], capture, within_s) for node in nodes)
    )
    at_s = wall()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at_s))
    head = {
        "format": FORMAT,
        "made_at": stamp,
        "asked_node": cluster.options.node,
        "shoal": cluster.options.version,
    }
    resp.data = await asyncio.to_thread(_archive, parts, captured, head, at_s)
    resp.content_type = "application/gzip"
    resp.set_header("content-disposition", f'attachment; filename="shoal-capture-{stamp}.tar.gz"')
    missing = [node for node in captured if isinstance(node, NotReached)]
    tell_missing(resp, [f"{node.name} ({node.why})" for node in missing])


def answer_others(parts: Parts) -> None:
    """Let the gateways of all nodes, including our own, diagnose, capture and restart this
    node."""
    answering = (answer_node, answer_runners, answer_examined, answer_cancels, answer_restarts)
    cluster = parts.cluster
    for register in answering:
        register(cluster)
    captures = KeptCaptures(Path(cluster.options.endpoints.folder) / "captures")
    under_way: set[asyncio.Task[None]] = set()

    async def make(name: str) -> None:
        """Capture this node and store the capture."""
        try:
            capture = await gathered(parts, TIMING)
            await asyncio.to_thread(lambda: captures.write(name, packed_capture(capture)))
        except Exception as error:
            # The asking node only sees its own timeout; the reason is in this log.
            cluster.log.error("a capture failed", error=story_of(error))

    async def take(call: TakeCapture) -> Capture:
        """On the first call with a name, start a capture. Return the capture, or no bytes while it
        is not ready."""
        name = call.name
        if await asyncio.to_thread(captures.claimed, name):
            task = asyncio.ensure_future(make(name))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        return Capture(content=await asyncio.to_thread(captures.read, name) or b"")

    async def forget(call: ForgetCapture) -> Noted:
        """Delete the stored capture of this name, because it has been fetched."""
        await asyncio.to_thread(captures.forget, call.name)
        return Noted()

    cluster.calls.answer(table.TAKE_CAPTURE, take)
    cluster.calls.answer(table.FORGET_CAPTURE, forget)


async def _captured(
    cluster: Cluster, key: str, node: NodeId, name: str, capture: str, within_s: float
) -> Captured:
    """Return the capture of a node, or the reason why the node has none."""
    take = TakeCapture(name=capture)
    until = cluster.reactor.now() + within_s
    silences = 0
    while cluster.reactor.now() < until:
        try:
            reply = await cluster.calls.ask(node, table.TAKE_CAPTURE, take, key=key)
        except CallFailed as error:
            silences += 1
            if error.why != "silent" or silences >= SILENCES:
                return NotReached(node, name, error.why, str(error))
            continue
        except (ShoalError, OSError) as error:
            return NotReached(node, name, "refused", f"node {name}: {error}")
        silences = 0
        if reply.content:
            return await _read(cluster, key, node, name, capture, reply.content)
        await asyncio.sleep(LOOK_S)
    return NotReached(node, name, "silent", f"node {name} did not finish within {within_s:g} s")


async def _read(
    cluster: Cluster, key: str, node: NodeId, name: str, capture: str, packed: bytes
) -> Captured:
    with contextlib.suppress(ShoalError):
        forget = ForgetCapture(name=capture)
        await cluster.calls.ask(node, table.FORGET_CAPTURE, forget, key=key)
    try:
        read = await asyncio.to_thread(capture_of, packed)
    except BadMessage as error:
        return NotReached(node, name, "refused", f"node {name} sent {error}")
    return NodeCapture(node, name, read.files, read.missing, read.stopped)


def _archive(
    parts: Parts, captured: Sequence[Captured], head: dict[str, Any], at_s: float
) -> bytes:
    """Return the archive; this node's secrets are removed from all nodes' files."""
    remover = remover_of(parts.options.secret_files, parts.tasks.variables())
    for node in captured:
        if isinstance(node, NodeCapture):
            node.files = {name: remover.cleaned(content) for name, content in node.files.items()}
    return archive_of(captured, head, at_s)
