"""Talks to the other stages: answers a request that names a task or a provider's model, or no
model at all.

The candidates of a task are models. They are tried one after the other until one sends its first
token. Headers of the answer name this candidate and the reason why it was tried. A fault that every
candidate would cause, such as an invalid field, ends the request immediately. The body is parsed
once; each candidate gets a copy with its own name and its own request ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import orjson

from bus.models.tasks import SpillOver
from bus.wire.cards import model_named
from bus.wire.errors import BadRequest
from bus.wire.shares import Sharer
from gateway.access import AskingClients
from gateway.dialects.body import read_object
from gateway.dialects.dialect import Limits, Parsed, ToKeep
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.dialects.unknown_fields import HEADER
from gateway.exchange.errors import fault_of
from gateway.exchange.features.forwarding import passed_on
from gateway.exchange.flow import Attempts, Flow, TaskTry
from gateway.exchange.headers import one_line
from gateway.exchange.parts import Parts
from gateway.exchange.reading import context_of, parsed_body, read_aside
from gateway.exchange.spilling import answer_elsewhere
from gateway.fetching import providers
from gateway.requests.tasks import Attempt, CandidateChoice, CandidateOrder, leads_on, order_of

TASK, ANSWERED_BY, WHY = "x-shoal-task", "x-shoal-answered-by", "x-shoal-why"
LEAST_S = 0.05
"""If less than this many seconds are left of the client's timeout, no further candidate is
tried."""
ASKED_DIRECTLY = "requested by name"
UNNAMED = "a-task"
"""Replaces the model's name in a body that is parsed once for all candidates."""


async def resolve(parts: Parts, flow: Flow) -> Flow:
    """If the body names a task or a provider's model, find the candidates. If it names no model,
    use the model of the client's profile."""
    body, table = flow.body, parts.tasks.table
    fields = await read_aside(len(body), partial(_fields, body, parts.options.body_depth))
    if (own := own_model(parts.clients, flow.head.sharer, fields)) is not None:
        fields["model"] = own
        body = json_bytes(fields)
        parts.bodies.take(len(body))
        parts.bodies.give_back(len(flow.body))
    flow = replace(flow, body=body)
    name = fields.get("model")
    in_background = fields.get("background") is True and flow.head.run is None
    if not isinstance(name, str) or in_background:
        return flow
    task = table.task_named(name)
    if not table.means(name):
        spill = await _spill_of(parts, flow, name)
        if spill is None:
            return flow
        order = CandidateOrder((CandidateChoice(name, ASKED_DIRECTLY),), spill=spill)
    elif task is None:
        choice = CandidateChoice(name, ASKED_DIRECTLY, table.provided(name))
        order = CandidateOrder((choice,))
    else:
        flow.http.reply.set_header(TASK, task)
        keep_alive_s = table.tasks[task].keep_alive_s
        if keep_alive_s is not None and "keep_alive" not in fields:
            fields.setdefault("x_stay_warm", keep_alive_s)
        is_warm = partial(_is_warm, parts)
        allow_cloud = parts.cluster.bus.state.cloud_fallback
        order = order_of(table, task, is_warm=is_warm, allow_cloud=allow_cloud)
    parts.bodies.give_back(len(body))
    return replace(flow, body=b"", fields=fields, task=task or "", order=order)


def own_model(clients: AskingClients, sharer: Sharer, fields: Mapping[str, Any]) -> str | None:
    """Return the model of the client's profile, for a body that names no model. None if the body
    names a model or the profile has none. `sharer` is the client without its client id."""
    if not fields or fields.get("model"):
        return None
    client_id = fields.get("x_client_id")
    key, _, *place = sharer
    client = clients.named((key, client_id if isinstance(client_id, str) else "", *place))
    return clients.profile(client).model


async def try_in_order(parts: Parts, attempts: Attempts) -> None:
    """Try the candidates one after the other until one answers. If all fail, raise the fault of the
    last candidate; its message lists the failures of all candidates."""
    base, failed, last = attempts.flow, list[str](), None
    order, reply = base.order, base.http.reply
    assert order is not None
    budget_s = parts.tasks.table.tasks[base.task].budget_s if base.task else None
    since_at = parts.reactor.now()
    for number, choice in enumerate(order.choices):
        left_s = _left_s(base.fields, parts.reactor.now() - since_at) if number else None
        if left_s is not None and left_s < LEAST_S:
            break
        attempt = Attempt(base.task, budget_s) if base.task else None
        trial = _trial_of(choice, base, attempt, left_s)
        before = attempts.flow
        flow = replace(
            base,
            trial=trial,
            provided=choice.provided,
            of_task=before.of_task,
            is_admitted=before.is_admitted,
            spill=_spill_from(order, choice, before),
        )
        try:
            _check_kind(choice, base)
            spilled = await _tried(parts, attempts, flow, since_at)
        except Exception as error:
            fault = fault_of(error)
            began = attempt is None or attempt.began
            if fault is None or began or base.http.watch.is_gone or not leads_on(fault):
                raise
            last = fault
            failed.append(f"{choice.candidate}: {fault.message}")
            reply.delete_header(HEADER)
            parts.log.info(
                "a candidate of a task did not answer",
                task=base.task,
                candidate=choice.candidate,
                why=fault.code,
            )
            continue
        by, why = choice.candidate, choice.why
        if spilled and order.spill is not None:
            by, why = order.spill.to.name, spilled
        elif last is not None:
            why = f"{order.choices[number - 1].candidate} did not answer ({last.code})"
        reply.set_header(ANSWERED_BY, one_line(by))
        reply.set_header(WHY, one_line(why))
        return
    assert last is not None, "the task has no candidate"
    failed += [f"{name}: skipped (allowCloudFallback is false)" for name in order.left_out]
    text = f"no candidate of the task '{base.task}' answered: {'; '.join(failed)}"
    raise HttpFaultRaised(replace(last, message=text))


async def make_out(parts: Parts, flow: Flow) -> Flow:
    """Prepare the request for the candidate whose turn it is. The body is parsed for the first
    candidate only; each further candidate gets a copy with its own name and request ids."""
    trial, whole = flow.trial, flow.of_task
    assert trial is not None
    if trial.forwards:
        return passed_on(parts, flow, trial)
    if whole is None:
        body = json_bytes({**flow.fields, "model": UNNAMED})
        parts.bodies.take(len(body))
        try:
            whole = await parsed_body(parts, flow, body)
        finally:
            parts.bodies.give_back(len(body))
    elif not trial.is_spilled:  # a request that spilled over is at no runner, and keeps its ids
        ids = iter(context_of(parts, flow).ids)
        whole = _with_new_ids(whole, {request.request_id: next(ids) for request in whole.requests})
    return replace(flow, of_task=whole, parsed=_named(whole, trial))


def _trial_of(
    choice: CandidateChoice, base: Flow, attempt: Attempt | None, left_s: float | None
) -> TaskTry:
    provided, dialect = choice.provided, base.head.dialect.name
    forwards = provided is not None and providers.speaks(provided, dialect)
    # the timeout of a provider's answer counts from the request's arrival
    return TaskTry(choice.candidate, forwards, attempt, None if provided is not None else left_s)


async def _spill_of(parts: Parts, flow: Flow, name: str) -> SpillOver | None:
    """Return where the requests of the model `name` spill over to. None for derived models and
    adapters, because a provider does not have them."""
    table, catalog = parts.tasks.table, parts.cluster.catalog
    if not table.models or flow.head.kind != "generate":
        return None
    if not catalog.known:
        await catalog.wait_known()
    names = catalog.names()
    if catalog.derived(name) is not None or catalog.adapters.named(name, names) is not None:
        return None
    try:
        model = catalog.named(name)
    except HttpFaultRaised:
        return None
    own = (entry for key, entry in table.models.items() if model_named(key, names) == model)
    settings = next(own, None)
    return None if settings is None else table.spill_of(settings)


def _spill_from(order: CandidateOrder, choice: CandidateChoice, before: Flow) -> SpillOver | None:
    """Return the provider to which a request may spill over from a candidate; None if it may not. A
    request that a provider failed to answer returned to its queue, and does not spill over
    again."""
    is_own = choice.provided is None and before.since_at is None
    return order.spill if is_own else None


async def _tried(parts: Parts, attempts: Attempts, flow: Flow, since_at: float) -> str:
    """Let one candidate answer. If its request spilled over and the provider answered, return why
    it spilled over; else "". Raises what the stages raise."""
    await attempts.attempt(flow)
    spilled, trial = attempts.flow, flow.trial
    if not spilled.spilled or trial is None:
        return ""
    if await answer_elsewhere(parts, attempts, flow):
        return spilled.spilled
    left_s = _left_s(flow.fields, parts.reactor.now() - since_at)
    await attempts.attempt(_returned(flow, spilled, trial, left_s))
    return ""


def _returned(flow: Flow, spilled: Flow, trial: TaskTry, left_s: float | None) -> Flow:
    """Return the flow with which a request waits for a runner again, because the provider to which
    it spilled over did not answer."""
    again = replace(trial, timeout_s=None if left_s is None else max(left_s, LEAST_S))
    return replace(
        flow,
        trial=again,
        spill=None,
        since_at=spilled.since_at,
        of_task=spilled.of_task,
        is_admitted=spilled.is_admitted,
    )


def _left_s(fields: Mapping[str, Any], passed_s: float) -> float | None:
    """Return how much of the client's timeout is left; None if the body sets no valid timeout. The
    parser refuses an invalid one later."""
    asked_s = fields.get("x_timeout_s")
    if not isinstance(asked_s, int | float) or isinstance(asked_s, bool) or asked_s <= 0:
        return None
    return round(asked_s - passed_s, 3)


def _check_kind(choice: CandidateChoice, base: Flow) -> None:
    provided, dialect = choice.provided, base.head.dialect.name
    if provided is None or base.head.kind == "generate":
        return
    if not providers.speaks(provided, dialect):
        text = (
            f"'{provided.name}' is a model of a provider with the API '{provided.settings.kind}'. "
            "Providers accept embeddings only in OpenAI's API, token counts only in Anthropic's, "
            "and no rerank requests"
        )
        raise HttpFaultRaised(HttpFault(400, "unsupported", text, field="model"))


def _named(whole: Parsed, trial: TaskTry) -> Parsed:
    """Return the parsed body as if it had named the candidate."""
    extras, to_keep = whole.extras, whole.to_keep
    if trial.timeout_s is not None:
        extras = replace(extras, timeout_s=trial.timeout_s)
    if to_keep is not None and to_keep.listed:
        listed = cast(dict[str, Any], orjson.loads(to_keep.listed))
        to_keep = replace(to_keep, listed=json_bytes({**listed, "model": trial.name}))
    return replace(whole, model=trial.name, extras=extras, to_keep=to_keep)


def _with_new_ids(whole: Parsed, ids: Mapping[Any, Any]) -> Parsed:
    """Return the body with other request ids, because runners and records already have the ids of
    the earlier candidate's requests. The id of the answer and the ids of stored items contain the
    id of the first request, so they change too."""
    requests = tuple(
        request.model_copy(update={"request_id": ids[request.request_id]})
        for request in whole.requests
    )
    old, new = str(whole.requests[0].request_id), str(requests[0].request_id)
    to_keep: ToKeep | None = whole.to_keep
    if to_keep is not None:
        items = tuple(item.replace(old.encode(), new.encode()) for item in to_keep.items)
        listed = to_keep.listed.replace(old.encode(), new.encode())
        to_keep = replace(to_keep, items=items, listed=listed)
    answer_id = whole.answer_id.replace(old, new)
    return replace(whole, requests=requests, answer_id=answer_id, to_keep=to_keep)


def _fields(body: bytes, depth: int) -> dict[str, Any]:
    """Return the fields of a body, or {} if the body is no JSON object; the dialect refuses such a
    body later."""
    try:
        return read_object(body, Limits(depth=depth))
    except BadRequest:
        return {}


def _is_warm(parts: Parts, candidate: str) -> bool:
    try:
        return bool(parts.cluster.catalog.ready(parts.cluster.catalog.named(candidate)))
    except HttpFaultRaised:
        return False
