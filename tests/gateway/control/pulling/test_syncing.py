"""What is to be copied where, why that cannot be, and copies that go on beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.errors import OwnerSilent, Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullState
from gateway.control.pulling import CopyAt, CopyState, SyncPlan, copied, sync_plan
from gateway.control.pulling.syncing import AT_ONCE
from tests.recorded.specimens import least

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
M, N = ModelId("m"), ModelId("o/n")
GB = 10**9


def model(name: ModelId = M, *, digest: str = "d") -> ModelCard:
    return least(ModelCard).model_copy(
        update={"model": name, "size_bytes": 10 * GB, "digest": digest}
    )


def node(name: NodeId, *models: ModelCard, gives: bool = True) -> NodeCard:
    update = {
        "node": name, "name": f"node-{name}", "models": models,
        "weights_addresses": ("tcp://10.0.0.1:24155",) if gives else (),
    }  # fmt: skip
    return least(NodeCard).model_copy(update=update)


def planned(
    *cards: NodeCard, models: tuple[ModelId, ...] = (M,), free: dict[NodeId, int] | None = None
) -> SyncPlan | Refusal:
    return sync_plan(models, [card.node for card in cards], cards, free or {})


def test_each_node_that_lacks_a_model_gets_it_and_the_others_are_told() -> None:
    plan = planned(node(A, model()), node(B), node(C, model(), model(N)), models=(M, N, M))
    assert isinstance(plan, SyncPlan)
    found = [(one.model, one.node, one.size_bytes) for one in plan.wanted]
    assert found == [(N, A, 10 * GB), (M, B, 10 * GB), (N, B, 10 * GB)]
    assert [(one.model, one.node) for one in plan.there] == [(M, A), (M, C), (N, C)]


def test_what_no_node_gives_is_refused_and_is_well_where_it_lies() -> None:
    refused = planned(node(A, model(), gives=False), node(B))
    assert isinstance(refused, Refusal) and refused.reason == "weights_unavailable"
    assert "only node-a has m" in refused.message and "cluster.listen" in refused.message
    assert isinstance(planned(node(A, model(), gives=False)), SyncPlan), "it lies there already"
    one_gives = planned(node(A, model(), gives=False), node(B), node(C, model()))
    assert isinstance(one_gives, SyncPlan) and [one.node for one in one_gives.wanted] == [B]


def test_another_content_of_that_name_is_refused_by_the_nodes_name() -> None:
    refused = planned(node(A, model()), node(B, model(digest="e")))
    assert isinstance(refused, Refusal) and refused.reason == "conflict"
    assert "node-a has different content under the name m" in refused.message
    assert isinstance(planned(node(A, model()), node(B, model(digest=""))), SyncPlan)


def test_a_disk_without_room_for_all_of_it_is_refused_with_the_sum() -> None:
    cards = node(A, model(), model(N)), node(B)
    for free, fits in ((20 * GB, False), (22 * GB, True)):
        plan = planned(*cards, models=(M, N), free={A: 0, B: free})
        assert isinstance(plan, SyncPlan) == fits, free
    refused = planned(*cards, models=(M, N), free={B: 20 * GB})
    assert isinstance(refused, Refusal) and refused.reason == "disk_full"
    assert "node-b has 20.0 GB of free disk space; 2 models need 21.1 GB" in refused.message
    assert isinstance(planned(*cards, models=(M,), free={B: 20 * GB}), SyncPlan)


class Asked:
    """Nodes that copy, each copy for as long as nothing is said of it."""

    def __init__(self) -> None:
        self.open: dict[tuple[NodeId, ModelId], asyncio.Future[PullState]] = {}
        self.left: list[tuple[NodeId, ModelId]] = []
        self.most = 0

    async def ask(self, node: NodeId, model: ModelId) -> AsyncGenerator[PullState]:
        """CopyAt."""
        key = node, model
        self.open[key] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, sum(one == node for one, _ in self.open))
        try:
            yield PullState(model=model, phase="copying")
            yield await self.open[key]
        finally:
            self.left.append(key)
            del self.open[key]


def wanted(*nodes: NodeId, count: int = 5) -> list[CopyAt]:
    return [CopyAt(ModelId(f"m{number}"), node, 1) for node in nodes for number in range(count)]


def test_a_node_copies_a_few_at_a_time_and_one_that_fails_ends_no_other() -> None:
    asked, told = Asked(), list[CopyState]()

    async def run() -> None:
        async with aclosing(copied(asked.ask, wanted(A, B))) as states:
            async for one in states:
                told.append(one)
                if one.state.phase == "copying":
                    fails = one.copy == CopyAt(ModelId("m1"), A, 1)
                    end = PullState(model=one.copy.model, phase="failed" if fails else "done")
                    asked.open[one.copy.node, one.copy.model].set_result(end)

    asyncio.run(run())
    ends = {(one.copy.node, one.copy.model): one.state.phase for one in told}
    assert len(ends) == 10 and ends.pop((A, ModelId("m1"))) == "failed"
    assert set(ends.values()) == {"done"} and asked.most == AT_ONCE


def test_who_leaves_early_leaves_all_that_go_on() -> None:
    asked = Asked()

    async def run() -> None:
        async with aclosing(copied(asked.ask, wanted(A, B))) as states:
            async for _ in states:
                if len(asked.open) == 2 * AT_ONCE:
                    break

    asyncio.run(run())
    assert not asked.open and len(asked.left) == 2 * AT_ONCE, "the others were not begun"


def test_a_worker_that_is_silent_is_a_copy_that_failed() -> None:
    async def ask(node: NodeId, model: ModelId) -> AsyncGenerator[PullState]:
        yield PullState(model=model, phase="waiting")
        raise OwnerSilent(f"the worker of node {node}", 15.0)

    async def run() -> list[CopyState]:
        return [one async for one in copied(ask, wanted(A, count=1))]

    told = asyncio.run(run())
    assert told[-1].state.phase == "failed"
    assert "the worker of node a did not answer within 15 s" in told[-1].state.message
