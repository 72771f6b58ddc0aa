"""The prefix index against a naive one, and its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runner.engine import EntryId
from runner.schedule.prefixes import PrefixIndex, TokenChain


def index(**changes: int) -> PrefixIndex:
    settings = {"limit_bytes": 10_000, "bytes_per_token": 1} | changes
    return PrefixIndex(**settings)


def keep(prefixes: PrefixIndex, tokens: list[int]) -> EntryId | None:
    kept = prefixes.keep(TokenChain(tokens), len(tokens), room_bytes=1 << 30)
    prefixes.validate_state()
    return kept.entry if kept else None


def test_the_longest_beginning_is_found_to_the_token() -> None:
    prefixes = index()
    keep(prefixes, list(range(200)))
    entry = keep(prefixes, [*range(150), *range(1000, 1100)])
    match = prefixes.find(TokenChain([*range(150), *range(1000, 1050), 7, 7]))
    assert match is not None
    assert (match.entry, match.length) == (entry, 200)


def test_an_exact_repeat_leaves_one_token() -> None:
    prefixes = index()
    keep(prefixes, list(range(128)))
    match = prefixes.find(TokenChain(range(128)))
    assert match is not None
    assert match.length == 127


def test_less_than_a_block_is_neither_kept_nor_found() -> None:
    prefixes = index()
    assert keep(prefixes, list(range(63))) is None
    keep(prefixes, list(range(64)))
    assert prefixes.find(TokenChain(range(64))) is None
    assert prefixes.find(TokenChain(range(65))) is not None


def test_nothing_is_kept_twice() -> None:
    prefixes = index()
    first = keep(prefixes, list(range(300)))
    assert keep(prefixes, list(range(300))) is None
    assert keep(prefixes, list(range(200))) is None
    kept = prefixes.keep(TokenChain(range(500)), 500, room_bytes=10_000)
    assert kept is not None
    assert kept.evict == (first,)
    assert len(prefixes) == 1


def test_the_least_recently_used_goes_first_and_held_ones_stay() -> None:
    prefixes = index(limit_bytes=300)
    entries = [keep(prefixes, [salt] * 100) for salt in (1, 2, 3)]
    assert entries[0] is not None
    prefixes.hold(entries[0])
    kept = prefixes.keep(TokenChain([4] * 100), 100, room_bytes=10_000)
    assert kept is not None
    assert kept.evict == (entries[1],)
    prefixes.release(entries[0])
    assert prefixes.make_room(100) == [entries[2], entries[0]]


def test_without_trimming_only_whole_entries_serve() -> None:
    prefixes = PrefixIndex(limit_bytes=10_000, bytes_per_token=1, trims=False)
    keep(prefixes, list(range(200)))
    assert prefixes.find(TokenChain([*range(199), 7, 8, 9])) is None
    match = prefixes.find(TokenChain(range(201)))
    assert match is not None
    assert match.length == 200


tokens_of_few_blocks = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=6).map(
    lambda blocks: [token for block in blocks for token in [block] * 8]
)


@given(
    kept=st.lists(st.tuples(tokens_of_few_blocks, st.integers(0, 7)), max_size=12),
    asked=tokens_of_few_blocks,
    cut=st.integers(0, 7),
    trims=st.booleans(),
)
def test_a_naive_search_finds_the_same_length(
    kept: list[tuple[list[int], int]], asked: list[int], cut: int, trims: bool
) -> None:
    prefixes = PrefixIndex(limit_bytes=150, bytes_per_token=1, trims=trims, block_tokens=8)
    held: dict[EntryId, list[int]] = {}
    for tokens, short in kept:
        tokens = tokens[: len(tokens) - short]
        new = prefixes.keep(TokenChain(tokens, 8), len(tokens), room_bytes=1000)
        prefixes.validate_state()
        if new is not None:
            for entry in new.evict:
                del held[entry]
            held[new.entry] = tokens
    asked = asked[: len(asked) - cut]
    best = 0
    for tokens in held.values():
        same = 0
        while same < min(len(tokens), len(asked)) and tokens[same] == asked[same]:
            same += 1
        if not trims and same < len(tokens):
            continue
        if same >= 8 and (trims or same < len(asked)):
            best = max(best, min(same, len(asked) - 1))
    match = prefixes.find(TokenChain(asked, 8))
    assert (match.length if match else 0) == (best if best >= 8 else 0)


def test_a_copy_of_a_chain_is_as_long_and_grows_apart() -> None:
    chain = TokenChain(range(10), 8)
    twin = chain.copy()
    assert (twin.length, twin.hashes) == (10, chain.hashes)
    assert twin.end_hash(10) == chain.end_hash(10)
    twin.extend(range(10, 16))
    assert (chain.length, len(chain.hashes), len(twin.hashes)) == (10, 1, 2)
