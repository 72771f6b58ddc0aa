"""The share of requests that is traced: a command becomes an event, once."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bus.wire.ids import CommandId
from bus.wire.messages.commands import SetTracing
from bus.wire.messages.events import TracingSet
from master.decisions.decide import Decided, Known
from tests.master.decisions.test_decide import Stage


def test_tracing_is_set_for_all_nodes_once() -> None:
    stage = Stage()
    for number, ratio in enumerate((None, 0.5, 0.5, 0.0, None)):
        before = stage.state
        decision = stage.command(SetTracing(command_id=CommandId(f"t{number}"), ratio=ratio))
        if ratio == before.trace_ratio:
            assert decision == Known(before.index), "what is so already takes no place in the log"
        else:
            assert decision == Decided((TracingSet(ratio=ratio),), None)
        assert stage.state.trace_ratio == ratio


@pytest.mark.parametrize("ratio", [-0.1, 1.5])
def test_a_share_is_from_0_to_1(ratio: float) -> None:
    with pytest.raises(ValidationError):
        SetTracing(command_id=CommandId("t"), ratio=ratio)
