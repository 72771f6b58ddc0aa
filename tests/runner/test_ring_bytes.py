"""What tensor ranks exchange over a ring is counted at both ends, and is what a ring carries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bus.hardware.collective_test import ELEMENT_BYTES, is_skipped, order_of
from bus.links.traffic import read_traffic
from bus.wire.messages.collectives import CollectiveTest
from bus.wire.messages.requests import TokensPrompt
from runner.group.collectives import check_sizes
from runner.group.group_config import GREETING_BYTES
from runner.group.rank_channel import RING_LOOK_S
from tests.harness.ranks import become, group_spec, ready_group, started_ranks
from tests.harness.slot import ROOT, FakeGateway, Slot, request
from tests.harness.variants import mostly_proof

pytestmark = pytest.mark.slow

TINY = ROOT / "conf" / "tiny"
TINY_LAYERS, TINY_WIDTH = 8, 192
Ways = dict[tuple[int, int], tuple[int, int]]
"""(sent, received) bytes of one rank, by the rank and the other one."""


def exchanged(slots: Sequence[Slot]) -> Ways:
    """What the ranks have counted so far of what they exchange."""
    found: Ways = {}
    for rank, slot in enumerate(slots):
        for rows in read_traffic(Path(slot.endpoints.folder)).values():
            for one in rows:
                if one.plane == "exchange":
                    peer = int(one.peer.removeprefix("node-"))
                    found[rank, peer] = one.sent_bytes, one.received_bytes
    return found


def at_rest(slots: Sequence[Slot], listen: Callable[[], None]) -> Ways:
    """What they have counted once each has looked again and found nothing more. Who plays their
    peers goes on to `listen`, a moment each time."""
    before: Ways | None = None
    while (now := exchanged(slots)) != before:
        before = now
        until = time.monotonic() + 2.5 * RING_LOOK_S
        while time.monotonic() < until:
            listen()
    return now


def hear(slots: Sequence[Slot]) -> None:
    """Let the ranks' worker listen for a moment."""
    for slot in slots:
        slot.listen()
    time.sleep(0.02)


def sum_bytes(elements: int, ranks: int, element_bytes: int = ELEMENT_BYTES) -> int:
    """What all ranks together send for one sum: each of as many parts goes round twice, but for
    one step. Fewer elements than ranks are filled up."""
    return 2 * (ranks - 1) * max(elements, ranks) * element_bytes


def assert_both_ends_agree(ways: Ways) -> None:
    for (rank, peer), (sent, received) in ways.items():
        assert ways[peer, rank] == (received, sent)


def suite_bytes(test: CollectiveTest, ranks: int) -> int:
    """What all ranks together send in a test: proofs, a barrier, checks, and rounds."""
    gathered = GREETING_BYTES * (ranks - 1) * ranks
    total = gathered + sum_bytes(1, ranks)
    for elements in check_sizes(test, ranks):
        each = elements * ELEMENT_BYTES
        total += sum_bytes(elements, ranks) + each * (ranks - 1) * ranks + 2 * each * ranks
    total += (test.latency_warm_ups + test.latency_rounds) * sum_bytes(1, ranks)
    for elements in test.sizes:
        if not is_skipped(test, elements):
            total += (test.warm_ups + test.rounds) * sum_bytes(elements, ranks)
    return total


@contextlib.contextmanager
def measured_ring(test: CollectiveTest, ranks: int) -> Iterator[list[Slot]]:
    """A ring on which a collective test has been made whole."""
    fields = {"test": test, "memory_limit_bytes": 2 << 30}
    group = group_spec("tensor", [(0, 0)] * ranks)
    with started_ranks(Path("/nonexistent"), group, **fields) as slots:
        become(slots)
        yield slots


@pytest.mark.parametrize("ranks", mostly_proof([2, 3], [2]))
def test_the_bytes_of_a_ring_are_those_of_the_exchanges_that_were_made(ranks: int) -> None:
    test = order_of("quick", 1 << 20)
    expected = suite_bytes(test, ranks)
    with measured_ring(test, ranks) as slots:
        end = time.monotonic() + 90.0
        while sum(sent for sent, _ in exchanged(slots).values()) < expected:
            assert time.monotonic() < end, exchanged(slots)
            assert all(slot.ended is None for slot in slots)
            hear(slots)
        ways = at_rest(slots, lambda: hear(slots))
    assert sum(sent for sent, _ in ways.values()) == expected
    assert set(ways) == {(one, other) for one in range(ranks) for other in range(ranks)} - {
        (rank, rank) for rank in range(ranks)
    }
    assert_both_ends_agree(ways)


@pytest.mark.proof
def test_a_token_of_a_tensor_pair_costs_a_sum_for_each_cut_block_and_one_of_itself() -> None:
    with ready_group(TINY, "tensor", [(0, TINY_LAYERS)] * 2) as (slots, gateway):
        found = [at_rest(slots, gateway.listen)]
        for name, seed, tokens in (("few", 3, 20), ("many", 5, 84)):
            answered(gateway, name, seed, tokens)
            found.append(at_rest(slots, gateway.listen))
    for ways in found:
        assert_both_ends_agree(ways)
    sent = [sum(sent for sent, _ in ways.values()) for ways in found]
    # attention and MLP of each layer in float32, by traces in most steps; the token is an int32
    step = 2 * TINY_LAYERS * sum_bytes(TINY_WIDTH, 2) + sum_bytes(1, 2)
    few, many = sent[1] - sent[0], sent[2] - sent[1]
    # whether all can trace by now is asked some steps apart: a few bytes, until they can
    assert abs(many - few - (84 - 20) * step) < step // 100
    assert few > 20 * step


def answered(gateway: FakeGateway, name: str, seed: int, tokens: int) -> None:
    """Have a prompt of a fixed length, unlike any other, answered with so many tokens."""
    prompt = TokensPrompt(token_ids=tuple(300 + (seed * at) % 97 for at in range(24)))
    stream = gateway.submit(request(name, prompt=prompt, max_tokens=tokens))
    gateway.ended(stream)
    assert stream.tokens == tokens
