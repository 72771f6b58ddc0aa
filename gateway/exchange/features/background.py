"""Talks to the jobs: turns a request into a job if its client does not wait for the answer."""

from __future__ import annotations

from dataclasses import replace

from gateway.exchange.flow import Flow
from gateway.exchange.parts import Parts


async def run_in_background(parts: Parts, flow: Flow) -> Flow:
    """Submit the body as a job. When the job runs, its request passes this stage again; then it is
    answered."""
    if flow.head.run is not None:
        return flow
    await flow.http.run_in_background(flow.parsed)
    parts.clients.rests(flow.head.client, flow.cooldown_s)
    return replace(flow, is_over=True)
