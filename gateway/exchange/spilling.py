"""Talks to the dispatcher and to providers: sends a request that waits too long to a provider.

A request spills over if no runner has begun it `spill_after_s` after its arrival. It spills over
earlier if the leader expects a longer wait, or if the queue refuses the request. A request that the
provider cannot serve stays in the queue; a header, the log and `/queue` say why. If the provider
fails before its first byte, the request returns to its old place in the queue. A request is
recorded once, where it ends.
"""

from __future__ import annotations

import os
from dataclasses import replace

from bus.models.tasks import SpillOver
from bus.wire.ids import ModelId
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.exchange.answering import early_fault
from gateway.exchange.errors import fault_of
from gateway.exchange.flow import Attempts, Flow, TaskTry
from gateway.exchange.headers import one_line
from gateway.exchange.parts import Parts
from gateway.fetching import providers
from gateway.requests.derived import requests_of
from gateway.requests.tasks import OF_WAITING, Attempt
from gateway.view.readings import wait_of

NOT_SPILLED = "x-shoal-not-spilled"
LOOK_S = 0.25
"""The expected wait is checked at this interval, in seconds."""
STAYS = frozenset({"draining", "cancelled", "client_closed"})
"""Error codes after which a request does not return to the queue."""


async def spill(parts: Parts, flow: Flow) -> Flow:
    """Wait until a runner has begun the request. If that takes too long, take the request out of
    the queue; `try_in_order` then asks the provider."""
    over, requests = flow.spill, flow.exchange.requests
    assert over is not None
    why_not = _why_not(parts, flow, over)
    text = f"to {over.to.name} after {over.after_s:g} s" if not why_not else f"stays: {why_not}"
    for request in requests:
        request.spill = text
    if why_not:
        _stays(parts, flow, over, why_not)
        return replace(flow, spill=None)
    why = await _why_spilled(parts, flow, over)
    if not why:
        return replace(flow, spill=None)
    assert flow.running is not None
    since_at = requests[0].since_at
    flow.running.give_way()
    return replace(flow, running=None, spilled=why, since_at=since_at, is_over=True)


async def answer_elsewhere(parts: Parts, attempts: Attempts, flow: Flow) -> bool:
    """Let the provider answer a request that has left the queue. `flow` has the facts from before
    the attempt of the cluster's own model. Return False if the provider did not answer, so that the
    request waits in the queue again. Raises what the stages raise if the request has ended."""
    over, left = flow.spill, attempts.flow
    assert over is not None and flow.trial is not None
    model, to = flow.trial.name, over.to.name
    parts.log.info("a request spills over", model=model, to=to, why=left.spilled)
    budget_s = None if flow.trial.attempt is None else flow.trial.attempt.budget_s
    trial = TaskTry(to, _forwards(flow, over), Attempt(flow.task, budget_s), is_spilled=True)
    try:
        await attempts.attempt(
            replace(
                flow,
                trial=trial,
                provided=over.to,
                spill=None,
                of_task=left.of_task,
                is_admitted=left.is_admitted,
            )
        )
    except Exception as error:
        fault = fault_of(error)
        if fault is None or not is_returned(attempts.flow, fault):
            parts.metrics.spilled(model, to, "failed")
            raise
        parts.metrics.spilled(model, to, "returned")
        _stays(parts, flow, over, f"{to} did not answer ({fault.code}): {fault.message}")
        return False
    parts.metrics.spilled(model, to, "answered")
    return True


def is_returned(flow: Flow, fault: HttpFault) -> bool:
    """Return whether a request that spilled over returns to the queue after this fault."""
    trial = flow.trial
    if trial is None or not trial.is_spilled or flow.http.watch.is_gone:
        return False
    return trial.attempt is not None and not trial.attempt.began and fault.code not in STAYS


def _forwards(flow: Flow, over: SpillOver) -> bool:
    return providers.speaks(over.to, flow.head.dialect.name)


def _why_not(parts: Parts, flow: Flow, over: SpillOver) -> str:
    """Return why a request cannot go to the provider; empty if it can."""
    if not parts.cluster.bus.state.cloud_fallback:
        return "providers are switched off (allowCloudFallback is false)"
    if len(flow.parsed.requests) > 1:
        return "providers do not accept a body with several prompts"
    if any(request.prompt.kind != "chat" for request in flow.parsed.requests):
        return "a raw prompt is written for one model, so it is not sent to another"
    call = providers.call_of(over.to, b"", os.environ, {})
    if isinstance(call, HttpFault):
        return call.message
    if _forwards(flow, over):
        return ""
    wire = requests_of(flow.parsed, ModelId(over.to.name), None, None)[0]
    try:
        providers.provider_body(over.to, wire)
    except HttpFaultRaised as refused:
        return f"the provider '{over.to.provider}' cannot serve {refused.fault.message}"
    return ""


async def _why_spilled(parts: Parts, flow: Flow, over: SpillOver) -> str:
    """Wait until the request has begun, and return ""; if it spills over before that, return
    why."""
    exchange, now = flow.exchange, parts.reactor.now
    inbox, attempt = exchange.inbox, None if flow.trial is None else flow.trial.attempt
    began_at = now()
    while True:
        left_s = flow.head.came_at + over.after_s - now()
        budget_s = None if attempt is None else attempt.left_s
        steps = [LOOK_S, max(0.0, left_s), *(() if budget_s is None else (budget_s,))]
        has_begun = await inbox.wait_begun(min(steps))
        if attempt is not None:
            attempt.waited_s = now() - began_at
        if has_begun:
            fault = early_fault(inbox)
            if fault is None or fault.code not in OF_WAITING:
                return ""
            return f"{exchange.model} cannot take the request ({fault.code})"
        if any(request.begun for request in exchange.requests) or flow.http.watch.is_gone:
            return ""  # a runner reads the prompt
        if flow.head.run is not None and any(request.instance for request in exchange.requests):
            return ""  # a job keeps its id, so a runner must not get it twice
        waited_s = now() - flow.head.came_at
        expected_s = _expected_s(parts, exchange.model)
        if waited_s >= over.after_s:
            return f"{exchange.model} did not begin within {over.after_s:g} s (spill_after_s)"
        if expected_s is not None and waited_s + expected_s > over.after_s:
            return (
                f"{exchange.model} is expected to be ready in {expected_s:.0f} s, after "
                f"{over.after_s:g} s (spill_after_s)"
            )
        if attempt is not None and attempt.left_s == 0.0:
            return ""  # the candidate's budget is used up


def _expected_s(parts: Parts, model: ModelId) -> float | None:
    """Return the time in seconds until a model is ready, as the leader expects it. None if it is
    unknown, or if the model is ready."""
    catalog = parts.cluster.catalog
    if catalog.ready(model):
        return None
    wait = wait_of(catalog.readings, model, parts.reactor.now())
    return None if wait is None else wait.ready_in_s


def _stays(parts: Parts, flow: Flow, over: SpillOver, why: str) -> None:
    assert flow.trial is not None
    flow.http.reply.set_header(NOT_SPILLED, one_line(why))
    parts.log.info("a request does not spill over", model=flow.trial.name, to=over.to.name, why=why)
