"""Talks to telemetry through the bus: answers with stacks and profiles of a process.

To examine a process of another node, this module calls that node's gateway. A node examines one
process at a time. The HTTP status of a refusal is the same, whichever node refuses.
"""

from __future__ import annotations

import json
from typing import Any, Literal, cast

from falcon.asgi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bus.calls import table
from bus.wire.calls.nodes import Examine, Examined
from bus.wire.errors import BadRequest, first_problem
from bus.wire.messages.control import AskDiagnosis
from gateway.cluster import Cluster
from gateway.dialects.body import bad_field
from gateway.http.diagnostics.node import Diagnosing, diagnosis_of
from gateway.http.diagnostics.peers import ask_node, node_named
from gateway.http.middleware import read_body

MAX_BODY_BYTES = 64 << 10
THERE_AND_BACK_S = 5.0
"""Extra time for a call to another node."""


class ProfileOrder(BaseModel):
    """The body of a profile; all fields are optional."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(default=2.0, ge=0.1, le=30.0)
    rate_hz: int = Field(default=100, ge=1, le=1000)
    format: Literal["speedscope", "flamegraph"] = "speedscope"


class ProcessStacks(Diagnosing):
    """`GET /v1/diagnostics/node/processes/{name}/stacks[?format=text]`; for another node
    `GET /v1/diagnostics/cluster/{node}/processes/{name}/stacks`."""

    async def on_get(
        self, req: Request, resp: Response, name: str, part: str = "", node: str = ""
    ) -> None:
        """Answer with the stack of each thread of the process, without local variables."""
        form = req.get_param("format", default="json")
        if form not in ("json", "text"):
            raise bad_field("format", f"unknown format {form!r}; use json or text")
        question = AskDiagnosis(want="stacks", process=_named(name, part))
        diagnosis = await _examined(self.cluster, req, node, question, self.timing.stacks_s)
        if form == "text":
            resp.content_type = "text/plain; charset=utf-8"
            resp.text = stacks_text(json.loads(diagnosis.content))
        else:
            resp.content_type = diagnosis.content_type
            resp.data = diagnosis.content


class ProcessProfile(Diagnosing):
    """`POST /v1/diagnostics/node/processes/{name}/profile`; for another node
    `POST /v1/diagnostics/cluster/{node}/processes/{name}/profile`."""

    async def on_post(
        self, req: Request, resp: Response, name: str, part: str = "", node: str = ""
    ) -> None:
        """Sample the process; answer with speedscope JSON or a flame graph (SVG)."""
        body = await read_body(req, MAX_BODY_BYTES, self.cluster.options.body_s)
        try:
            order = ProfileOrder.model_validate_json(body or b"{}")
        except ValidationError as error:
            problem = first_problem(error)
            raise BadRequest(problem, field=problem.partition(":")[0]) from error
        question = AskDiagnosis(want="profile", process=_named(name, part), **order.model_dump())
        deadline_s = order.seconds + self.timing.profile_slack_s
        diagnosis = await _examined(self.cluster, req, node, question, deadline_s)
        resp.content_type = diagnosis.content_type
        resp.data = diagnosis.content


def answer_examined(cluster: Cluster) -> None:
    """Let the gateways of all nodes examine this node's processes."""

    async def examine(call: Examine) -> Examined:
        diagnosis = await diagnosis_of(cluster, call.question, call.within_s)
        return Examined(content_type=diagnosis.content_type, content=diagnosis.content)

    cluster.calls.answer(table.EXAMINE, examine)


async def _examined(
    cluster: Cluster, req: Request, name: str, question: AskDiagnosis, deadline_s: float
) -> Examined:
    """Return the diagnosis of a process of the node `name` ("": this node). Raises
    HttpFaultRaised."""
    examine = Examine(question=question, within_s=deadline_s)
    within_s = deadline_s + THERE_AND_BACK_S
    return await ask_node(cluster, req, node_named(cluster, name), table.EXAMINE, examine, within_s)


def stacks_text(stacks: dict[str, Any]) -> str:
    """Return stacks as text for people: outermost call first."""
    how = stacks["method"] + (f" ({stacks['note']})" if stacks["note"] else "")
    lines = [f"{stacks['process']} pid {stacks['pid']}, by {how}"]
    for thread in cast(list[dict[str, Any]], stacks["threads"]):
        marks = [m for m, on in (("active", thread["active"]), ("GIL", thread["owns_gil"])) if on]
        mark = f" [{', '.join(marks)}]" if marks else ""
        name = thread["name"] or "unnamed"
        lines += ["", f"thread {name} of pid {thread['pid']} ({thread['thread_id']}){mark}"]
        frames = cast(list[dict[str, Any]], thread["frames"])
        lines += [f"  {f['name']} ({f['filename']}:{f['line']})" for f in reversed(frames)]
    return "\n".join(lines) + "\n"


def _named(name: str, part: str) -> str:
    return f"{name}/{part}" if part else name
