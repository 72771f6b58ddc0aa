"""Tells the story that the recorded journal holds: one event of every kind, in an order in which
each of them changes something.

`story` is the same at every call. Its instances are specimens, so that every field of what a
journal keeps is filled.
"""

from __future__ import annotations

from bus.replica.state import ClusterState, apply
from bus.wire.api_keys import ApiKey
from bus.wire.errors import Refusal
from bus.wire.ids import Boot, CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Conditions, Instance, RankSeat, Setbacks
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.events import (
    ApiKeyAdded,
    ApiKeyChanged,
    ApiKeyRemoved,
    CloudFallbackAllowed,
    DerivedForgotten,
    Event,
    EventBody,
    FactId,
    GenerationOpened,
    InstanceDraining,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    InstanceYields,
    KeepAliveSet,
    LeaseAskedBack,
    LeaseEnded,
    LeaseGranted,
    LoadRefused,
    ModelDerived,
    ModelPinned,
    ModelUnpinned,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeRemembered,
    NodeRenamed,
    RankSeated,
    RunnerEnded,
    RunnerReady,
    RunnerUnloaded,
    SetbacksCounted,
    TermOpened,
    TracingSet,
)
from bus.wire.pool import Lease, LeaseId, Pin
from tests.recorded.specimens import full, least

N1, N2, N3 = NodeId("n0000000001"), NodeId("n0000000002"), NodeId("n0000000003")
WHOLE, SPLIT, LOST = InstanceId("inst-1"), InstanceId("inst-2"), InstanceId("inst-3")
LEASE = LeaseId("lease-0001")
AT_S = 1_700_000_000.25


def placed(name: InstanceId, *, ranks: int) -> InstancePlaced:
    """Make an instance's placing, with as many ranks, before anything has happened to it."""
    made = full(Instance, turn=1)
    fresh = {
        "instance": name,
        "generation": 1,
        "status": "placed",
        "shards": made.shards[:ranks],
        "seats": (),
        "ready": (),
        "failures": (),
        "drain_deadline_s": None,
        "place_again": None,
    }
    return InstancePlaced(instance=made.model_copy(update=fresh))


def ready(name: InstanceId, generation: int, rank: int, node: NodeId) -> RunnerReady:
    """Make the announcement of a rank."""
    return RunnerReady(
        instance=name,
        generation=generation,
        rank=rank,
        node=node,
        process=f"runner:0{rank}",
        pid=4000 + rank,
        addresses=(f"ipc:///tmp/runner-0{rank}.data", f"tcp://10.0.0.{rank + 1}:24160"),
    )


def bodies() -> list[EventBody]:
    """List what happened, in order."""
    seat = full(RankSeat)
    refusal = full(Refusal, turn=8)
    return [
        TermOpened(holder=N1, counter=1),
        NodeJoined(node=N1, name="box-1", addresses=("10.0.0.1:24154", "[fd00::1]:24154")),
        NodeJoined(node=N2, name="box-2"),
        NodeJoined(node=N3, name="box-3", addresses=("10.0.0.3:24154",)),
        NodeRenamed(node=N2, name="the second"),
        NodeDrained(node=N1, draining=True),
        placed(WHOLE, ranks=1),
        ready(WHOLE, 1, 0, N1),
        KeepAliveSet(instance=WHOLE, keep_alive_s=-1.0),
        placed(SPLIT, ranks=2),
        RankSeated(instance=SPLIT, generation=1, seat=seat.model_copy(update={"rank": 1})),
        RankSeated(instance=SPLIT, generation=1, seat=seat.model_copy(update={"rank": 0})),
        ready(SPLIT, 1, 1, N2),
        RunnerEnded(instance=SPLIT, generation=1, rank=1, node=N2, exit_code=-9, message="killed"),
        GenerationOpened(instance=SPLIT, generation=2, why="rank 1 ended"),
        LoadRefused(instance=SPLIT, generation=2, rank=0, node=N1, refusal=refusal),
        InstanceFailed(instance=SPLIT, why="ended too often", place_again=full(Conditions)),
        placed(LOST, ranks=1),
        InstanceDraining(instance=LOST, deadline_s=12.5, why="asked to"),
        RunnerUnloaded(instance=LOST, generation=1, rank=0, node=N3),
        InstanceRemoved(instance=LOST, why="asked to"),
        SetbacksCounted(setbacks=full(Setbacks)),
        SetbacksCounted(setbacks=Setbacks(model=ModelId("well"), in_a_row=1)),
        SetbacksCounted(setbacks=Setbacks(model=ModelId("well"))),
        ModelPinned(pin=full(Pin)),
        ModelPinned(pin=Pin(model=ModelId("let-go"))),
        ModelUnpinned(model=ModelId("let-go")),
        LeaseGranted(lease=full(Lease)),
        LeaseGranted(lease=Lease(lease=LEASE, node=N1, size_bytes=1 << 30, ttl_s=30.0)),
        LeaseAskedBack(lease=LEASE, to="m2", why="m2 is more urgent"),
        LeaseAskedBack(lease=LEASE, why="it is not wanted any more"),
        LeaseEnded(lease=LEASE, why="given back"),
        InstanceYields(instance=WHOLE, to="m2", why="makes way for m2"),
        InstanceYields(instance=WHOLE, why="it is not wanted any more"),
        InstanceYields(instance=WHOLE, to="m2", why="makes way for m2", urgently=True),
        TermOpened(holder=N2, counter=2),
        NodeForgotten(node=N3),
        NodeForgotten(node=N1),
        NodeRemembered(node=N1),
        NodeJoined(node=N2, name="box-2b", addresses=("10.0.0.2:24154",)),
        InstanceDraining(instance=WHOLE, deadline_s=0.0, why="drained"),
        ModelDerived(derived=full(DerivedModel)),
        ModelDerived(derived=DerivedModel(name=ModelId("copied"), base=ModelId("m"))),
        DerivedForgotten(name=ModelId("copied")),
        ApiKeyAdded(key=full(ApiKey)),
        ApiKeyAdded(key=least(ApiKey)),
        ApiKeyChanged(key=full(ApiKey, turn=1).model_copy(update={"id": full(ApiKey).id})),
        ApiKeyRemoved(key_id=least(ApiKey).id),
        TracingSet(ratio=0.25),
        TracingSet(),
        TracingSet(ratio=1.0),
        CloudFallbackAllowed(allowed=False),
    ]


def story() -> list[Event]:
    """Make the events: decisions by a command, facts with their witness, two terms."""
    events: list[Event] = []
    counter, holder = 0, N1
    for index, body in enumerate(bodies(), 1):
        if isinstance(body, TermOpened):
            counter, holder = body.counter, body.holder
        witness = body.node if isinstance(body, NodeJoined | RunnerReady | RunnerEnded) else None
        fact = None
        if witness is not None:
            fact = FactId(node=witness, process="worker", boot=Boot(f"b-{witness}"), seq=index)
        told = isinstance(body, InstancePlaced | InstanceDraining | KeepAliveSet | NodeRenamed)
        events.append(
            Event(
                term=counter,
                index=index,
                at_s=AT_S + index,
                body=body,
                fact=fact,
                command_id=CommandId(f"cmd-{index:08x}") if told else None,
                holder=holder,
            )
        )
    return events


def folded(state: ClusterState, events: list[Event]) -> ClusterState:
    """Apply events to a state, in order."""
    for event in events:
        state = apply(state, event)
    return state
