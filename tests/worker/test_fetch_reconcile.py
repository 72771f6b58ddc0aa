"""What the worker does about a shard whose weights are not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard, NodeCard, PartialModel
from bus.wire.errors import Refusal
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.control import SlotHello
from bus.wire.messages.events import LoadRefused
from bus.wire.messages.weights import StorageReading
from worker.models.layer_bytes import Layers
from worker.slots.actions import Action, CancelFetch, FetchModel, RefuseSlot, StartSlot, Tell
from worker.slots.admission import NodeInventory
from worker.slots.facts import Reported
from worker.slots.reconcile import reconcile
from worker.slots.table import Seen, SlotTable
from worker.transfer.source import StoreAddress
from worker.transfer.sources import NOTHING_ELSEWHERE, Sources, is_store_address

ME, OTHER, THIRD = NodeId("n1"), NodeId("n2"), NodeId("n3")
M = ModelId("m")
FAILED = Refusal(reason="weights_unavailable", message="m could not be fetched: n2 went away")


def instance(
    name: str, *nodes: NodeId, status: str = "placed", generation: int = 1
) -> dict[str, Instance]:
    shards = tuple(
        Shard(rank=rank, node=node, first_layer=0, last_layer=2, bytes_reserved=1)
        for rank, node in enumerate(nodes)
    )
    lead = RankReady(rank=0, node=nodes[0], process="runner:00", addresses=(), pid=7)
    made = Instance(
        instance=InstanceId(name), model=M, shards=shards, generation=generation, status=status,
        context_tokens=8, keep_alive_s=-1.0, ready=(lead,) if status == "ready" else (),
    )  # fmt: skip
    return {name: made}


def free_slots(count: int = 2) -> SlotTable:
    table = SlotTable()
    table.listed([Seen(f"{n:02d}", False, 0, None) for n in range(count)], 0.0)
    return table


def desk(
    *,
    here: bool = False,
    announced: Mapping[NodeId, frozenset[ModelId]] | None = None,
    fetches: Mapping[ModelId, Refusal | None] | None = None,
    has_heard: bool = True,
    now: float = 10.0,
) -> NodeInventory:
    paths = frozenset({M}) if here else frozenset[str]()
    there = {OTHER: frozenset({M})} if announced is None else announced
    cards = {node: card(node, *models) for node, models in there.items()}
    elsewhere = replace(NOTHING_ELSEWHERE, cards=cards, fetches=fetches or {}, has_heard=has_heard)
    return NodeInventory(ME, True, None, paths, 30.0, now, elsewhere=elsewhere)


def refusals(actions: list[Action]) -> list[Refusal]:
    told = [action.fact for action in actions if isinstance(action, Tell)]
    return [fact.refusal for fact in told if isinstance(fact, LoadRefused)]


def test_weights_that_another_node_announces_are_fetched_once_for_all_that_want_them() -> None:
    state = ClusterState(instances={**instance("a", ME), **instance("b", ME)})
    told, table = Reported(), free_slots()
    assert reconcile(state, table, desk(), told) == [FetchModel(M)]
    assert reconcile(state, table, desk(fetches={M: None}), told) == []
    started = reconcile(state, table, desk(here=True, fetches={M: None}), told)
    assert [type(one) for one in started] == [StartSlot, StartSlot]


def test_a_fetch_that_nothing_waits_for_is_cancelled() -> None:
    gone = ClusterState()
    assert reconcile(gone, free_slots(), desk(fetches={M: None}), Reported()) == [CancelFetch(M)]
    draining = ClusterState(instances=instance("a", ME, status="draining"))
    assert CancelFetch(M) in reconcile(draining, free_slots(), desk(fetches={M: None}), Reported())


def test_a_fetch_that_fails_is_told_with_its_own_refusal_and_forgotten() -> None:
    state, told = ClusterState(instances=instance("a", ME)), Reported()
    actions = reconcile(state, free_slots(), desk(fetches={M: FAILED}), told)
    assert refusals(actions) == [FAILED]
    assert actions[-1] == CancelFetch(M)
    again = ClusterState(instances=instance("a", ME, generation=2))
    assert reconcile(again, free_slots(), desk(), told) == [FetchModel(M)]


def test_a_failed_fetch_never_touches_a_ready_instance_of_the_same_model() -> None:
    table = free_slots()
    table.listed([Seen("00", True, 7, None)], 9.0)
    hello = SlotHello(
        slot="00", pid=7, boot=Boot("b"), protocol_min=1, protocol_max=1, phase="ready",
        instance=InstanceId("a"), generation=1,
    )  # fmt: skip
    table.take_hello(hello, 9.5)
    running = instance("a", ME, status="ready")
    for extra in ({}, instance("b", ME)):
        state = ClusterState(instances={**running, **extra})
        actions = reconcile(state, table, desk(fetches={M: FAILED}), Reported())
        assert all(isinstance(one, Tell | CancelFetch) for one in actions)
        told = [one.fact for one in actions if isinstance(one, Tell)]
        assert [fact.instance for fact in told if isinstance(fact, LoadRefused)] == list(extra)
    assert table.slots["00"].life == "ready"


def test_memory_is_judged_before_a_fetch_and_after_it_but_not_meanwhile() -> None:
    state = ClusterState(instances=instance("a", ME))
    short = {"free_bytes": 0}
    begins = replace(desk(), **short)
    (refusal,) = refusals(reconcile(state, free_slots(), begins, Reported()))
    assert refusal.reason == "insufficient_memory"
    assert (
        reconcile(state, free_slots(), replace(desk(fetches={M: None}), **short), Reported()) == []
    )
    (refusal,) = refusals(
        reconcile(state, free_slots(), replace(desk(here=True), **short), Reported())
    )
    assert refusal.reason == "insufficient_memory"


def test_a_model_that_nobody_has_is_refused_once_all_cards_have_come() -> None:
    state = ClusterState(instances=instance("a", ME))
    nobody = desk(announced={OTHER: frozenset()}, has_heard=False)
    assert reconcile(state, free_slots(), nobody, Reported()) == []
    nobody = desk(announced={OTHER: frozenset()})
    (refusal,) = refusals(reconcile(state, free_slots(), nobody, Reported()))
    assert refusal.reason == "unknown_model"
    assert "no longer on the disk of this or any other node" in refusal.message


def test_no_rank_starts_while_another_rank_has_yet_to_get_the_weights() -> None:
    state = ClusterState(instances=instance("a", ME, OTHER, THIRD))
    has, lacks = frozenset({M}), frozenset[ModelId]()
    waits = desk(here=True, announced={OTHER: lacks, THIRD: has})
    assert reconcile(state, free_slots(), waits, Reported()) == []
    for known in ({OTHER: has, THIRD: has}, {OTHER: has}):
        (started,) = reconcile(state, free_slots(), desk(here=True, announced=known), Reported())
        assert isinstance(started, StartSlot)


# --- parts ---

LLAMA = ModelCard(
    model=M, path="/x", family="llama", layers=4, weights_bytes=1, size_bytes=1,
    kv_bytes_per_token=1, context_tokens=1, vocabulary=1, fetched_in_parts=True,
)  # fmt: skip
UNDIVIDED = LLAMA.model_copy(update={"fetched_in_parts": False})


def pipeline(sharding: str = "pipeline") -> ClusterState:
    """Layers 2 and 3 here, where the lead is; 0 and 1 at the other."""
    (made,) = instance("a", ME, OTHER).values()
    shards = tuple(
        shard.model_copy(update={"first_layer": first, "last_layer": first + 2})
        for shard, first in zip(made.shards, (2, 0), strict=True)
    )
    update = {"shards": shards, "sharding": sharding}
    return ClusterState(instances={"a": made.model_copy(update=update)})


def part(spans: set[tuple[int, int]]) -> PartialModel:
    return PartialModel(model=M, layers=tuple(spans), have_bytes=1, size_bytes=2)


def part_desk(
    held: set[tuple[int, int]],
    *,
    there: set[tuple[int, int]] | None = None,
    offered: ModelCard = LLAMA,
    **more: Any,
) -> NodeInventory:
    """The third has the whole model; the other what is `there`, if anything."""
    parts = () if there is None else (part(there),)
    whole = card(THIRD).model_copy(update={"models": (offered,)})
    found = desk()
    elsewhere = replace(
        found.elsewhere, cards={OTHER: card(OTHER, parts=parts), THIRD: whole}, **more
    )
    return replace(found, parts={M: part(held)}, elsewhere=elsewhere)


def test_a_stage_fetches_its_layers_alone_and_a_tensor_rank_the_whole() -> None:
    assert reconcile(pipeline(), free_slots(), part_desk(set()), Reported()) == [
        FetchModel(M, Layers(2, 4, 4))
    ]
    for state, offered in ((pipeline("tensor"), LLAMA), (pipeline(), UNDIVIDED)):
        found = reconcile(state, free_slots(), part_desk(set(), offered=offered), Reported())
        assert found == [FetchModel(M)]


def test_a_part_that_covers_a_stage_is_enough_here_and_there() -> None:
    waits = part_desk({(2, 4)})
    assert reconcile(pipeline(), free_slots(), waits, Reported()) == []
    for there in ({(0, 1)}, {(2, 4)}):
        known = part_desk({(2, 4)}, there=there)
        assert reconcile(pipeline(), free_slots(), known, Reported()) == []
    known = part_desk({(2, 4)}, there={(0, 1), (1, 2)})
    (started,) = reconcile(pipeline(), free_slots(), known, Reported())
    assert isinstance(started, StartSlot)


def test_a_part_is_no_whole_for_a_single_copy_or_a_tensor_rank() -> None:
    single = ClusterState(instances=instance("a", ME))
    everything = part_desk({(0, 4)})
    assert reconcile(single, free_slots(), everything, Reported()) == [FetchModel(M)]
    assert reconcile(pipeline("tensor"), free_slots(), everything, Reported()) == [FetchModel(M)]


def test_other_layers_are_fetched_once_those_under_way_have_come() -> None:
    under_way = part_desk({(0, 2)}, fetches={M: None})
    assert reconcile(pipeline(), free_slots(), under_way, Reported()) == []
    came = part_desk({(0, 2)}, fetches={M: None}, arrived=frozenset({M}))
    assert reconcile(pipeline(), free_slots(), came, Reported()) == [FetchModel(M, Layers(2, 4, 4))]


def test_parts_are_announced_and_are_no_source() -> None:
    sources = Sources(ME)
    half = part({(0, 2)})
    sources.take_card(card(OTHER, parts=(half,), weights_addresses=("tcp://10.0.0.2:1",)), 0.0)
    sources.take_card(card(THIRD, "m", weights_addresses=("tcp://10.0.0.3:1",)), 0.0)
    living = sources.living(1.0)
    assert (living[OTHER].parts, living[OTHER].models) == ((half,), ())
    assert [source.node for source in sources.stores_with(M, 1.0)] == [THIRD]
    elsewhere = replace(NOTHING_ELSEWHERE, cards=living)
    assert elsewhere.offered(M) == living[THIRD].models[0]
    assert elsewhere.offered(ModelId("another")) is None


def test_an_idle_runner_is_not_given_a_task_whose_weights_are_still_coming() -> None:
    table = free_slots(1)
    table.listed([Seen("00", True, 7, None)], 9.0)
    idle = SlotHello(slot="00", pid=7, boot=Boot("b"), protocol_min=1, protocol_max=1, phase="idle")
    table.take_hello(idle, 9.5)
    state = ClusterState(instances=instance("a", ME))
    actions = reconcile(state, table, desk(fetches={M: None}), Reported())
    assert refusals(actions) == []
    assert [type(one) for one in actions] == [RefuseSlot]


# --- who has what ---


def card(node: NodeId, *models: str, at_s: float = 1.0, **more: Any) -> NodeCard:
    cards = tuple(
        ModelCard(
            model=ModelId(name), path="/x", family="f", layers=1, weights_bytes=1, size_bytes=1,
            kv_bytes_per_token=1, context_tokens=1, vocabulary=1,
        )
        for name in models
    )  # fmt: skip
    return NodeCard(
        node=node, name=node, platform="p", cores=1, memory_bytes=1, backends=(), mlx_version="",
        shoal_version="", slots=1, models=cards, announced_at_s=at_s, **more,
    )  # fmt: skip


def test_sources_are_other_nodes_whose_living_cards_name_model_and_address() -> None:
    sources = Sources(ME)
    address = "tcp://10.0.0.2:24155"
    sources.take_card(card(ME, "m", weights_addresses=("tcp://10.0.0.1:24155",)), 0.0)
    sources.take_card(card(OTHER, "m", weights_addresses=(address, "ipc:///tmp/x")), 0.0)
    sources.take_card(card(THIRD, "m"), 0.0)
    assert sources.stores_with(M, 1.0) == [StoreAddress(OTHER, address)]
    assert set(sources.living(1.0)) == {OTHER, THIRD}
    sources.take_card(card(OTHER, at_s=0.5, weights_addresses=(address,)), 2.0)
    assert sources.stores_with(M, 2.0), "an older card changes nothing"
    sources.take_card(card(OTHER, at_s=2.0, weights_addresses=(address,)), 2.0)
    assert sources.stores_with(M, 2.0) == []
    assert sources.living(200.0) == {}


def test_a_node_that_keeps_everything_is_the_only_source_where_it_is_preferred() -> None:
    sources = Sources(ME)
    for node, at in ((OTHER, "10.0.0.2"), (THIRD, "10.0.0.3")):
        sources.take_card(card(node, "m", weights_addresses=(f"tcp://{at}:24155",)), 0.0)
    sources.take_storage(StorageReading(node=OTHER, limit_bytes=0), 0.0)
    sources.take_storage(StorageReading(node=THIRD, limit_bytes=0, keeps_all=True), 0.0)
    sources.take_storage(StorageReading(node=ME, limit_bytes=0, keeps_all=True), 0.0)
    assert sources.keeping_all(1.0) == {THIRD}
    assert [one.node for one in sources.stores_with(M, 1.0)] == [OTHER, THIRD]
    assert [one.node for one in sources.stores_with(M, 1.0, preferred=True)] == [THIRD]
    assert sources.stores_with(ModelId("another"), 1.0, preferred=True) == []
    sources.take_card(card(THIRD, at_s=2.0), 1.0)
    assert [one.node for one in sources.stores_with(M, 1.0, preferred=True)] == [OTHER]


def test_a_store_is_reached_by_tcp_at_a_host_and_port_and_no_other_way() -> None:
    good = ("tcp://10.0.0.2:24155", "tcp://box.local:1", "tcp://[fe80::1%en0]:65535")
    bad = (
        "ipc:///etc/x", "inproc://a", "tcp://*:5", "tcp://a:0", "tcp://a:65536", "tcp://a",
        "tcp://a:1;b:2", "tcp://a b:1", "", "tcp://a:1\n",
    )  # fmt: skip
    assert all(map(is_store_address, good))
    assert not any(map(is_store_address, bad))
