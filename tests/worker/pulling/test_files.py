"""Any order of pieces, drops and wrong hashes ends with the right bytes or with a refusal."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import ModelId
from bus.wire.messages.weights import PIECE_BYTES
from worker.models.manifest import piece_count
from worker.pulling.fetching.files import MOST_SPOILT, PieceRun, PullFiles
from worker.pulling.listing import HubFile, HubListing, PullFailed
from worker.pulling.patience import Patience, PullTiming

RIGHT = hashlib.sha256(b"right").hexdigest()
WRONG = hashlib.sha256(b"wrong").hexdigest()
sizes = st.lists(st.integers(0, 5 * PIECE_BYTES), min_size=1, max_size=4)


def listing(of_sizes: list[int]) -> HubListing:
    files = [HubFile(f"{n}.json", size, "sha256", RIGHT) for n, size in enumerate(of_sizes)]
    return HubListing(ModelId("a/b"), "0" * 40, tuple(files))


def check_sums(files: PullFiles, known: HubListing, disk: dict[str, set[int]]) -> None:
    """`done_bytes` is what the disk holds, and nothing is whole that is not."""
    held = sum(
        min(PIECE_BYTES, file.size_bytes - index * PIECE_BYTES)
        for file in known.files
        for index in disk[file.path]
    )
    assert files.done_bytes == held
    assert files.landed == (held == known.total_bytes)
    for file in known.files:
        whole = len(disk[file.path]) == piece_count(file.size_bytes)
        assert (files.hashable(file.path) == file.size_bytes) == whole or file.size_bytes == 0


@given(sizes, st.integers(0, 1 << 32))
def test_any_order_of_pieces_and_drops_ends_right_or_refused(
    of_sizes: list[int], seed: int
) -> None:
    known = listing(of_sizes)
    files, disk = PullFiles(known, {}), {file.path: set[int]() for file in known.files}
    given_out: list[tuple[PieceRun, list[int]]] = []
    dice = random.Random(seed)
    faults = dice.randint(0, 3)
    for _ in range(500):
        if files.complete or files.refusal is not None:
            break
        run = files.next()
        if run is not None:
            assert run.begin < run.end and not disk[run.path] & set(range(run.first, run.last))
            given_out.append((run, list(range(run.first, run.last))))
        _carry_on(files, disk, given_out, dice)
        check_sums(files, known, disk)
        faults = _hash(files, known, disk, dice, faults)
        check_sums(files, known, disk)
    assert files.complete != (files.refusal is not None)
    if files.complete:
        assert all(len(disk[f.path]) == piece_count(f.size_bytes) for f in known.files)
        assert files.next() is None


def _carry_on(
    files: PullFiles, disk: dict[str, set[int]], given_out: Any, dice: random.Random
) -> None:
    """Let some of what was asked for land, and drop the rest now and then."""
    if not given_out:
        return
    at = dice.randrange(len(given_out))
    run, left = given_out[at]
    for index in left[: dice.randint(0, len(left))]:
        files.take(run.path, index)
        disk[run.path].add(index)
        left.remove(index)
    if not left or dice.random() < 0.5:
        del given_out[at]
        files.put_back(run)


def _hash(files: PullFiles, known: HubListing, disk: Any, dice: random.Random, faults: int) -> int:
    """Tell of the hash of a file that is whole, a wrong one while there are faults left."""
    for file in files.unchecked():
        if files.hashable(file.path) < file.size_bytes:
            continue
        wrong = faults > 0 and dice.random() < 0.5
        assert files.check(file.path, WRONG if wrong else RIGHT) is not wrong
        if wrong:
            disk[file.path].clear()
            return faults - 1
    return faults


@given(sizes, st.integers(0, 1 << 32))
def test_a_hub_without_ranges_is_asked_for_each_file_by_one_at_a_time(
    of_sizes: list[int], seed: int
) -> None:
    """Those that had asked before it was known leave the file to the first of them."""
    known, dice = listing(of_sizes), random.Random(seed)
    files = PullFiles(known, {})
    asked = [run for run in (files.next() for _ in range(4)) if run is not None]
    streams = [(run, stream) for run in asked if (stream := files.stream(run)) is not None]
    assert len({stream.path for _, stream in streams}) == len(streams)
    for run in asked:
        if run not in [streaming for streaming, _ in streams]:
            files.put_back(run)
    while not files.landed:
        if streams:
            run, stream = streams.pop()
        else:
            run = stream = files.next()
        assert run is not None and stream is not None
        others = list(iter(files.next, None))
        assert stream.path not in {one.path for one in others}, "nobody else asks for it"
        drops_at = dice.randint(stream.first, stream.last)
        for index in range(stream.first, drops_at):
            if files.wants(stream.path, index):
                files.take(stream.path, index)
        for one in (run, stream, *others):
            files.put_back(one)
    assert files.landed


@given(sizes)
def test_what_was_kept_is_not_asked_for_again(of_sizes: list[int]) -> None:
    known = listing(of_sizes)
    have = {f.path: bytes(n % 2 for n in range(piece_count(f.size_bytes))) for f in known.files}
    files = PullFiles(known, have)
    asked: dict[str, set[int]] = {file.path: set() for file in known.files}
    while (run := files.next()) is not None:
        asked[run.path] |= set(range(run.first, run.last))
    for path, noted in have.items():
        assert asked[path] == {index for index, one in enumerate(noted) if not one}


@given(sizes, st.integers(0, 1 << 32))
def test_only_wanted_pieces_are_handed_out_and_whole_files_are_hashed(
    of_sizes: list[int], seed: int
) -> None:
    known, dice = listing(of_sizes), random.Random(seed)
    counts = {file.path: piece_count(file.size_bytes) for file in known.files}
    wanted = {
        path: bytes(dice.randint(0, 1) for _ in range(count))
        for path, count in counts.items()
        if dice.random() < 0.7
    }
    have = {path: bytes(dice.randint(0, 1) for _ in range(n)) for path, n in counts.items()}
    files = PullFiles(known, have, frozenset(), wanted)
    asked: dict[str, set[int]] = {path: set() for path in counts}
    while (run := files.next()) is not None:
        assert not files.landed
        for index in range(run.first, run.last):
            assert files.wants(run.path, index)
            files.take(run.path, index)
            asked[run.path].add(index)
    assert files.landed and files.done_bytes == files.total_bytes
    for path, count in counts.items():
        mask = wanted.get(path, b"\1" * count)
        assert asked[path] == {n for n in range(count) if mask[n] and not have[path][n]}
    hashed = {file.path for file in files.unchecked()}
    assert hashed == {path for path in counts if all(wanted.get(path, b"\1"))}
    for path in hashed:
        assert not files.complete and files.check(path, RIGHT)
    assert files.complete


def test_notes_that_do_not_fit_a_file_are_forgotten() -> None:
    files = PullFiles(listing([3 * PIECE_BYTES]), {"0.json": b"\1\1"}, {"0.json"})
    assert files.done_bytes == 0 and not files.complete
    claimed = PullFiles(listing([2 * PIECE_BYTES]), {"0.json": b"\1\0"}, {"0.json"})
    assert not claimed.complete


def test_a_file_that_is_wrong_again_ends_the_pull() -> None:
    files = PullFiles(listing([10]), {"0.json": b"\1"})
    assert MOST_SPOILT == 2
    assert not files.check("0.json", WRONG) and files.refusal is None
    run = files.next()
    assert run is not None
    files.take(run.path, run.first)
    assert not files.check("0.json", WRONG)
    assert files.refusal is not None and files.refusal.reason == "spoilt"


def test_who_ends_late_gives_no_pieces_out_that_another_has_by_then() -> None:
    files = PullFiles(listing([2 * PIECE_BYTES]), {})
    late = files.next()
    assert late is not None
    for index in (0, 1):
        files.take(late.path, index)
    assert not files.check(late.path, WRONG)
    again = files.next()
    assert again is not None and files.next() is None
    files.put_back(late)
    assert files.next() is None
    files.put_back(again)
    assert files.next() is not None


TIMING = PullTiming(silence_s=10.0, pause_s=1.0, longest_s=4.0, asked_s=60.0, busy=2)


def dropped(reason: Any = "unreachable", after_s: float | None = None) -> PullFailed:
    return PullFailed(reason, "gone", again=True, retry_after_s=after_s)


def test_pauses_double_up_to_the_longest_and_what_comes_forgets_them() -> None:
    patience, now, pauses = Patience(0.0, TIMING), 0.0, list[float]()
    for _ in range(4):
        assert patience.failed(dropped(), now) is None
        pauses.append(patience.paused_until_at - now)
        now = patience.paused_until_at
        patience._silent_since_at = now  # pyright: ignore[reportPrivateUsage]
    assert pauses == [1.0, 2.0, 4.0, 4.0]
    patience.came(now)
    patience.failed(dropped(), now)
    assert patience.paused_until_at == now + 1.0


def test_silence_ends_a_pull_with_the_last_failure() -> None:
    patience = Patience(0.0, TIMING)
    failure = dropped()
    assert patience.failed(failure, 9.0) is None
    assert patience.judge(10.0) is failure
    fresh = Patience(0.0, TIMING).judge(10.0)
    assert fresh is not None and fresh.reason == "unreachable"


def test_a_hub_that_never_answered_is_given_up_sooner() -> None:
    timing = PullTiming(silence_s=90.0, unheard_s=15.0)
    patience, failure = Patience(0.0, timing), dropped()
    assert patience.failed(failure, 14.0) is None
    assert patience.judge(15.0) is failure
    heard = Patience(0.0, timing)
    heard.came(0.0)
    assert heard.failed(failure, 60.0) is None and heard.judge(90.0) is failure


def test_a_pause_that_is_asked_for_is_no_silence() -> None:
    patience = Patience(0.0, TIMING)
    assert patience.failed(dropped("rate_limited", 50.0), 5.0) is None
    assert patience.paused_until_at == 55.0
    assert patience.judge(60.0) is None and patience.judge(65.0) is not None


def test_a_hub_that_stays_busy_or_asks_for_too_long_is_given_up() -> None:
    patience = Patience(0.0, TIMING)
    assert patience.failed(dropped("rate_limited", 61.0), 0.0) is not None
    patience = Patience(0.0, TIMING)
    ends = [patience.failed(dropped("rate_limited"), float(n)) for n in range(3)]
    assert ends[:2] == [None, None] and ends[2] is not None


def test_what_is_for_good_ends_at_once() -> None:
    gone = PullFailed("not_found", "no")
    assert Patience(0.0, TIMING).failed(gone, 0.0) is gone
