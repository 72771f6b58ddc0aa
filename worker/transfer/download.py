"""How one model comes to this node from others that have it: a state machine.

Pure: time arrives as `now`; what came in goes to `heard`, `lost`, `staged`, `checked` and so on,
each of which returns what is to be done, in order. The phases:

    asking -> staging -> fetching -> publishing -> done
       any of them -> failed

Every source that shows the manifest chosen first serves, each with a window of its own. A piece
is written only after its hash was found right, the model published only after each whole file
was. Every wait has a deadline, and each deadline its own words. What was lost, late, repeated or
spoilt is asked for again from whoever is free; a source that goes on spoiling is left. One that
falls silent rests and is asked again, until nobody has sent anything for 45 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from bus.wire.messages.readings import FetchPhase, FetchReading
from bus.wire.messages.weights import (
    AskManifest,
    AskPiece,
    Manifest,
    ManifestPending,
    PieceSent,
    WeightsRefused,
)
from bus.wire.messages.wire import Message
from worker.models.layer_bytes import Layers
from worker.models.manifest import problem_of
from worker.transfer.download_actions import (
    AskSource,
    CheckFile,
    DownloadAction,
    OpenStage,
    PublishModel,
    WritePiece,
)
from worker.transfer.pieces import Piece, Pieces, Staged, piece_at
from worker.transfer.refusal import forgetful_disk, no_room, slow_disk, without_source
from worker.transfer.source import MAX_BAD, QUICK_S, Source, StoreAddress

CHOICE_S = 2.0
"""How long a stage that was begun waits for a source of that very content."""
STALL_S = 45.0
STAGE_S = 60.0
CHECK_BYTES_PER_S = 20e6
MAX_SPOILT = 3
"""A file that so often is not on the disk as it was written: the disk is at fault."""
RATE_S = 5.0


class Download:
    """One attempt to get one model, or what some `layers` of it need. `refusal` is set when it
    has failed.

    `begun`: digests of stages of this model that lie on the disk already. `margin_bytes` of the
    disk are to stay free.
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
        self._begun = begun
        self._margin_bytes = margin_bytes
        self._peers = {source: Source(source) for source in sources}
        self._pieces: Pieces | None = None
        self._sizes: Mapping[str, int] = {}
        self._free_bytes = 0
        self._unchecked: set[str] = set()
        self._spoilt: dict[str, int] = {}
        self._lies: set[str] = set()
        self._began_at = self._moved_at = now
        self._disk = (now, "")
        self._marks: deque[tuple[float, int]] = deque()
        self._received_bytes = 0
        self._out: list[DownloadAction] = []

    @property
    def over(self) -> bool:
        """Whether nothing is to be done any more."""
        return self.phase in ("done", "failed")

    @property
    def received_bytes(self) -> int:
        """Bytes that came and were right; what a stage already held is not among them."""
        return self._received_bytes

    # --- what happens ---

    def sources_are(self, sources: Iterable[StoreAddress]) -> None:
        """More nodes may have the model by now; those that went fall silent by themselves."""
        for source in sources:
            self._peers.setdefault(source, Source(source))

    def heard(
        self, source: StoreAddress, message: Message, content: bytes, now: float
    ) -> list[DownloadAction]:
        """A source said something; what does not fit changes nothing."""
        peer = self._peers.get(source)
        if peer is None or self.over or peer.life == "out":
            return []
        match message:
            case Manifest():
                self._shown(peer, message, now)
            case ManifestPending():
                self._hashing(peer, message, now)
            case PieceSent():
                self._sent(peer, message, content, now)
            case WeightsRefused():
                self._refused(peer, message, now)
            case _:
                return []
        return self._next(now)

    def lost(self, source: StoreAddress, now: float) -> list[DownloadAction]:
        """The connection to a source is gone."""
        peer = self._peers.get(source)
        if peer is None or self.over or peer.life in ("new", "resting", "out"):
            return []
        self._rest(peer, "went away", now)
        return self._next(now)

    def connected(self, source: StoreAddress, now: float) -> list[DownloadAction]:
        """A source is there (again): no need to let it rest."""
        peer = self._peers.get(source)
        if peer is None or self.over or peer.life != "resting":
            return []
        self._ask_manifest(peer, now)
        return self._next(now)

    def staged(self, staged: Staged, now: float) -> list[DownloadAction]:
        """The stage is open."""
        if self.phase != "staging" or self.manifest is None:
            return []
        self._pieces = pieces = Pieces(self.manifest, staged, self.layers)
        self._free_bytes = staged.free_bytes
        if not self._has_room(pieces.total_bytes - pieces.done_bytes):
            return []
        self.phase, self._moved_at, self._disk = "fetching", now, (now, "")
        self._unchecked = set(self._sizes) - staged.checked
        for path in sorted(self._unchecked):
            if pieces.is_whole(path):
                self._check(path, now)
        return self._next(now)

    def checked(
        self, digest: str, path: str, bad: tuple[int, ...] | None, now: float
    ) -> list[DownloadAction]:
        """A whole file was hashed: `bad` are the pieces that are not right on the disk. None:
        each piece is right and the whole is not, so the manifest contradicts itself."""
        known = self.manifest is not None and self.manifest.digest == digest
        if self.phase != "fetching" or self._pieces is None or not known:
            return []
        if bad is None:
            self._lies.add(digest)
            for peer in self._peers.values():
                if peer.life == "serving":
                    self._leave(peer, f"contradicts itself about {path}", now)
        elif bad:
            self._spoilt[path] = self._spoilt.get(path, 0) + 1
            self._moved_at = now
            self._pieces.spoil(path, bad)
            if self._spoilt[path] >= MAX_SPOILT:
                self.failed(forgetful_disk(self.model, path))
        else:
            self._unchecked.discard(path)
        return self._next(now)

    def published(self) -> None:
        """The model is in its place."""
        if self.phase == "publishing":
            self.phase = "done"

    def failed(self, refusal: Refusal) -> None:
        """It cannot go on (the disk says so, at any time)."""
        if not self.over:
            self.phase, self.refusal = "failed", refusal

    def tick(self, now: float) -> list[DownloadAction]:
        """Time has passed: new sources are asked, silent ones judged."""
        if self.over:
            return []
        self._marks.append((now, self._received_bytes))
        while self._marks[0][0] < now - RATE_S:
            self._marks.popleft()
        for peer in self._peers.values():
            self._put_back(peer.overdue(now))
            match peer.due(now):
                case "ask":
                    self._ask_manifest(peer, now)
                case "rest":
                    self._rest(peer, "", now)
                case "leave":
                    self._leave(peer, "", now)
                case None:
                    pass
        self._judge(now)
        return self._next(now)

    def reading(self, now: float) -> FetchReading:
        """How far it is."""
        pieces = self._pieces
        since_at, before = self._marks[0] if self._marks else (now, self._received_bytes)
        spent_s = now - since_at
        checking = self.phase == "fetching" and pieces is not None and pieces.complete
        serving = {peer.source.node for peer in self._peers.values() if peer.life == "serving"}
        return FetchReading(
            model=self.model,
            phase="checking" if checking else self.phase,
            done_bytes=pieces.done_bytes if pieces else 0,
            total_bytes=pieces.total_bytes if pieces else 0,
            bytes_per_s=(self._received_bytes - before) / spent_s if spent_s > 0 else 0.0,
            sources=() if self.over else tuple(sorted(serving)),
            message=self.refusal.message if self.refusal else "",
        )

    # --- one source ---

    def _shown(self, peer: Source, manifest: Manifest, now: float) -> None:
        if peer.life == "serving":
            return
        lies = manifest.digest in self._lies
        problem = "it contradicts itself" if lies else problem_of(manifest, self.model)
        if problem is not None:
            self._leave(peer, f"showed a manifest that is refused: {problem}", now)
            return
        peer.manifest = manifest
        if self.manifest is None:
            self._moved_at = now
        chosen = self.manifest is not None and manifest.digest == self.manifest.digest
        peer.turn("serving" if chosen else "offered", now)

    def _hashing(self, peer: Source, pending: ManifestPending, now: float) -> None:
        if peer.life == "asked":
            peer.turn("hashing", now)
        if peer.life == "hashing" and pending.done_bytes > peer.hashed_bytes:
            peer.hashed_bytes = pending.done_bytes
            peer.since_at = self._moved_at = now

    def _sent(self, peer: Source, sent: PieceSent, content: bytes, now: float) -> None:
        pieces = self._pieces
        if pieces is None or self.manifest is None or sent.digest != self.manifest.digest:
            return
        known_bytes = pieces.total_bytes
        taken = pieces.take(sent.path, sent.offset, content)
        if taken == "foreign":
            return
        piece = piece_at(sent.path, sent.offset)
        peer.answered(piece, now)
        if taken == "bad":
            peer.bad += 1
            self._put_back([piece])
            if peer.bad >= MAX_BAD:
                text = f"sent {peer.bad} pieces that are not what its manifest says"
                self._leave(peer, text, now)
        elif taken == "new":
            peer.useful()
            self._moved_at = now
            self._received_bytes += len(content)
            self._out.append(WritePiece(piece, content))
            if pieces.total_bytes != known_bytes:
                self._has_room(pieces.total_bytes - pieces.done_bytes)
            for path in pieces.finished():
                self._check(path, now)

    def _has_room(self, missing: int) -> bool:
        """Whether what is missing fits on the disk; the fetch has failed where it does not."""
        fits = missing <= self._free_bytes - self._margin_bytes
        if not fits:
            self.failed(no_room(self.model, missing, self._free_bytes, self._margin_bytes))
        return fits

    def _refused(self, peer: Source, refused: WeightsRefused, now: float) -> None:
        match refused.reason:
            case "busy":
                piece = piece_at(refused.path, refused.offset)
                if peer.pause(piece, now):
                    self._put_back([piece])
            case "unknown_digest":
                self._rest(peer, refused.message, now)
                if not peer.manifests:
                    self._ask_manifest(peer, now)
            case "unknown_model" | "unreadable" | "bad_request":
                self._leave(peer, refused.message, now)

    def _ask_manifest(self, peer: Source, now: float) -> None:
        peer.manifests += 1
        peer.late = 0
        peer.turn("asked", now)
        self._out.append(AskSource(peer.source, AskManifest(model=self.model)))

    def _rest(self, peer: Source, why: str, now: float) -> None:
        self._put_back(peer.rest(now, why))

    def _leave(self, peer: Source, why: str, now: float) -> None:
        self._put_back(peer.rest(now, why))
        peer.turn("out", now)

    # --- all together ---

    def _next(self, now: float) -> list[DownloadAction]:
        """Choose, ask for what the windows allow, publish; hand out what is to be done."""
        self._choose(now)
        self._pump(now)
        if self.phase == "fetching" and not self._unchecked:
            self.phase = "publishing"
            self._disk = (now + STAGE_S, "putting the model in its place")
            self._out.append(PublishModel())
        found, self._out = self._out, []
        return [] if self.phase == "failed" else found

    def _choose(self, now: float) -> None:
        """The content to fetch: that of a stage that was begun, else what was shown first; when
        all its sources are gone for good, another that was shown."""
        lives = {peer.life for peer in self._peers.values()}
        orphaned = self.phase == "fetching" and lives <= {"out", "offered"}
        offers = [peer for peer in self._peers.values() if peer.life == "offered" and peer.manifest]
        if not offers or not (orphaned or self.phase == "asking"):
            return
        offers.sort(key=lambda peer: (peer.since_at, peer.source))
        begun = [p for p in offers if p.manifest and p.manifest.digest in self._begun]
        waits = bool(lives & {"new", "asked", "hashing"}) and now - self._began_at < CHOICE_S
        if self._begun and not begun and waits:
            return
        manifest = (begun or offers)[0].manifest
        assert manifest is not None
        for peer in offers:
            if peer.manifest and peer.manifest.digest == manifest.digest:
                peer.turn("serving", now)
        self.phase, self.manifest, self._pieces = "staging", manifest, None
        self._sizes = {entry.path: entry.size_bytes for entry in manifest.files}
        self._disk = (now + STAGE_S, "opening the stage")
        self._out.append(OpenStage(manifest))

    def _pump(self, now: float) -> None:
        if self.phase != "fetching" or self._pieces is None or self.manifest is None:
            return
        for peer in self._peers.values():
            while peer.may_ask(now):
                piece = self._pieces.next() or self._overdue_elsewhere(peer, now)
                if piece is None:
                    break
                peer.open[piece] = now
                ask = AskPiece(
                    digest=self.manifest.digest,
                    path=piece.path,
                    offset=piece.offset,
                    length=self._pieces.length(piece),
                )
                self._out.append(AskSource(peer.source, ask))

    def _overdue_elsewhere(self, idle: Source, now: float) -> Piece | None:
        """With nothing left to give out, an idle source is asked for what a slow one owes
        (BitTorrent's end game)."""
        if idle.open or self._pieces is None:
            return None
        for peer in self._peers.values():
            for piece, asked_at in peer.open.items():
                if now - asked_at >= QUICK_S and not self._pieces.has(piece):
                    return piece
        return None

    def _put_back(self, pieces: Iterable[Piece]) -> None:
        if self._pieces is not None:
            self._pieces.put_back(pieces)

    def _check(self, path: str, now: float) -> None:
        assert self.manifest is not None
        patience_s = STAGE_S + self._sizes[path] / CHECK_BYTES_PER_S
        self._disk = (max(now, self._disk[0]) + patience_s, "hashing what was fetched")
        wanted = self._pieces.wanted_of(path) if self._pieces else None
        self._out.append(CheckFile(self.manifest.digest, path, wanted))

    def _judge(self, now: float) -> None:
        waits_for_disk = self._pieces.complete if self._pieces else self.phase == "staging"
        orphaned = all(peer.life == "out" for peer in self._peers.values())
        until, what = self._disk
        if waits_for_disk and not (orphaned and self._unchecked):
            if now >= until:
                self.failed(slow_disk(self.model, what))
            return
        why = "nobody has what is needed" if orphaned else ""
        if now - self._moved_at >= STALL_S:
            why = why or f"nobody sent anything for {STALL_S:g} s"
        if why:
            self.failed(without_source(self.model, self._peers.values(), self._pieces, why))
