"""All ranks of a group through the same plans: the same exchanges on both sides, in one order.

A rank is a real `GroupComm` over a device that computes nothing: an array is what it is made of,
and giving it to the device computes all that it is made of and was not computed yet, as MLX does.
So an exchange that is dragged in by something else shows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.engine import RowId, RowSpec, StepPlan
from runner.group.rank_recorder import RankRecorder
from runner.mlx.ranks import comm as comm_module
from runner.mlx.ranks.comm import GroupComm

Kind = Literal["recv", "send", "all"]
REQUEST = "r"
ROW = RowSpec(RowId(1), (TokenId(1),), Sampling(), seed=0, traced=REQUEST)


@dataclass(eq=False)
class Array:
    """`does`: the exchange that computing it is, as (kind, peer, label)."""

    made_of: list[Array] = field(default_factory=list)
    label: Any = None
    does: tuple[Kind, int, Any] | None = None
    device: Device | None = None
    nbytes: int = 4

    def tolist(self) -> list[int]:
        assert self.device is not None
        self.device.give([self])
        return [1]

    def recvs(self, computed: set[Array]) -> set[Array]:
        """The exchanges that take something in, of those that it waits for."""
        own = {self} if self.does is not None and self.does[0] == "recv" else set[Array]()
        inner = (array.recvs(computed) for array in self.made_of if array not in computed)
        return own.union(*inner)


class Device:
    """What stands for `mlx.core`: the exchanges it makes, in order, and what it has computed."""

    int32 = uint8 = None

    def __init__(self, *, metal: bool) -> None:
        self.log: list[tuple[Kind, int, Any]] = []
        self.computed: set[Array] = set()
        self.exchanges: list[Array] = []
        self.metal = SimpleNamespace(is_available=lambda: metal)
        self.distributed = SimpleNamespace(
            init=lambda **_: None,
            recv=lambda shape, _, source, group: self.exchange("recv", source, shape[0]),
            send=lambda array, target, group: self.exchange("send", target, array.label, array),
            all_sum=lambda array, group: self.exchange("all", -1, "sum", array),
            all_min=lambda array, group: self.exchange("all", -1, "min", array),
        )

    def exchange(self, kind: Kind, peer: int, label: Any, *made_of: Array) -> Array:
        self.exchanges.append(Array([*made_of], label, (kind, peer, label), self))
        return self.exchanges[-1]

    def array(self, *_: Any) -> Array:
        return Array()

    zeros = array

    def before(self, caches: Array) -> Array:
        """What caches were made of until now: they change in place, like mlx-lm's rotating ones."""
        past = Array(caches.made_of)
        if caches in self.computed:
            self.computed.remove(caches)
            self.computed.add(past)
        return past

    def depends(self, inputs: list[Array], dependencies: list[Array]) -> list[Array]:
        return [Array([*inputs, *dependencies])]

    def give(self, arrays: list[Array]) -> None:
        """Compute it all. Two exchanges that take something in may begin in either order."""
        waiting = set[Array]().union(*(a.recvs(self.computed) for a in arrays)) - self.computed
        assert len(waiting) <= 1, "an exchange was dragged in before it was due"
        for array in arrays:
            self.compute(array)

    async_eval = give

    def eval(self, *arrays: Array | list[Array]) -> None:
        for one in arrays:
            self.give(one if isinstance(one, list) else [one])

    def compute(self, array: Array) -> None:
        if array in self.computed:
            return
        for inner in array.made_of:
            self.compute(inner)
        self.computed.add(array)
        if array.does is not None:
            self.log.append(array.does)


@dataclass(frozen=True)
class Group:
    size: int
    sharding: Literal["pipeline", "tensor"]
    backend: Literal["ring", "jaccl"]
    metal: bool
    traced: bool = False


class Rank:
    """A rank that goes through plans as an engine and its forward do."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank = group, rank
        self.device = Device(metal=group.metal)
        self.told: dict[int, Array] = {}
        self.caches: dict[tuple[str, int], Array] = {}
        self.pending: list[tuple[list[Array], list[Array]]] = []

    def run(self, plans: list[Plan]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comm_module, "mx", self.device)
            context: Any = SimpleNamespace(
                rank=self.rank,
                size=self.group.size,
                sharding=self.group.sharding,
                backend=self.group.backend,
                spans=RankRecorder(itertools.count().__next__, nullcontext()),
                ways={},
            )
            self.spans = context.spans
            self.comm: Any = GroupComm(context)
            ring = (self.group.backend, self.group.sharding) == ("ring", "pipeline")
            if ring and not self.group.metal:
                self.comm._ring = SimpleNamespace(wait=lambda _: True)
            for number, plan in enumerate(plans):
                admit = (ROW,) if self.group.traced and not number else ()
                self.spans.begin(StepPlan(number + 1, admit=admit))
                self.issue(number, plan)
                if plan.reads and len(self.pending) > 1:
                    self.read()
            while self.pending:
                self.read()
            self.comm.settle()

    def issue(self, number: int, plan: Plan) -> None:
        if self.comm.leads:
            self.comm.flush()
        prefilled: list[Array] = []
        drawn: list[Array] = []
        for at, ends in enumerate(plan.prompts):
            tokens = self.prompt(at, 100 * number + at, ends, prefilled)
            drawn += [tokens] if ends else []
        for at, grammar in enumerate(plan.steps[: self.comm.microbatches]):
            drawn.append(self.step(at, 100 * number + 50 + at, grammar, plan.joins))
        if plan.keeps:
            self.comm.flush()
            self.comm.submit([Array([*self.caches.values()])])
        self.pending.append((prefilled, drawn))
        if plan.looks:
            self.comm.least(1)

    def forward(self, key: tuple[str, int], label: int, *made_of: Array) -> Array:
        caches = self.caches.setdefault(key, Array())
        given = [*made_of, self.device.before(caches)]
        if self.group.sharding == "pipeline" and self.rank < self.group.size - 1:
            given.append(self.comm.recv_hidden((label,), None))
        out = Array(given, label)
        if self.group.sharding == "tensor":
            out = self.device.exchange("all", -1, label, out)
        elif not self.comm.leads:
            out = self.comm.send_hidden(out)
        caches.made_of = [*given] if self.comm.pipes else [out]
        return out

    def draw(self, label: int, out: Array, grammar: bool) -> Array:
        if not self.comm.leads:
            return self.comm.recv_tokens(label, out)
        if grammar:
            self.comm.submit([out])
        return self.comm.send_tokens(Array([out], label))

    def prompt(self, at: int, label: int, ends: bool, prefilled: list[Array]) -> Array:
        out = self.forward(("prompt", at), label)
        caches = self.caches["prompt", at]
        if not ends:
            prefilled += self.comm.submit_prompt([], [*self.comm.must_evaluate(out), caches])
            return out
        tokens = self.draw(label, out, False)
        prefilled += self.comm.submit_prompt([tokens], [caches])
        return tokens

    def step(self, microbatch: int, label: int, grammar: bool, joins: bool) -> Array:
        if joins:
            self.comm.settle()
            self.device.eval([*self.caches.values()])
        told = self.told.get(microbatch)
        out = self.forward(("step", microbatch), label, *([] if told is None else [told]))
        if told is not None:
            self.comm.await_tokens(told)
        if told is not None and grammar and self.comm.leads:
            assert told in self.device.computed, "a grammar waits for the last token"
        self.told[microbatch] = self.draw(label, out, grammar)
        self.comm.submit_or_hold([self.told[microbatch]])
        return self.told[microbatch]

    def read(self) -> None:
        prefilled, drawn = self.pending.pop(0)
        if not self.pending:
            self.comm.flush()
        if drawn:
            self.comm.await_tokens(drawn[-1])
        for array in (*prefilled, *drawn):
            assert array in self.device.computed, "it is waited for, and was not submitted"


@dataclass(frozen=True)
class Plan:
    """`prompts`: chunks, True for a row's last. `steps`: of microbatches, True with a grammar."""

    prompts: tuple[bool, ...]
    steps: tuple[bool, ...]
    joins: bool
    keeps: bool
    looks: bool
    reads: bool


FLAGS = st.lists(st.booleans(), max_size=3).map(tuple)
PLANS = st.lists(
    st.builds(Plan, FLAGS, FLAGS, st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)
GROUPS = st.builds(
    Group,
    st.integers(2, 4),
    st.sampled_from(["pipeline", "tensor"]),
    st.sampled_from(["ring", "jaccl"]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=300)
@given(GROUPS, PLANS)
def test_any_plans_make_the_ranks_exchange_in_one_order(group: Group, plans: list[Plan]) -> None:
    ranks = [Rank(group, rank) for rank in range(group.size)]
    for rank in ranks:
        rank.run(plans)
        done = Counter(rank.device.log)
        assert done == Counter(array.does for array in rank.device.exchanges), "nothing is left out"
    logs = [rank.device.log for rank in ranks]
    for one in range(group.size):
        assert [d for d in logs[one] if d[0] == "all"] == [d for d in logs[0] if d[0] == "all"]
        for other in range(group.size):
            sent = [label for kind, peer, label in logs[one] if (kind, peer) == ("send", other)]
            got = [label for kind, peer, label in logs[other] if (kind, peer) == ("recv", one)]
            assert sent == got
    assert_ends(logs)
    assert_told(ranks)


def assert_told(ranks: list[Rank]) -> None:
    """What a traced group tells of its links has two ends, one on either side."""
    ends: dict[bool, list[tuple[Any, ...]]] = {True: [], False: []}
    crossed = 0
    for rank in ranks:
        told = rank.spans.take(REQUEST)
        assert (told is not None) is rank.group.traced
        for one in () if told is None else told.crossings:
            pair = (rank.rank, one.peer) if one.sent else (one.peer, rank.rank)
            ends[one.sent].append((one.what, one.step, one.number, *pair))
        if rank.comm._ring is not None and rank.group.traced:
            crossed += sum(kind == "send" for kind, _, _ in rank.device.log)
    assert sorted(ends[True]) == sorted(ends[False]) and len(ends[True]) == len(set(ends[True]))
    assert len(ends[True]) == crossed


def assert_ends(logs: list[list[tuple[Kind, int, Any]]]) -> None:
    """Play the logs against each other, each in its order; a send need not wait for its other
    end, as with a ring's sockets. No rank waits for ever."""
    at = [0] * len(logs)
    underway: Counter[tuple[int, int, Any]] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, log in enumerate(logs):
            while at[rank] < len(log) and log[at[rank]][0] != "all":
                kind, peer, label = log[at[rank]]
                if kind == "recv" and not underway[peer, rank, label]:
                    break
                if kind == "recv":
                    underway[peer, rank, label] -= 1
                else:
                    underway[rank, peer, label] += 1
                at[rank] += 1
                moved = True
        if all(at[rank] < len(log) and log[at[rank]][0] == "all" for rank, log in enumerate(logs)):
            at = [place + 1 for place in at]
            moved = True
    assert [len(log) for log in logs] == at, "a rank waits for ever"
