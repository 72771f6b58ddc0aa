"""What MLX's backends are told, against the formats that its documentation gives."""

from __future__ import annotations

import json

import pytest

from bus.wire.ids import NodeId
from bus.wire.messages.control import GroupSpec, RankSeat
from runner.group.group_config import (
    GREETING_BYTES,
    CannotForm,
    greeting,
    jaccl_devices,
    jaccl_environment,
    ring_environment,
    ring_hostfile,
    stranger,
    told_error,
)

SECRET = "ab" * 32


def group(*seats: RankSeat) -> GroupSpec:
    return GroupSpec(sharding="pipeline", ranks=seats, secret=SECRET)


def seat(rank: int, *ring: str, rdma: tuple[str, ...] = ()) -> RankSeat:
    return RankSeat(
        rank=rank, node=NodeId(f"n{rank}"), first_layer=0, last_layer=1, ring=ring, rdma=rdma
    )


def test_a_ring_is_one_list_of_addresses_for_each_rank() -> None:
    text = ring_hostfile(group(seat(0, "10.0.0.1:5000", "10.0.1.1:5000"), seat(1, "mac:5001")))
    assert json.loads(text) == [["10.0.0.1:5000", "10.0.1.1:5000"], ["mac:5001"]]
    assert ring_environment(1, "/x/h.json") == {"MLX_RANK": "1", "MLX_HOSTFILE": "/x/h.json"}


@pytest.mark.parametrize("bad", ["[::1]:5000", "10.0.0.1", ":5000", "fe80::1:5000"])
def test_an_address_that_a_ring_cannot_use_is_refused_by_rank(bad: str) -> None:
    with pytest.raises(CannotForm, match="rank 1"):
        ring_hostfile(group(seat(0, "10.0.0.1:5000"), seat(1, bad)))


def test_a_rank_without_an_address_is_named() -> None:
    with pytest.raises(CannotForm, match="rank 1 on node n1 has no ring address"):
        ring_hostfile(group(seat(0, "10.0.0.1:5000"), seat(1)))


def test_jaccl_gets_a_matrix_of_devices_with_nothing_on_the_diagonal() -> None:
    three = group(
        seat(0, rdma=("", "rdma_en2", "rdma_en3")),
        seat(1, rdma=("rdma_en4", "", "rdma_en5")),
        seat(2, rdma=("rdma_en2", "rdma_en3", "")),
    )
    assert json.loads(jaccl_devices(three)) == [
        [None, "rdma_en2", "rdma_en3"],
        ["rdma_en4", None, "rdma_en5"],
        ["rdma_en2", "rdma_en3", None],
    ]
    assert jaccl_environment(2, "/x/d.json", "10.0.0.1:5000") == {
        "MLX_RANK": "2",
        "MLX_IBV_DEVICES": "/x/d.json",
        "MLX_JACCL_COORDINATOR": "10.0.0.1:5000",
    }


@pytest.mark.parametrize("rdma", [(), ("rdma_en2",), ("", ""), ("a", "b", "c")])
def test_a_rank_that_lacks_a_device_is_named(rdma: tuple[str, ...]) -> None:
    with pytest.raises(CannotForm, match="rank 1 on node n1"):
        jaccl_devices(group(seat(0, rdma=("", "rdma_en2")), seat(1, rdma=rdma)))


def test_only_a_rank_of_this_generation_with_the_key_greets_rightly() -> None:
    said = [greeting(SECRET, 4, rank) for rank in range(3)]
    assert all(len(one) == GREETING_BYTES for one in said)
    assert stranger(SECRET, 4, said) is None
    assert stranger(SECRET, 5, said) == 0
    assert stranger(SECRET, 4, [said[0], said[2], said[1]]) == 1
    assert stranger(SECRET, 4, [*said[:2], greeting("cd" * 32, 4, 2)]) == 2


def test_a_rank_that_was_lost_is_told_with_its_node_and_not_in_the_librarys_words() -> None:
    broke = "[ring] Receiving from socket 5 failed with errno 104"
    two, four = group(seat(0), seat(1)), group(*map(seat, range(4)))
    assert told_error(broke, two, 0) == (
        "rank 0 lost its connection to rank 1 on node n1: that runner or its machine is gone"
    )
    assert "to rank 1 on node n1 or rank 3 on node n3: that" in told_error(broke, four, 2)
    rdma = four.model_copy(update={"backend": "jaccl"})
    told = told_error("[jaccl] Recv failed", rdma, 2)
    assert [name in told for name in ("rank 0", "rank 1", "n2", "rank 3")] == [True] * 2 + [
        False,
        True,
    ]
    for other in (two, None):
        assert told_error("out of memory", other, 0) == "out of memory"
