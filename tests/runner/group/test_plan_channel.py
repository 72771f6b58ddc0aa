"""What becomes of a group whose first exchange does not end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bus.client import Speaker
from bus.links.reactor import PollReactor
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.service import Shell
from bus.wire.ids import NodeId
from bus.wire.messages.control import RunnerSpec
from runner.group.lockstep import SharedPlan
from runner.group.plan_channel import open_channel
from tests.harness.ranks import group_spec, stages


class Listener:
    """Takes note of what a rank is told."""

    def __init__(self) -> None:
        self.why: list[tuple[str, bool]] = []

    def form(self) -> None: ...

    def plan(self, shared: SharedPlan) -> None: ...

    def lost(self, what: str, is_final: bool) -> None:
        self.why.append((what, is_final))

    def ended(self, why: str) -> None: ...


@pytest.mark.parametrize("proved", [False, True])
def test_ranks_that_do_not_prove_themselves_in_time_give_the_group_up(
    tmp_path: Path, proved: bool
) -> None:
    group = group_spec("pipeline", stages(8, 2), form_deadline_s=0.3)
    spec = RunnerSpec.model_validate(
        {
            "instance": "i", "generation": 1, "rank": 1, "size": 2, "model": "m", "path": "",
            "dtype": "float32", "first_layer": 0, "last_layer": 4, "context_tokens": 64,
            "addresses": (), "memory_limit_bytes": 1, "group": group,
        }
    )  # fmt: skip
    reactor, listener = PollReactor(), Listener()
    speaker = Speaker(NodeId("n"), "runner:00", new_boot())
    log = Log(node="n", process="runner:00", stream=io.StringIO())
    channel = open_channel(spec, Shell(speaker, Endpoints(str(tmp_path)), reactor, log), listener)
    channel.formed()
    if proved:
        channel.context.met()
    end = reactor.now() + 0.45
    while reactor.now() < end:
        reactor.turn(0.02)
    channel.close()
    reactor.close()
    # Without a lead it is given up in any case: the first reason counts.
    proof = "the ranks did not prove in 0.3 s that they alone are in the ring"
    assert len(listener.why) == 1 and listener.why[0][1] is False
    assert (listener.why[0][0] == proof) is not proved
