"""Kept answers: bounded, in their owner's hands alone, and none at another's cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.dialect import KeptAnswer
from gateway.records import AnswerStore
from gateway.records.store import LARGEST_BYTES, size_of


def _kept(size: int) -> KeptAnswer:
    return KeptAnswer(b"x" * (size - size // 2), (b"y" * (size // 2),))


def test_an_owner_finds_its_answers_and_no_others() -> None:
    store = AnswerStore()
    assert store.keep("a", "1", _kept(10))
    assert store.find("a", "1") == _kept(10)
    assert store.find("b", "1") is None and not store.remove("b", "1")
    assert store.remove("a", "1") and not store.remove("a", "1")
    assert (store.count, store.size_bytes) == (0, 0)


def test_the_oldest_goes_when_there_are_too_many_or_too_much() -> None:
    few = AnswerStore(most_answers=2)
    small = AnswerStore(most_bytes=25)
    for store in (few, small):
        for name in "123":
            assert store.keep("a", name, _kept(10))
        assert [store.find("a", name) is None for name in "123"] == [True, False, False]


def test_an_owner_who_keeps_much_pays_for_it_alone() -> None:
    store = AnswerStore(most_answers=10, most_bytes=1000)
    store.keep("quiet", "1", _kept(100))
    for count in range(50):
        store.keep("many", str(count), _kept(1))
    for count in range(50):
        store.keep("large", str(count), _kept(300))
    assert store.find("quiet", "1") is not None


def test_an_answer_that_is_too_large_is_not_kept_and_costs_nothing() -> None:
    store = AnswerStore()
    store.keep("a", "1", _kept(10))
    assert not store.keep("a", "2", _kept(LARGEST_BYTES + 1))
    assert store.find("a", "1") is not None and store.find("a", "2") is None


def test_an_answer_kept_anew_counts_once() -> None:
    store = AnswerStore()
    store.keep("a", "1", _kept(10))
    store.keep("a", "1", _kept(30))
    assert (store.count, store.size_bytes) == (1, 30)


STEPS = st.tuples(
    st.sampled_from(["keep", "remove"]),
    st.sampled_from("abc"),
    st.sampled_from("12345"),
    st.integers(1, 40),
)


@given(st.lists(STEPS, max_size=60))
def test_what_is_counted_is_what_is_kept_and_within_bounds(
    steps: list[tuple[str, str, str, int]],
) -> None:
    store = AnswerStore(most_answers=6, most_bytes=100)
    for verb, owner, name, size in steps:
        if verb == "keep":
            store.keep(owner, name, _kept(size))
        else:
            store.remove(owner, name)
            assert store.find(owner, name) is None
        found = [store.find(owner, name) for owner in "abc" for name in "12345"]
        kept = [one for one in found if one is not None]
        assert store.count == len(kept) <= 6
        assert store.size_bytes == sum(map(size_of, kept)) <= 100
