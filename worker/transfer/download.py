"""Fetch one model from other nodes: a state machine.

Pure: time arrives as `now`. Events go to `receive`, `lost`, `staged`, `checked` and so on; each
returns the next actions, in order. The phases:

    asking -> staging -> fetching -> publishing -> done
    any of them -> failed

Once a manifest is chosen, every source that offers the same manifest serves pieces. Each source has
its own window of open requests. A piece is written only after its hash was verified; the model is
published only after the hash of each whole file was. Every wait has a deadline with its own
message. Lost, late, repeated or corrupt pieces are requested again from a free source. A source
that keeps sending corrupt pieces is dropped. A silent source is paused and then asked again, until
no source has sent anything for 45 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from bus.wire.messages.readings import FetchPhase, FetchReading
from bus.wire.messages.weights import Manifest, ManifestPending, PieceSent, WeightsRefused
from bus.wire.messages.wire import Message
from worker.models.layer_bytes import Layers
from worker.models.manifest import problem_of
from worker.transfer.file_checks import CheckFile, FileChecks
from worker.transfer.pieces import Piece, Pieces, Staged, piece_at
from worker.transfer.source import MAX_BAD, AskSource, Source, SourcePool, StoreAddress

CHOICE_S = 2.0
"""If a staging folder exists, how many seconds to wait for a source with the same content before
other content is chosen."""
STALL_S = 45.0
RATE_S = 5.0


@dataclass(frozen=True, slots=True)
class OpenStage:
    """Open (or reopen) the staging folder of this manifest, then call `Download.staged`."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WritePiece:
    """Write this piece to the staging folder, then record it as present, before the next action."""

    piece: Piece
    content: bytes


@dataclass(frozen=True, slots=True)
class PublishModel:
    """Every file is verified: move the model into place, then call `Download.published`."""


DownloadAction = AskSource | OpenStage | WritePiece | CheckFile | PublishModel
"""The actions that `Download` decides. The code around it performs them in order."""


class ReceivedBytes:
    """The number of verified bytes that were received, and their recent rate."""

    def __init__(self) -> None:
        self.total = 0
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, now: float) -> None:
        """Record the current total, from which the rate of the next seconds is computed."""
        self._marks.append((now, self.total))
        while self._marks[0][0] < now - RATE_S:
            self._marks.popleft()

    def per_s(self, now: float) -> float:
        """Return the bytes per second over the last seconds; 0 before the first mark."""
        since_at, before = self._marks[0] if self._marks else (now, self.total)
        return (self.total - before) / (now - since_at) if now > since_at else 0.0


class Download:
    """One attempt to fetch one model, or what some `layers` of it need. `refusal` is set when it
    has failed. `received` counts received bytes, without those already in the staging folder.
    `sources` may be added; a source that left becomes silent.

    `begun`: digests of this model's existing staging folders. `margin_bytes` of the disk stay free.
    """

    def __init__(
        self,
        model: ModelId,
        sources: Iterable[StoreAddress],
        now: float,
        *,
        begun: frozenset[str] = frozenset(),
        margin_bytes: int = 0,
        layers: Layers | None = None,
    ) -> None:
        self.model = model
        self.layers = layers
        self.phase: FetchPhase = "asking"
        self.refusal: Refusal | None = None
        self.manifest: Manifest | None = None
        self.received = ReceivedBytes()
        self._begun = begun
        self.sources = SourcePool(sources)
        self._pieces: Pieces | None = None
        self._files = FileChecks(model, margin_bytes, now)
        self._lies: set[str] = set()
        self._began_at = self._moved_at = now
        self._out: list[DownloadAction] = []

    @property
    def over(self) -> bool:
        """Return whether the download has ended: the model is in place, or the attempt has
        failed."""
        return self.phase in ("done", "failed")

    # --- what happens ---

    def receive(
        self, address: StoreAddress, message: Message, content: bytes, now: float
    ) -> list[DownloadAction]:
        """Process a message of a source. An unexpected message changes nothing."""
        source = self.sources.at(address)
        if source is None or self.over:
            return []
        match message:
            case Manifest():
                self._shown(source, message, now)
            case ManifestPending(done_bytes=done_bytes):
                if source.is_hashing(done_bytes, now):
                    self._moved_at = now
            case PieceSent():
                self._sent(source, message, content, now)
            case WeightsRefused():
                self._refused(source, message, now)
            case _:
                return []
        return self._next(now)

    def lost(self, address: StoreAddress, now: float) -> list[DownloadAction]:
        """Record that the connection to the source at `address` is lost; return the next
        actions."""
        source = self.sources.at(address)
        if source is None or self.over or source.life in ("new", "resting"):
            return []
        self._put_back(source.rest(now, "lost the connection"))
        return self._next(now)

    def connected(self, address: StoreAddress, now: float) -> list[DownloadAction]:
        """Record that a source is connected (again). Its pause, if any, ends."""
        source = self.sources.at(address)
        if source is None or self.over or source.life != "resting":
            return []
        self._out.append(source.ask_manifest(self.model, now))
        return self._next(now)

    def staged(self, staged: Staged, now: float) -> list[DownloadAction]:
        """Record that the staging folder is open, with its contents."""
        if self.phase != "staging" or self.manifest is None:
            return []
        self._pieces = pieces = Pieces(self.manifest, staged, self.layers)
        files = self._files
        files.begin(self.manifest, staged, now)
        self.failed(files.refuse_room(pieces.total_bytes - pieces.done_bytes))
        if self.over:
            return []
        self.phase, self._moved_at = "fetching", now
        whole = [path for path in sorted(files.unchecked) if pieces.is_whole(path)]
        self._check(whole, now)
        return self._next(now)

    def checked(
        self, digest: str, path: str, bad: tuple[int, ...] | None, now: float
    ) -> list[DownloadAction]:
        """Record the hash of a whole file: `bad` are the corrupt pieces on the disk. None: each
        piece is right but the whole is not, so the manifest contradicts itself."""
        is_current = self.manifest is not None and self.manifest.digest == digest
        if self.phase != "fetching" or self._pieces is None or not is_current:
            return []
        if bad is None:
            self._lies.add(digest)
            for source in self.sources:
                if source.life == "serving":
                    self._put_back(source.leave(now, f"sent contradictory hashes for {path}"))
            return self._next(now)
        if bad:
            self._moved_at = now
            self._pieces.spoil(path, bad)
        self.failed(self._files.note_result(path, bad))
        return self._next(now)

    def published(self) -> list[DownloadAction]:
        """Record that the model is in place: nothing is left to do."""
        if self.phase == "publishing":
            self.phase = "done"
        return []

    def failed(self, refusal: Refusal | None) -> None:
        """End the attempt with this refusal; if it is None, the attempt continues."""
        if refusal is not None and not self.over:
            self.phase, self.refusal = "failed", refusal

    def tick(self, now: float) -> list[DownloadAction]:
        """Ask new sources for pieces, and drop sources that are silent; return the next actions."""
        if self.over:
            return []
        self.received.mark(now)
        for source in self.sources:
            self._put_back(source.overdue(now))
            match source.due(now):
                case "ask":
                    self._out.append(source.ask_manifest(self.model, now))
                case "rest":
                    self._put_back(source.rest(now, ""))
                case "leave":
                    self._put_back(source.leave(now, ""))
                case None:
                    pass
        self._judge(now)
        return self._next(now)

    def reading(self, now: float) -> FetchReading:
        pieces = self._pieces
        checking = self.phase == "fetching" and pieces is not None and pieces.complete
        serving = {source.address.node for source in self.sources if source.life == "serving"}
        return FetchReading(
            model=self.model,
            phase="checking" if checking else self.phase,
            done_bytes=pieces.done_bytes if pieces else 0,
            total_bytes=pieces.total_bytes if pieces else 0,
            bytes_per_s=self.received.per_s(now),
            sources=() if self.over else tuple(sorted(serving)),
            message=self.refusal.message if self.refusal else "",
        )

    # --- one source ---

    def _shown(self, source: Source, manifest: Manifest, now: float) -> None:
        if source.life == "serving":
            return
        lies = manifest.digest in self._lies
        problem = "its hashes contradict each other" if lies else problem_of(manifest, self.model)
        if problem is not None:
            why = f"sent an invalid manifest: {problem}"
            self._put_back(source.leave(now, why))
            return
        source.manifest = manifest
        if self.manifest is None:
            self._moved_at = now
        chosen = self.manifest is not None and manifest.digest == self.manifest.digest
        source.turn("serving" if chosen else "offered", now)

    def _sent(self, source: Source, sent: PieceSent, content: bytes, now: float) -> None:
        pieces = self._pieces
        if pieces is None or self.manifest is None or sent.digest != self.manifest.digest:
            return
        known_bytes = pieces.total_bytes
        taken = pieces.take(sent.path, sent.offset, content)
        if taken == "foreign":
            return
        piece = piece_at(sent.path, sent.offset)
        source.answered(piece, now)
        if taken == "bad":
            source.bad += 1
            self._put_back([piece])
            if source.bad >= MAX_BAD:
                text = f"sent {source.bad} pieces that do not match its manifest"
                self._put_back(source.leave(now, text))
        elif taken == "new":
            source.useful()
            self._moved_at = now
            self.received.total += len(content)
            self._out.append(WritePiece(piece, content))
            if pieces.total_bytes != known_bytes:
                self.failed(self._files.refuse_room(pieces.total_bytes - pieces.done_bytes))
            self._check(pieces.finished(), now)

    def _refused(self, source: Source, refused: WeightsRefused, now: float) -> None:
        match refused.reason:
            case "busy":
                piece = piece_at(refused.path, refused.offset)
                if source.pause(piece, now):
                    self._put_back([piece])
            case "unknown_digest":
                self._put_back(source.rest(now, refused.message))
                if not source.manifests:
                    self._out.append(source.ask_manifest(self.model, now))
            case "unknown_model" | "unreadable" | "bad_request":
                self._put_back(source.leave(now, refused.message))

    # --- all together ---

    def _next(self, now: float) -> list[DownloadAction]:
        """Choose the content (manifest) if none is chosen, request the pieces that the windows
        allow, and publish the model if it is complete. Return the actions."""
        self._choose(now)
        if self.phase == "fetching" and self._pieces is not None and self.manifest is not None:
            self._out += self.sources.ask(self._pieces, self.manifest.digest, now)
        if self.phase == "fetching" and not self._files.unchecked:
            self.phase = "publishing"
            self._files.wait("moving the model into place", now)
            self._out.append(PublishModel())
        actions, self._out = self._out, []
        return [] if self.phase == "failed" else actions

    def _choose(self, now: float) -> None:
        """Choose which content (manifest) to fetch, because sources may differ. If all sources of
        the chosen content are gone for good, choose again."""
        orphaned = self.phase == "fetching" and self.sources.lives() <= {"out", "offered"}
        if not (orphaned or self.phase == "asking"):
            return
        patient = now - self._began_at < CHOICE_S
        manifest = self.sources.choose(self._begun, now, patient=patient)
        if manifest is not None:
            self.phase, self.manifest, self._pieces = "staging", manifest, None
            self._files.wait("creating its folder", now)
            self._out.append(OpenStage(manifest))

    def _put_back(self, pieces: Iterable[Piece]) -> None:
        if self._pieces is not None:
            self._pieces.put_back(pieces)

    def _check(self, paths: Iterable[str], now: float) -> None:
        assert self._pieces is not None
        for path in paths:
            wanted = self._pieces.wanted_pieces(path)
            self._out.append(self._files.check(path, wanted, now))

    def _judge(self, now: float) -> None:
        waits_for_disk = self._pieces.complete if self._pieces else self.phase == "staging"
        orphaned = self.sources.lives() <= {"out"}
        if waits_for_disk and not (orphaned and self._files.unchecked):
            self.failed(self._files.late(now))
            return
        why = "no node has the missing files" if orphaned else ""
        if now - self._moved_at >= STALL_S:
            why = why or f"no node sent anything for {STALL_S:g} s"
        if why:
            self.failed(self.sources.refusal(self.model, self._pieces, why))
