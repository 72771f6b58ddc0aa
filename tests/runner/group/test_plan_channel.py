"""What becomes of a group whose first exchange does not end, or whose lead is gone."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from bus.client import Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.service import Shell
from bus.wire.ids import NodeId
from bus.wire.messages.control import GroupSpec, RunnerSpec
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


class Follower:
    """Rank 1's end of a channel, in a reactor of its own."""

    def __init__(self, folder: Path, group: GroupSpec) -> None:
        spec = RunnerSpec.model_validate(
            {
                "instance": "i", "generation": 1, "rank": 1, "size": 2, "model": "m", "path": "",
                "dtype": "float32", "first_layer": 0, "last_layer": 4, "context_tokens": 64,
                "addresses": (), "memory_limit_bytes": 1, "group": group,
            }
        )  # fmt: skip
        self.reactor, self.listener = PollReactor(), Listener()
        speaker = Speaker(NodeId("n"), "runner:00", new_boot())
        log = Log(node="n", process="runner:00", stream=io.StringIO())
        shell = Shell(speaker, Endpoints(str(folder)), self.reactor, log)
        self.channel = open_channel(spec, shell, self.listener)

    def turn(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = self.reactor.now() + seconds
        while self.reactor.now() < end and not until():
            self.reactor.turn(0.02)

    def close(self) -> None:
        self.channel.close()
        self.reactor.close()


@pytest.mark.parametrize("proved", [False, True])
def test_ranks_that_do_not_prove_themselves_in_time_give_the_group_up(
    tmp_path: Path, proved: bool
) -> None:
    rank = Follower(tmp_path, group_spec("pipeline", stages(8, 2), form_deadline_s=0.3))
    listener = rank.listener
    rank.channel.formed()
    if proved:
        rank.channel.context.met()
    rank.turn(20.0, until=lambda: bool(listener.why))
    rank.close()
    # Without a lead it is given up in any case: the first reason counts.
    proof = "the ranks did not prove within 0.3 s that no other process is in the ring"
    assert len(listener.why) == 1 and listener.why[0][1] is False
    assert (listener.why[0][0] == proof) is not proved


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_lead_is_gone_when_its_connection_does_not_come_back(
    tmp_path: Path, comes_back: bool
) -> None:
    group = group_spec("pipeline", stages(8, 2), form_deadline_s=30.0)
    address = group.ranks[0].plans[0]
    rank = Follower(tmp_path, group)
    lead = Link("router")
    lead.bind(address)
    rank.turn(5.0, until=lambda: lead.receive() is not None)
    rank.channel.ready = True
    rank.channel.formed()
    rank.channel.context.met()
    rank.turn(0.2)
    lead.close()
    if comes_back:
        rank.turn(0.3)
        lead = Link("router")
        lead.bind(address)
    rank.turn(2.5 if comes_back else 10.0, until=lambda: bool(rank.listener.why))
    rank.close()
    lead.close()
    gone = (f"the lead on node {group.ranks[0].node} is gone", False)
    assert rank.listener.why == ([] if comes_back else [gone])
