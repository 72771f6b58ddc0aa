"""Decide which prefixes are written to disk, and which are read back because that is faster than
computing them (decision 0099). A run of KV is a prefix in a file.

Pure: time arrives as `now`. The shell passes the orders to the threads that read and write the
files (`PrefixDisk`), and their reports to `take`. A run is read for a row that waits for it. The
row waits no longer than computing the tokens would take. At most `MOST_READS` runs are being read
or were read and are not used yet, so their memory is bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from bus.models.kv import BLOCK_TOKENS, DiskOrder, DiskReport, DiskRun, RunNews, TokenChain
from runner.engine import EntryId
from runner.schedule.prefixes.index import PrefixIndex
from runner.schedule.prefixes.seeking import MoveFigures, RunSeeks

FIRST_BYTES_PER_S = 1e9
"""The assumed speed of the disk before the first file is read. It is high, so that a first file is
read and the speed is measured."""
NEWEST = 0.5
"""The weight of the newest read in the running average of the speed."""
GROWN = 8
"""A prefix is written only if more than 1 / `GROWN` of its tokens are not on disk yet."""
MOST_READS = 2
USED_WITHIN_S = 5.0
"""A run that was read is dropped if no row starts from it within this time."""
AGAIN_S = 60.0
"""A run that came too late is not read again before this time has passed."""
LOOK_S = 5.0
"""The least time between two searches of the folder for files that other runners wrote."""


@dataclass(frozen=True, slots=True)
class DiskMatch:
    """A run on disk whose first `length` tokens are those of a prompt."""

    run: DiskRun
    length: int


@dataclass(slots=True)
class DiskFigures:
    """Counts since the load: rows that started from a run (`hits`), the tokens that they took from
    it, and the bytes read and written. `runs`: how many are on the disk now. `moves`: copies from
    other nodes."""

    hits: int = 0
    hit_tokens: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    runs: int = 0
    moves: MoveFigures = field(default_factory=MoveFigures)


@dataclass(slots=True)
class _Reading:
    """A run that is being read, or was read (`arrived`). `until`: the instant at which the read is
    given up or, if no row used the run, its arrays are dropped."""

    expected_s: float
    until: float
    arrived: bool = False


@dataclass(slots=True)
class DiskIndex:
    """The runs of one model on disk, and the reads and writes that are under way."""

    least_tokens: int
    block_tokens: int = BLOCK_TOKENS
    bytes_per_s: float = FIRST_BYTES_PER_S
    figures: DiskFigures = field(default_factory=DiskFigures)
    seeks: RunSeeks = field(init=False)
    _index: PrefixIndex = field(init=False)
    _runs: dict[EntryId, DiskRun] = field(default_factory=dict[EntryId, DiskRun])
    _entries: dict[str, EntryId] = field(default_factory=dict[str, EntryId])
    _unwritten: dict[EntryId, TokenChain] = field(default_factory=dict[EntryId, TokenChain])
    """The chains of the runs that are to be written, by the entry that is kept in memory."""
    reads: dict[str, _Reading] = field(default_factory=dict[str, _Reading])
    _not_before: dict[str, float] = field(default_factory=dict[str, float])
    open_orders: list[DiskOrder] = field(default_factory=list[DiskOrder])
    _look_at: float = float("-inf")

    def __post_init__(self) -> None:
        self._index = PrefixIndex(sys.maxsize, 0, block_tokens=self.block_tokens)
        self.seeks = RunSeeks(self.least_tokens, figures=self.figures.moves)

    # --- reading -----------------------------------------------------------------------

    def waits(
        self,
        chain: TokenChain,
        have: int,
        prefill_s: Callable[[int], float],
        now: float,
        adapter: str = "",
    ) -> bool:
        """Return whether a row should wait until a run is read, instead of starting with the `have`
        tokens that are kept in memory. Orders the read if that is cheaper: `prefill_s` returns the
        expected seconds of computing the tokens from `have` up to another length. Other nodes are
        asked first, if the files of this disk leave much to compute."""
        match = self._better(chain, have)
        if match is None and chain.length >= self.least_tokens and now >= self._look_at:
            self._look_at = now + LOOK_S
            self.open_orders.append(DiskOrder("look"))
        there = have if match is None else match.length

        def more_s(length: int) -> float:
            """Return the expected seconds of computing from `there` to `length`."""
            return prefill_s(length) - prefill_s(there)

        if self.seeks.waits(chain, adapter, there, more_s, self.bytes_per_s, now):
            return True
        if match is None:
            return False
        name = match.run.name
        reading = self.reads.get(name)
        if reading is not None:
            return not reading.arrived and now < reading.until
        if len(self.reads) >= MOST_READS or now < self._not_before.get(name, now):
            return False
        before_s = sum(other.expected_s for other in self.reads.values() if not other.arrived)
        expected_s = match.run.size_bytes / self.bytes_per_s
        computing_s = prefill_s(match.length)
        if before_s + expected_s >= computing_s:
            return False
        self.reads[name] = _Reading(expected_s, now + computing_s)
        self.open_orders.append(DiskOrder("read", name))
        return True

    def ready(self, chain: TokenChain, have: int) -> DiskMatch | None:
        """Return a run that was read and has more tokens of this chain than the `have` in
        memory."""
        match = self._better(chain, have)
        if match is None or (reading := self.reads.get(match.run.name)) is None:
            return None
        return match if reading.arrived else None

    def use(self, match: DiskMatch) -> None:
        """Record that a row starts from a run that was read; the engine has its arrays now."""
        del self.reads[match.run.name]
        self.figures.hits += 1
        self.figures.hit_tokens += match.length

    def wake_at(self) -> float | None:
        """Return the next instant at which a row no longer waits for a run; None: no row does."""
        instants = [r.until for r in self.reads.values() if not r.arrived]
        if (until := self.seeks.wake_at()) is not None:
            instants.append(until)
        return min(instants, default=None)

    # --- writing -----------------------------------------------------------------------

    def wants(self, chain: TokenChain, length: int, evicted: Collection[EntryId]) -> bool:
        """Return whether to write the first `length` tokens of the chain: not if nearly as many are
        on disk or being written. `evicted` are entries that will not be written after all."""
        if length < self.least_tokens:
            return False
        there = [self._better(chain, 0)]
        saved = max((match.length for match in there if match is not None), default=0)
        for entry, other in self._unwritten.items():
            if entry not in evicted:
                pairs = zip(chain.hashes, other.hashes, strict=False)
                saved = max(saved, self.block_tokens * sum(a == b for a, b in pairs))
        return length - saved > max(length // GROWN, self.block_tokens)

    def save(self, entry: EntryId, chain: TokenChain, length: int, adapter: str) -> DiskRun:
        """Return the run to write: the first `length` tokens, which are kept as `entry`."""
        tokens = chain.first(length)
        self._unwritten[entry] = TokenChain(tokens, self.block_tokens, seed=chain.seed)
        return DiskRun(chain.run_name(length), chain.seed, tokens, adapter)

    def saved(self, chain: TokenChain) -> int:
        """Return how many tokens of the chain are on disk."""
        match = self._better(chain, 0)
        return 0 if match is None else match.length

    def is_writing(self, chain: TokenChain) -> bool:
        """Return whether a beginning of this chain is being written."""
        return any(
            other.hashes and other.hashes == chain.hashes[: len(other.hashes)]
            for other in self._unwritten.values()
        )

    # --- the shell's side ----------------------------------------------------------------

    def take(self, reports: Sequence[DiskReport], now: float) -> None:
        """Record what happened to runs."""
        for report in reports:
            self._take(report, now)

    def take_news(self, news: RunNews, now: float) -> None:
        """Record the answer of other nodes, or the end of a copy. If a file has arrived on the
        disk, order a search for it."""
        if self.seeks.take(news, now):
            self.open_orders.append(DiskOrder("look"))

    def counts(self) -> DiskFigures:
        """Return a copy of the figures."""
        return replace(self.figures, moves=replace(self.figures.moves))

    def orders(self, now: float) -> list[DiskOrder]:
        """Return the orders since the last call. Runs that came too late are given up."""
        self.seeks.expire(now)
        for name, reading in list(self.reads.items()):
            if now >= reading.until:
                del self.reads[name]
                self._not_before[name] = now + AGAIN_S
                self.open_orders.append(DiskOrder("forget", name))
        orders, self.open_orders = self.open_orders, []
        return orders

    # --- inside ------------------------------------------------------------------------

    def _take(self, report: DiskReport, now: float) -> None:
        run = report.run
        if report.what in ("written", "unsaved"):
            for entry, chain in list(self._unwritten.items()):
                if run.name == chain.run_name(chain.length):
                    del self._unwritten[entry]
        match report.what:
            case "written":
                self.figures.written_bytes += run.size_bytes
                self._add(run)
            case "found":
                self._add(run)
                self.seeks.note_file(now)
            case "read":
                self._arrived(report, now)
            case "lost":
                self._drop(run.name)
            case "unsaved":
                pass

    def _better(self, chain: TokenChain, have: int) -> DiskMatch | None:
        """Return the run that has the most tokens of a chain; None if it has less than one block
        more than `have`."""
        match = self._index.find(chain)
        if match is None or match.length < have + self.block_tokens:
            return None
        run, length = self._runs[match.entry], match.length
        same = run.seed == chain.seed and chain.agrees(run.tokens, 0, length) == length
        return DiskMatch(run, length) if same else None

    def _add(self, run: DiskRun) -> None:
        """Add a run that is on the disk. Order the deletion of runs that are beginnings of it, and
        of a file whose tokens do not match its name."""
        if run.name in self._entries:
            return
        length = len(run.tokens)
        chain = TokenChain(run.tokens, self.block_tokens, seed=run.seed)
        if not length or run.name != chain.run_name(length):
            self.open_orders.append(DiskOrder("delete", run.name))
            return
        new = self._index.keep(chain, length, room_bytes=sys.maxsize)
        if new is None:
            return
        for entry in new.evict:
            name = self._runs.pop(entry).name
            del self._entries[name]
            self.open_orders.append(DiskOrder("delete", name))
        self._entries[run.name], self._runs[new.entry] = new.entry, run
        self.figures.runs = len(self._runs)

    def _arrived(self, report: DiskReport, now: float) -> None:
        run, reading = report.run, self.reads.get(report.run.name)
        entry = self._entries.get(run.name)
        self.figures.read_bytes += run.size_bytes
        speed = run.size_bytes / max(report.seconds, 1e-6)
        first = self.bytes_per_s == FIRST_BYTES_PER_S
        self.bytes_per_s += (1.0 if first else NEWEST) * (speed - self.bytes_per_s)
        listed = None if entry is None else self._runs[entry]
        same = listed is not None and (listed.tokens, listed.seed) == (run.tokens, run.seed)
        if reading is None or not same:
            self.reads.pop(run.name, None)
            self.open_orders.append(DiskOrder("forget", run.name))
            return
        reading.arrived, reading.until = True, now + USED_WITHIN_S

    def _drop(self, name: str) -> None:
        """Forget a run whose file is gone or damaged."""
        self.reads.pop(name, None)
        self._not_before.pop(name, None)
        entry = self._entries.pop(name, None)
        if entry is not None:
            del self._runs[entry]
            self._index.remove(entry)
            self.figures.runs = len(self._runs)
