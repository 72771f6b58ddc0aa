"""Talks to clients: if a body names a task or a provider's model instead of a model, answers by
that task or provider.

The candidates of a task are models. They are tried one after the other until one sends its first
token. Headers of the answer name this candidate and the reason why it was tried. A fault that every
candidate would cause, such as an invalid field, ends the request immediately. Nothing is sent
before a candidate begins, so that a failure can still have an HTTP status. A body that names an
ordinary model is passed on unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from falcon.asgi import Request, Response

from bus.models.tasks import NamedTask
from bus.wire.errors import BadRequest
from gateway.dialects.body import read_object
from gateway.dialects.dialect import Limits, WholeDialect
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised, of_error
from gateway.dialects.unknown_fields import HEADER
from gateway.fetching import providers
from gateway.http.callers import sharer_of
from gateway.http.middleware import READ_AHEAD, RECEIVE, one_line, read_aside, read_body, receive_of
from gateway.http.running import ATTEMPT, asked_over, refusals_recorded
from gateway.http.tasks.client import WatchedClient
from gateway.http.tasks.provided import ProviderQuestion, answer_by_provider
from gateway.http.tasks.translated import PROVIDED, UNNAMED
from gateway.records import Kind, job_run_of
from gateway.requests.tasks import Attempt, CandidateChoice, CandidateOrder, leads_on, order_of
from gateway.service import HttpService

TASK, ANSWERED_BY, WHY = "x-shoal-task", "x-shoal-answered-by", "x-shoal-why"
LEAST_S = 0.05
"""If less than this is left of the client's timeout, no further candidate is tried."""
ASKED_DIRECTLY = "requested by name"
Answer = Callable[[Request, Response], Awaitable[None]]


@dataclass(frozen=True)
class _Named:
    """A request whose model is a task or a provider's model; `fields` are the fields of its
    body."""

    service: HttpService
    kind: Kind
    dialect: WholeDialect
    req: Request
    resp: Response
    answer: Answer
    fields: dict[str, Any]
    client: WatchedClient


async def answer_as_named(
    service: HttpService,
    kind: Kind,
    dialect: WholeDialect,
    req: Request,
    resp: Response,
    answer: Answer,
) -> None:
    """Answer by the task or the provider's model that the body names. For any other model, call
    `answer` with the unchanged body. If the body names no model, use the model of the client's
    profile, if the profile has one."""
    table = service.tasks.table
    if not table and not service.clients.book.table.has_models:
        await answer(req, resp)
        return
    options = service.options
    with refusals_recorded(service, asked_over(service, kind, dialect, req, resp)):
        body = await read_body(req, options.body_limit_bytes, options.body_s, service.bodies)
    fields = await read_aside(len(body), partial(_fields, body, options.body_depth))
    if (own := own_model(service, req, fields)) is not None:
        fields["model"] = own
        service.bodies.give_back(len(body))
        body = json_bytes(fields)
        service.bodies.take(len(body))
    name = fields.get("model")
    in_background = fields.get("background") is True and job_run_of(req.scope) is None
    if not isinstance(name, str) or not table.means(name) or in_background:
        req.scope[READ_AHEAD] = body
        await answer(req, resp)
        return
    service.bodies.give_back(len(body))
    client = WatchedClient(receive_of(req))
    req.scope[RECEIVE] = client.receive
    named = _Named(service, kind, dialect, req, resp, answer, fields, client)
    try:
        await _answered(named, name)
    except BaseException:
        client.leave()
        raise
    if resp.stream is None:
        client.leave()
    else:
        # our streams are generators; falcon's type allows any reader
        resp.stream = client.to_its_end(cast(AsyncGenerator[bytes], resp.stream))


def _fields(body: bytes, depth: int) -> dict[str, Any]:
    """Return the fields of a body, or {} if the body is no JSON object; the dialect refuses such a
    body later."""
    try:
        return read_object(body, Limits(depth=depth))
    except BadRequest:
        return {}


def own_model(service: HttpService, req: Request, fields: Mapping[str, Any]) -> str | None:
    """Return the model of the client's profile if the body names no model. None if the body names
    one or the profile has none."""
    if not fields or fields.get("model"):
        return None
    client_id = fields.get("x_client_id")
    client_name = client_id if isinstance(client_id, str) else None
    client = service.clients.named(sharer_of(req, service.options, client_name))
    return service.clients.profile(client).model


async def _answered(named: _Named, name: str) -> None:
    table = named.service.tasks.table
    task = table.task_named(name)
    provided = table.provided(name)
    if task is None:
        choice = CandidateChoice(name, ASKED_DIRECTLY, provided)
        await _ask(named, choice, None, named.fields)
        _tell(named.resp, choice.candidate, choice.why)
        return
    named.resp.set_header(TASK, task)
    allow_cloud = named.service.bus.state.cloud_fallback
    is_warm = partial(_is_warm, named.service)
    order = order_of(table, task, is_warm=is_warm, allow_cloud=allow_cloud)
    await _try_in_order(named, task, table.tasks[task], order)


async def _try_in_order(named: _Named, name: str, task: NamedTask, order: CandidateOrder) -> None:
    """Try the candidates one after the other until one answers. If all fail, raise the fault of the
    last candidate; its message lists the failures of all candidates."""
    fields, failed = dict(named.fields), list[str]()
    if task.keep_alive_s is not None and "keep_alive" not in fields:
        fields.setdefault("x_stay_warm", task.keep_alive_s)
    last: HttpFault | None = None
    now = named.service.reactor.now
    since_at = now()
    for choice in order.choices:
        attempt = Attempt(name, task.budget_s)
        left = fields if last is None else _with_time_left(fields, now() - since_at)
        if left is None:
            break
        try:
            await _ask(named, choice, attempt, left)
        except Exception as error:
            fault = of_error(error)
            if fault is None or attempt.began or named.client.is_gone or not leads_on(fault):
                raise
            last = fault
            failed.append(f"{choice.candidate}: {fault.message}")
            named.resp.delete_header(HEADER)
            named.service.log.info(
                "a candidate of a task did not answer",
                task=name,
                candidate=choice.candidate,
                why=fault.code,
            )
            continue
        why = choice.why
        if last is not None:
            before = order.choices[len(failed) - 1].candidate
            why = f"{before} did not answer ({last.code})"
        _tell(named.resp, choice.candidate, why)
        return
    assert last is not None, "a task has a candidate"
    failed += [f"{name}: skipped (allowCloudFallback is false)" for name in order.left_out]
    text = f"no candidate of the task '{name}' answered: {'; '.join(failed)}"
    raise HttpFaultRaised(replace(last, message=text))


def _with_time_left(fields: dict[str, Any], passed_s: float) -> dict[str, Any] | None:
    """Return the fields of a body with the remaining time in `x_timeout_s`; None if less than
    `LEAST_S` remains. An invalid value is kept, because the parser refuses it later."""
    asked_s = fields.get("x_timeout_s")
    if not isinstance(asked_s, int | float) or isinstance(asked_s, bool) or asked_s <= 0:
        return fields
    left_s = round(asked_s - passed_s, 3)
    return {**fields, "x_timeout_s": left_s} if left_s >= LEAST_S else None


async def _ask(
    named: _Named, choice: CandidateChoice, attempt: Attempt | None, fields: dict[str, Any]
) -> None:
    """Let one candidate answer. If the candidate fails before its first token, raise its fault."""
    service, req, resp = named.service, named.req, named.resp
    req.scope[ATTEMPT] = attempt
    provided = choice.provided
    if provided is not None and named.kind != "generate":
        text = f"'{provided.name}' is a provider's model, which only generates text"
        raise HttpFaultRaised(HttpFault(400, "unsupported", text, field="model"))
    if provided is not None and providers.ASKS.get(named.dialect.name) == provided.settings.kind:
        details = asked_over(service, named.kind, named.dialect, req, resp)
        question = ProviderQuestion(provided, named.dialect, dict(fields), details)
        await answer_by_provider(service, req, resp, question, named.client)
        return
    req.scope[PROVIDED] = provided
    body = json_bytes({**fields, "model": UNNAMED if provided else choice.candidate})
    service.bodies.take(len(body))
    req.scope[READ_AHEAD] = body
    await named.answer(req, resp)


def _is_warm(service: HttpService, candidate: str) -> bool:
    try:
        return bool(service.catalog.ready(service.catalog.named(candidate)))
    except HttpFaultRaised:
        return False


def _tell(resp: Response, candidate: str, why: str) -> None:
    resp.set_header(ANSWERED_BY, one_line(candidate))
    resp.set_header(WHY, one_line(why))
