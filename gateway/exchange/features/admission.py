"""Talks to the clients' book: checks a client's cooldown and its number of waiting requests."""

from __future__ import annotations

from dataclasses import replace

from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts


async def admit(parts: Parts, flow: Flow) -> Flow:
    """Raise HttpFaultRaised (429) if the client is in its cooldown or has too many waiting
    requests. A request is checked once, also if several candidates of a task are tried. The stages
    behind this one do not wait before the request is submitted, so no other request comes between.
    """
    if not flow.is_admitted:
        parts.clients.check(flow.head.client)
    return replace(flow, is_admitted=True)
