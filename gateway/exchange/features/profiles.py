"""Talks to the request's `Flow`: applies the client's profile (`clients.toml`) to it."""

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
