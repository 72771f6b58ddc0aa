"""Tests that take turns at one gateway: each has instances and runners of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from bus.wire.messages.events import InstanceRemoved
from tests.harness.gateway_testbed import GatewayTestbed, eventually
from tests.harness.http_clients import ready

_numbers = count(1)


def new_name() -> str:
    """A name of an instance that no test before has used."""
    return f"inst-{next(_numbers)}"


@contextmanager
def turn_at(shared: GatewayTestbed) -> Iterator[GatewayTestbed]:
    """The gateway without an instance; what is placed in the block is removed after it."""
    had = len(shared.runners)
    try:
        yield shared
    finally:
        for name in shared.do(lambda: list(shared.holder.state.instances)):
            shared.happen(InstanceRemoved(instance=name, why="the test is over"))
        for runner in shared.runners[had:]:
            runner.end()
        eventually(lambda: not ready(shared), 10, "no instance is left")
