"""Which copies are made: only those that are expected to be faster than computing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus.models.kv import BLOCK_TOKENS
from bus.wire.ids import ModelId, NodeId
from bus.wire.kv import RunOffered, SeekRun
from worker.transfer.kv_moves.choice import choose, saved_s
from worker.transfer.source import StoreAddress

MOST = 1 << 32
TOKENS = 8_000


def question(saves_s: tuple[float, ...], have: int = 0, read: float = 1e9) -> SeekRun:
    return SeekRun(
        model=ModelId("m"),
        prompt="p",
        folder="f",
        how="h",
        tokens=TOKENS,
        have=have,
        hashes=b"",
        saves_s=saves_s,
        read_bytes_per_s=read,
    )


def offer(blocks: int, size: int = 100 << 20, limit: float = 0.0) -> RunOffered:
    return RunOffered(blocks=blocks, name="n", size_bytes=size, limit_bytes_per_s=limit)


def at(node: str) -> StoreAddress:
    return StoreAddress(NodeId(node), f"tcp://{node}:1")


OFFERS = st.dictionaries(
    st.sampled_from([at("a"), at("b"), at("c")]),
    st.builds(
        offer,
        st.integers(min_value=0, max_value=140),
        st.integers(min_value=0, max_value=1 << 33),
        st.sampled_from([0.0, 1e5, 1e8]),
    ),
)
SPEEDS = st.dictionaries(st.sampled_from([at("a"), at("b")]), st.floats(1.0, 1e10))
SAVES = st.lists(st.floats(min_value=0.0, max_value=100.0), min_size=1, max_size=8)


@given(OFFERS, SPEEDS, SAVES, st.integers(min_value=0, max_value=TOKENS - 1))
def test_a_copy_is_only_made_if_it_is_faster_and_never_waited_for_longer_than_computing(
    offers: dict[StoreAddress, RunOffered],
    speeds: dict[StoreAddress, float],
    saves: list[float],
    have: int,
) -> None:
    asked = question(tuple(sorted(saves)), have)
    choice = choose(asked, offers, speeds, MOST)
    worth = {
        source: saved_s(asked, BLOCK_TOKENS * offered.blocks) for source, offered in offers.items()
    }
    if choice is None:
        for source, offered in offers.items():
            speed = min(speeds.get(source, 0.0), offered.limit_bytes_per_s or 1e99)
            if speed > 0 and 0 < offered.size_bytes <= MOST:
                needed_s = 0.05 + offered.size_bytes / speed + offered.size_bytes / 1e9
                assert needed_s >= worth[source] - 1e-9
        return
    assert choice.source in speeds and choice.offered.size_bytes <= MOST
    assert choice.expected_s < worth[choice.source]
    assert 0 < choice.wait_s <= worth[choice.source]


def test_one_gigabit_pays_and_one_megabit_does_not() -> None:
    """A run of 131 MB that takes 80 s to compute."""
    asked = question(tuple(10.0 * step for step in range(1, 9)))
    offers = {at("a"): offer(125, 131 << 20)}
    for speed in (1.17e9, 0.117e9, 2e6):
        assert choose(asked, offers, {at("a"): speed}, MOST) is not None
    for speed in (1e6, 0.12e6):
        assert choose(asked, offers, {at("a"): speed}, MOST) is None


def test_the_fastest_of_equal_offers_is_taken() -> None:
    asked = question((5.0, 10.0))
    offers = {at("a"): offer(125), at("b"): offer(125)}
    choice = choose(asked, offers, {at("a"): 1e7, at("b"): 1e8}, MOST)
    assert choice is not None and choice.source == at("b")


def test_a_beginning_saves_only_the_steps_that_it_has() -> None:
    asked = question((1.0, 2.0, 4.0, 8.0), have=0)
    assert [saved_s(asked, length) for length in (0, 1_999, 2_000, 4_500, 7_936, TOKENS)] == [
        0.0, 0.0, 1.0, 2.0, 8.0, 8.0,
    ]  # fmt: skip
    assert saved_s(question((1.0,), have=TOKENS - 64), 0) == 0.0
