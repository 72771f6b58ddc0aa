"""Talks to the table of clients: applies a client's profile (`clients.toml`), and checks its
cooldown and its number of waiting requests."""

from __future__ import annotations

from dataclasses import replace

from gateway.access import cooldown_of, with_defaults
from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts


async def apply_profile(_parts: Parts, flow: Flow) -> Flow:
    """Add the default values of the client's profile to the request, and set its cooldown."""
    profile, parsed = flow.profile, flow.parsed
    assert profile is not None
    is_bounded = flow.is_limited
    cooldown_s = cooldown_of(parsed.extras, profile) if is_bounded else 0.0
    return replace(flow, parsed=with_defaults(parsed, profile), cooldown_s=cooldown_s)


async def admit(parts: Parts, flow: Flow) -> Flow:
    """Raise HttpFaultRaised (429) if the client is in its cooldown or has too many waiting
    requests. Each request is checked once, even if several candidates of a task are tried. The
    stages after this one do not wait before the request is submitted. So no other request of the
    client can be admitted in between."""
    if not flow.is_admitted:
        parts.clients.check(flow.head.client)
    return replace(flow, is_admitted=True)
