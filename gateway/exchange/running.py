"""Talks to the dispatcher: submits a request, and counts it as running until it ends.

At shutdown the process waits for running exchanges. When an exchange ends, its open requests are
cancelled, and its tokens are charged to the API key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gateway.exchange.flow import Flow, Running
from gateway.exchange.parts import Parts
from gateway.requests.dispatcher import Exchange


async def dispatch(parts: Parts, flow: Flow) -> Flow:
    """Submit the requests of the body to runners, and return the flow with the running exchange.
    Raises HttpFaultRaised."""
    head = flow.head
    traced = True if flow.traced else None
    exchange = parts.dispatcher.start(
        flow.parsed,
        key_id=head.key,
        sharer=head.sharer,
        traced=traced,
        since_at=flow.since_at,
    )
    return submitted(parts, flow, exchange)


def submitted(parts: Parts, flow: Flow, exchange: Exchange) -> Flow:
    """Count a submitted exchange as running; return the flow that contains it. If the client
    disconnects, the exchange is abandoned."""
    flow.http.watch.on_gone(partial(parts.dispatcher.abandon, exchange.inbox))
    release = partial(_release, parts, exchange)
    tell = partial(parts.ended_requests.tell, exchange, flow)
    if flow.head.run is not None:
        flow.head.run.computed = exchange.requests
    return begun(parts, flow, Running(exchange, tell, [release]), partial(_spent, exchange))


def begun(parts: Parts, flow: Flow, running: Running, spent: Callable[[], int]) -> Flow:
    """Count an exchange as running until it ends, and start the client's cooldown, if any. Return
    the flow that contains the exchange. When it ends, `spent()` tokens are charged to its API key,
    if any."""
    head = flow.head
    parts.running += 1
    running.on_end.append(partial(_leave, parts))
    if flow.cooldown_s:
        parts.clients.rests(head.client, flow.cooldown_s)
    if head.key is not None:
        running.on_end.append(parts.cluster.api_keys.spends(head.key, spent))
    return replace(flow, running=running)


def _release(parts: Parts, exchange: Exchange) -> None:
    """Cancel the requests of an exchange that is over, unless all have ended, as they usually
    have."""
    if not exchange.inbox.ended:
        parts.dispatcher.abandon(exchange.inbox)


def _leave(parts: Parts) -> None:
    parts.running -= 1


def _spent(exchange: Exchange) -> int:
    """Return how many tokens the requests of an exchange have used so far."""
    return sum(request.spent_tokens for request in exchange.requests)
