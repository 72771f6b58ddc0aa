"""Errors of calls. Pure."""

from __future__ import annotations

from typing import Literal

from bus.wire.errors import ShoalError
from bus.wire.messages.gateways import CallRefusal

Why = Literal["unknown", "down", "silent", "refused"]


class CallRefused(ShoalError):
    """A handler raises this to refuse a call. The calling node's client gets the reason."""

    def __init__(self, refusal: CallRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class CallFailed(ShoalError):
    """A call got no reply.

    `why` is `unknown` (the cluster has no such node), `down` (the node is not connected), `silent`
    (no answer within `waited_s`) or `refused` (the node gave `refusal`). `node` is the node's name.
    """

    def __init__(
        self,
        node: str,
        why: Why,
        message: str,
        waited_s: float = 0.0,
        refusal: CallRefusal | None = None,
    ) -> None:
        super().__init__(message)
        self.node = node
        self.why: Why = why
        self.waited_s = waited_s
        self.refusal = refusal


def silence(name: str, waited_s: float) -> CallFailed:
    """Return the error for a node that did not answer within `waited_s`."""
    return CallFailed(name, "silent", f"node {name} did not answer within {waited_s:g} s", waited_s)


def refusal_error(name: str, refusal: CallRefusal) -> CallFailed:
    """Return the error for a node that refused a call."""
    return CallFailed(name, "refused", f"node {name}: {refusal.message}", refusal=refusal)


def plain_refusal(error: ShoalError) -> CallRefusal:
    """Return a refusal whose message is the error's text."""
    return CallRefusal(message=str(error) or type(error).__name__)
