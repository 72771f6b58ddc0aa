"""The state machine of a fetch: against good, bad, slow and vanishing sources, in one thread."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import (
    PIECE_BYTES,
    AskManifest,
    AskPiece,
    FileEntry,
    Manifest,
    ManifestPending,
    PieceSent,
    WeightsRefused,
)
from bus.wire.messages.wire import Message
from worker.models.manifest import manifest_of
from worker.transfer.download import (
    STALL_S,
    Download,
    DownloadAction,
    OpenStage,
    PublishModel,
    WritePiece,
)
from worker.transfer.file_checks import CheckFile
from worker.transfer.pieces import Piece, Staged
from worker.transfer.source import ANSWER_S, MAX_WINDOW, PIECE_S, REST_S, AskSource, StoreAddress

MODEL = ModelId("m")
A, B = StoreAddress(NodeId("a"), "tcp://a:1"), StoreAddress(NodeId("b"), "tcp://b:1")
LOTS = 1 << 60


def entry(path: str, content: bytes) -> FileEntry:
    parts = [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
    pieces = b"".join(hashlib.sha256(part).digest() for part in parts)
    whole = hashlib.sha256(content).hexdigest()
    return FileEntry(path=path, size_bytes=len(content), sha256=whole, piece_hashes=pieces)


def files_of(seed: int = 1, pieces: int = 5) -> dict[str, bytes]:
    chance = random.Random(seed)
    return {
        "config.json": b"{}",
        "empty.txt": b"",
        "model.safetensors": chance.randbytes(pieces * PIECE_BYTES + 17),
    }


def manifest_for(files: dict[str, bytes]) -> Manifest:
    return manifest_of(MODEL, [entry(path, content) for path, content in files.items()])


@dataclass
class Disk:
    """A stage in memory. `spoil` says what becomes of a piece that is written."""

    files: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    have: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    checked: set[str] = field(default_factory=set[str])
    published: bool = False
    free_bytes: int = LOTS
    spoil: Callable[[Piece, bytes], bytes] = lambda _piece, content: content

    def open(self, manifest: Manifest) -> Staged:
        for one in manifest.files:
            self.files.setdefault(one.path, bytearray(one.size_bytes))
            self.have.setdefault(one.path, bytearray(-(-one.size_bytes // PIECE_BYTES)))
        have = {path: bytes(bits) for path, bits in self.have.items()}
        self.checked.clear()
        return Staged(have, self.free_bytes)

    def write(self, piece: Piece, content: bytes) -> None:
        kept = self.spoil(piece, content)
        self.files[piece.path][piece.offset : piece.offset + len(content)] = kept
        self.have[piece.path][piece.index] = 1

    def check(self, right: FileEntry) -> tuple[int, ...] | None:
        found = entry(right.path, bytes(self.files[right.path]))
        if found == right:
            self.checked.add(right.path)
            return ()
        pairs = [
            (found.piece_hashes[at : at + 32], right.piece_hashes[at : at + 32])
            for at in range(0, len(right.piece_hashes), 32)
        ]
        bad = tuple(n for n, (one, other) in enumerate(pairs) if one != other)
        for index in bad:
            self.have[right.path][index] = 0
        return bad or None


@dataclass
class World:
    """A fetch, its disk and its sources, with time. `answer` is what each source does."""

    answers: dict[StoreAddress, Callable[[Message], Sequence[tuple[float, Message, bytes]]]]
    disk: Disk = field(default_factory=Disk)
    now: float = 0.0
    asked: list[tuple[float, StoreAddress, Message]] = field(
        default_factory=list[tuple[float, StoreAddress, Message]]
    )
    written: int = 0
    begun: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.fetch = Download(MODEL, self.answers, self.now, begun=self.begun)
        self._queue: list[tuple[float, int, Callable[[], list[DownloadAction]]]] = []
        self._count = 0

    def run(self, seconds: float) -> World:
        end = self.now + seconds
        while self.now < end and not self.fetch.over:
            self.do(self.fetch.tick(self.now))
            until = self.now + 0.25
            while self._queue and self._queue[0][0] <= until and not self.fetch.over:
                self.now, _, happen = heapq.heappop(self._queue)
                self.do(happen())
            self.now = until
        return self

    def later(self, delay_s: float, happen: Callable[[], list[DownloadAction]]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, happen))

    def do(self, actions: list[DownloadAction]) -> None:
        for action in actions:
            match action:
                case AskSource(source=source, message=message):
                    self.asked.append((self.now, source, message))
                    self._ask(source, message)
                case OpenStage(manifest=manifest):
                    staged = self.disk.open(manifest)
                    self.later(0.0, lambda staged=staged: self.fetch.staged(staged, self.now))
                case WritePiece(piece=piece, content=content):
                    self.written += 1
                    self.disk.write(piece, content)
                case CheckFile(digest=digest, path=path):
                    self._check(digest, path)
                case PublishModel():
                    assert set(self.disk.files) == self.disk.checked, "published unchecked"
                    self.disk.published = True
                    self.fetch.published()

    def open_asks(self, source: StoreAddress) -> int:
        return sum(1 for _, s, m in self.asked if s == source and isinstance(m, AskPiece))

    def _ask(self, source: StoreAddress, message: Message) -> None:
        for delay_s, answer, content in self.answers[source](message):
            self.later(
                delay_s,
                lambda a=answer, c=content: self.fetch.receive(source, a, c, self.now),
            )

    def _check(self, digest: str, path: str) -> None:
        assert self.fetch.manifest is not None
        right = next(one for one in self.fetch.manifest.files if one.path == path)
        bad = self.disk.check(right)
        self.later(0.01, lambda: self.fetch.checked(digest, path, bad, self.now))


Answers = Sequence[tuple[float, Message, bytes]]


def good(files: dict[str, bytes], delay_s: float = 0.01) -> Callable[[Message], Answers]:
    shown = manifest_for(files)

    def answer(message: Message) -> Answers:
        match message:
            case AskManifest():
                return [(delay_s, shown, b"")]
            case AskPiece(digest=digest) if digest != shown.digest:
                text = "other content"
                return [(delay_s, WeightsRefused(reason="unknown_digest", message=text), b"")]
            case AskPiece(path=path, offset=offset, length=length):
                content = files[path][offset : offset + length]
                piece = PieceSent(digest=shown.digest, path=path, offset=offset)
                return [(delay_s, piece, content)]
            case _:
                return []

    return answer


def only_manifest(files: dict[str, bytes]) -> Callable[[Message], Answers]:
    answer = good(files)
    return lambda message: answer(message) if isinstance(message, AskManifest) else []


def assert_fetched(world: World, files: dict[str, bytes]) -> None:
    assert world.fetch.phase == "done", world.fetch.refusal
    assert world.disk.published
    assert {path: bytes(found) for path, found in world.disk.files.items()} == files


def said(world: World) -> str:
    assert world.fetch.refusal is not None, world.fetch.phase
    return world.fetch.refusal.message


def test_a_model_comes_whole_from_one_source_each_piece_asked_for_once() -> None:
    files = files_of()
    world = World({A: good(files)}).run(10.0)
    assert_fetched(world, files)
    assert world.open_asks(A) == world.written == 7
    assert world.fetch.received.total == sum(map(len, files.values()))
    reading = world.fetch.reading(world.now)
    assert reading.done_bytes == reading.total_bytes == world.fetch.received.total


def test_two_sources_share_the_work_and_a_late_one_joins() -> None:
    files = files_of(pieces=36)
    world = World({A: good(files, 0.5)}).run(1.0)
    world.answers[B] = good(files, 0.3)
    world.fetch.sources.add([A, B])
    assert_fetched(world.run(30.0), files)
    assert min(world.open_asks(A), world.open_asks(B)) > 5
    assert world.open_asks(A) + world.open_asks(B) == 38


def test_a_window_opens_with_quick_answers_and_no_further() -> None:
    files = files_of(pieces=24)
    waiting: set[tuple[str, int]] = set()
    most = 0
    answer = good(files, 0.05)

    def counted(message: Message) -> Answers:
        nonlocal most
        if isinstance(message, AskPiece):
            waiting.add((message.path, message.offset))
            most = max(most, len(waiting))
        return answer(message)

    world = World({A: counted})
    heard = world.fetch.receive

    def heard_and_counted(
        s: StoreAddress, m: Message, content: bytes, now: float
    ) -> list[DownloadAction]:
        if isinstance(m, PieceSent):
            waiting.discard((m.path, m.offset))
        return heard(s, m, content, now)

    world.fetch.receive = heard_and_counted  # type: ignore[method-assign]
    world.run(30.0)
    assert world.fetch.phase == "done"
    assert most == MAX_WINDOW


def test_a_source_that_vanishes_is_replaced_by_another_at_once_when_its_loss_is_seen() -> None:
    files = files_of(pieces=24)
    world = World({A: good(files, 0.2), B: good(files, 0.2)}).run(1.0)
    world.answers[A] = lambda _message: []
    world.do(world.fetch.lost(A, world.now))
    lost_at = world.now
    assert_fetched(world.run(30.0), files)
    assert world.now - lost_at < PIECE_S, "nobody waited for a deadline"


def test_what_a_slow_source_owes_at_the_end_is_asked_of_an_idle_one() -> None:
    files = files_of()
    world = World({A: only_manifest(files), B: good(files)}).run(PIECE_S - 1.0)
    assert_fetched(world, files)


def test_a_source_that_comes_back_is_asked_again_and_what_came_is_kept() -> None:
    files = files_of(pieces=20)
    world = World({A: good(files, 0.2)}).run(1.0)
    before = world.written
    world.answers[A], kept = (lambda _message: []), world.answers[A]
    world.do(world.fetch.lost(A, world.now))
    world.run(REST_S + 1.0)
    world.answers[A] = kept
    world.do(world.fetch.connected(A, world.now))
    world.run(30.0)
    assert_fetched(world, files)
    assert before > 0 and world.written == 22, "no piece was written twice"


def test_a_lone_source_that_falls_silent_ends_the_fetch_with_names_and_reasons() -> None:
    files = files_of()
    world = World({A: only_manifest(files)}).run(100.0)
    assert world.fetch.refusal is not None
    assert world.fetch.refusal.reason == "weights_unavailable"
    assert f"no node sent anything for {STALL_S:g} s" in said(world)
    tried = world.fetch.refusal.facts["tried"]
    assert list(tried) == ["a at tcp://a:1"]
    assert world.now <= STALL_S + 1.0


def test_a_source_that_never_answers_is_named_with_the_wait_that_ran_out() -> None:
    world = World({A: lambda _message: []}).run(100.0)
    assert f"did not send its manifest within {ANSWER_S:g} s" in said(world)


def test_hashing_that_advances_is_waited_for_and_one_that_stops_is_not() -> None:
    files = files_of()
    shown = manifest_for(files)

    def slow(message: Message) -> Answers:
        if not isinstance(message, AskManifest):
            return good(files)(message)
        steps = [ManifestPending(model=MODEL, done_bytes=n, total_bytes=100) for n in range(100)]
        told = [(float(n), step, b"") for n, step in enumerate(steps)]
        return [*told, (100.0, shown, b"")]

    assert_fetched(World({A: slow}).run(200.0), files)

    def stuck(message: Message) -> Answers:
        pending = ManifestPending(model=MODEL, done_bytes=5, total_bytes=100)
        again = isinstance(message, AskManifest)
        return [(float(n), pending, b"") for n in range(100)] if again else []

    assert "no progress hashing" in said(World({A: stuck}).run(200.0))


def test_a_spoilt_piece_is_asked_for_again_and_a_source_that_goes_on_is_left() -> None:
    files = files_of()
    right = good(files)
    spoilt = 0

    def once(message: Message) -> Answers:
        nonlocal spoilt
        (delay_s, answer, content), *_ = right(message)
        if isinstance(answer, PieceSent) and answer.offset == PIECE_BYTES and not spoilt:
            spoilt += 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        return [(delay_s, answer, content)]

    world = World({A: once}).run(20.0)
    assert_fetched(world, files)
    assert world.open_asks(A) == 8, "one piece twice"

    def always(message: Message) -> Answers:
        return [(d, a, content[::-1]) for d, a, content in right(message)]

    world = World({A: always}).run(20.0)
    assert "sent 3 pieces that do not match its manifest" in said(world)
    assert_fetched(World({A: always, B: good(files)}).run(20.0), files)


def test_a_disk_that_spoils_a_piece_is_noticed_and_that_piece_alone_comes_again() -> None:
    files = files_of()
    faults = [Piece("model.safetensors", 2)]

    def spoil(piece: Piece, content: bytes) -> bytes:
        if piece in faults:
            faults.remove(piece)
            return bytes(len(content))
        return content

    world = World({A: good(files)}, Disk(spoil=spoil)).run(20.0)
    assert_fetched(world, files)
    assert world.open_asks(A) == 8

    rotten = Disk(spoil=lambda _piece, content: bytes(len(content)))
    assert "does not store data written" in said(World({A: good(files)}, rotten).run(60.0))


def test_a_manifest_that_contradicts_itself_is_left_for_another() -> None:
    files = files_of()
    lie = [entry(path, content) for path, content in files.items()]
    lie = [
        one.model_copy(update={"sha256": "0" * 64}) if one.path == "model.safetensors" else one
        for one in lie
    ]
    shown = manifest_of(MODEL, lie)

    def liar(message: Message) -> Answers:
        if isinstance(message, AskManifest):
            return [(0.0, shown, b"")]
        assert isinstance(message, AskPiece)
        content = files[message.path][message.offset : message.offset + message.length]
        piece = PieceSent(digest=shown.digest, path=message.path, offset=message.offset)
        return [(0.01, piece, content)]

    assert "contradict" in said(World({A: liar}).run(30.0))
    world = World({A: liar, B: good(files)}).run(30.0)
    assert_fetched(world, files)


def test_a_full_disk_is_refused_with_numbers_before_anything_is_asked_for() -> None:
    files = files_of()
    world = World({A: good(files)}, Disk(free_bytes=1_000_000)).run(10.0)
    assert world.fetch.refusal is not None and world.fetch.refusal.reason == "disk_full"
    assert world.fetch.refusal.facts["missing_bytes"] == sum(map(len, files.values()))
    assert world.open_asks(A) == 0


def test_a_stage_that_was_begun_is_gone_on_with_although_other_content_was_shown_first() -> None:
    old, new = files_of(1), files_of(2)
    begun = manifest_for(old)
    disk = Disk()
    disk.open(begun)
    disk.files["model.safetensors"][:PIECE_BYTES] = old["model.safetensors"][:PIECE_BYTES]
    disk.have["model.safetensors"][0] = 1
    answers = {A: good(new, 0.01), B: good(old, 0.5)}
    world = World(answers, disk, begun=frozenset({begun.digest})).run(30.0)
    assert_fetched(world, old)
    assert (Piece("model.safetensors", 0).path, 0) not in [
        (m.path, m.offset) for _, _, m in world.asked if isinstance(m, AskPiece)
    ], "what the stage held was not asked for"


def test_busy_and_forgetful_sources_are_asked_again_after_a_while() -> None:
    files = files_of()
    right = good(files)
    moods = ["busy", "unknown_digest", "busy"]

    def moody(message: Message) -> Answers:
        if isinstance(message, AskPiece) and moods:
            refused = WeightsRefused.model_validate(
                {"reason": moods.pop(), "message": "not now", "digest": message.digest,
                 "path": message.path, "offset": message.offset}
            )  # fmt: skip
            return [(0.01, refused, b"")]
        return right(message)

    assert_fetched(World({A: moody}).run(30.0), files)


@pytest.mark.parametrize("junk", ["other digest", "no such file", "odd offset", "beyond", "asked"])
def test_what_was_not_asked_for_changes_nothing(junk: str) -> None:
    files = files_of()
    world = World({A: only_manifest(files)}).run(1.0)
    digest = manifest_for(files).digest
    piece = {
        "other digest": PieceSent(digest="x", path="model.safetensors", offset=0),
        "no such file": PieceSent(digest=digest, path="../../etc/passwd", offset=0),
        "odd offset": PieceSent(digest=digest, path="model.safetensors", offset=5),
        "beyond": PieceSent(digest=digest, path="model.safetensors", offset=9 * PIECE_BYTES),
        "asked": AskPiece(digest=digest, path="config.json", offset=0, length=1),
    }[junk]
    assert world.fetch.receive(A, piece, b"xx", world.now) == []
    assert world.written == 0


def test_a_refused_manifest_is_named_and_never_staged() -> None:
    bad = manifest_for(files_of()).model_copy(update={"digest": "0" * 64})

    def answer(_message: Message) -> Answers:
        return [(0.0, bad, b"")]

    world = World({A: answer}).run(5.0)
    assert "the manifest's digest does not match the files" in said(world)
    assert world.disk.files == {}


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), loss=st.floats(0.0, 0.3), pieces=st.integers(0, 12))
def test_lost_late_repeated_and_reordered_pieces_still_make_the_right_model(
    seed: int, loss: float, pieces: int
) -> None:
    files = files_of(3, pieces)
    chance = random.Random(seed)

    def flawed(files: dict[str, bytes]) -> Callable[[Message], Answers]:
        right = good(files)

        def answer(message: Message) -> Answers:
            found: list[tuple[float, Message, bytes]] = []
            for _, said, content in right(message):
                for _ in range(chance.choice((1, 1, 2))):
                    if chance.random() >= loss:
                        bad = chance.random() < 0.02 and isinstance(said, PieceSent)
                        late_s = chance.choice((0.0, 0.1, 3.0, PIECE_S + 1.0))
                        found.append((late_s, said, b"spoilt" if bad else content))
            return found

        return answer

    world = World(
        {A: flawed(files), B: flawed(files), StoreAddress(NodeId("c"), "c"): flawed(files)}
    )
    world.run(600.0)
    if world.fetch.phase == "failed":
        # chance may silence all three for long enough, or spoil three pieces of each
        assert "could not be fetched" in said(world)
        assert not world.disk.published
    else:
        assert_fetched(world, files)
        count = pieces + 2
        assert world.written == count, "each piece is written once"


PATHS = st.sampled_from(["config.json", "empty.txt", "model.safetensors", "../x", "", "b.json"])
OFFSETS = st.sampled_from([0, 1, PIECE_BYTES, 5 * PIECE_BYTES, 9 * PIECE_BYTES, 1 << 62])
DIGESTS = st.sampled_from([manifest_for(files_of()).digest, "", "0" * 64])
REASONS = st.sampled_from(["unknown_digest", "busy"])
NOISE: st.SearchStrategy[Message] = st.one_of(
    st.builds(PieceSent, digest=DIGESTS, path=PATHS, offset=OFFSETS),
    st.builds(
        WeightsRefused, reason=REASONS, message=st.just(""), digest=DIGESTS, path=PATHS,
        offset=OFFSETS,
    ),
    st.builds(
        ManifestPending, model=st.sampled_from([MODEL, ModelId("x")]),
        done_bytes=st.integers(0, 1 << 62), total_bytes=st.just(0),
    ),
    st.just(AskManifest(model=MODEL)),
)  # fmt: skip


@settings(max_examples=60)
@given(noise=st.lists(st.tuples(st.floats(0.0, 1.0), NOISE), max_size=30))
def test_noise_from_one_source_hinders_nobody_else(noise: list[tuple[float, Message]]) -> None:
    files = files_of()
    shown = manifest_for(files)
    loud = [(at, message, b"noise") for at, message in noise]

    def noisy(message: Message) -> Answers:
        return [(0.0, shown, b""), *loud] if isinstance(message, AskManifest) else []

    assert_fetched(World({A: noisy, B: good(files, 0.05)}).run(60.0), files)


def test_most_flawed_worlds_end_well() -> None:
    done = 0
    for seed in range(20):
        chance = random.Random(seed)
        files = files_of(3, 6)
        right = good(files)

        def answer(
            message: Message,
            chance: random.Random = chance,
            right: Callable[[Message], Answers] = right,
        ) -> Answers:
            return [] if chance.random() < 0.2 else right(message)

        world = World({A: answer, B: answer}).run(600.0)
        done += world.fetch.phase == "done"
    assert done == 20
