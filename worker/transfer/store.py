"""Talks to other nodes' workers: serves the files of this node's models.

The store is a ROUTER. A model's files are hashed once, in a separate thread. While a model is
hashed, clients get the progress; at the end they get the manifest. Pieces are read from the disk a
few at a time, for one client after the other. So the loop is never blocked, and no client waits
until another has all of its pieces. An answer that cannot be sent at once is dropped: the client
asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from bus.links.reactor import Reactor
from bus.links.transport import Frames, Link
from bus.process.logs import Log
from bus.wire.codec import decode
from bus.wire.errors import BadMessage
from bus.wire.ids import ModelId
from bus.wire.messages.weights import (
    AskManifest,
    AskPiece,
    FileEntry,
    Manifest,
    ManifestPending,
    PieceSent,
    WeightsRefused,
)
from bus.wire.messages.wire import Message
from worker.models.file_hashes import FileChanged, Hashes, Held, Stopped, held_files
from worker.models.manifest import manifest_of
from worker.transfer.disk_thread import DiskThread
from worker.transfer.downloader import Pack
from worker.transfer.rate_limit import RateLimit

MAX_ASK_BYTES = 40 << 10
MAX_OPEN = 16
"""The most pieces that one client may wait for at a time. Downloads request fewer."""
SLICE = 4
"""The number of pieces that the store reads before the loop handles other events."""
PENDING_S = 1.0
Reason = Literal["unknown_digest", "unreadable", "busy", "bad_request"]
"""The reason why the store does not send a piece."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A model whose manifest was sent to clients, and its files on the disk by path."""

    manifest: Manifest
    held: Mapping[str, Held]


class Readable(Protocol):
    """A file that other nodes may read in pieces."""

    @property
    def real(self) -> Path: ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset` on. Raises OSError, FileChanged."""
        ...


@dataclass(frozen=True, slots=True)
class Beside:
    """The store's other services: `files` by digest, and answers to other questions by their type.
    The function of a question gets the asker and the question."""

    files: dict[str, Readable] = field(default_factory=dict[str, Readable])
    answers: dict[type[Message], Callable[[bytes, Any], None]] = field(
        default_factory=dict[type[Message], Callable[[bytes, Any], None]]
    )


@dataclass(slots=True)
class _Hashing:
    """A model whose files are being hashed. The hashing thread writes `done_bytes`."""

    held: tuple[Held, ...]
    waiting: set[bytes] = field(default_factory=set[bytes])
    done_bytes: int = 0


class Store:
    """Serves one node's models, at most `bytes_per_s` (0: no limit). `link` is a bound ROUTER."""

    def __init__(
        self,
        reactor: Reactor,
        link: Link,
        pack: Pack,
        jobs: DiskThread,
        hashes: Hashes,
        log: Log,
        *,
        bytes_per_s: float = 0.0,
        beside: Beside | None = None,
    ) -> None:
        self._beside = Beside() if beside is None else beside
        self._reactor = reactor
        self._link = link
        self._pack = pack
        self._jobs = jobs
        self._hashes = hashes
        self._log = log
        self._models: Mapping[ModelId, Path] = {}
        self._shown: dict[str, Shown] = {}
        self._hashing: dict[ModelId, _Hashing] = {}
        self._open: dict[bytes, deque[AskPiece]] = {}
        self._turn: deque[bytes] = deque()
        self._reading = False
        self._pace = RateLimit(bytes_per_s)
        reactor.watch(link, self._received)
        self._timer = reactor.every(PENDING_S, self._tell_waiting)

    def offers(self, models: Mapping[ModelId, Path]) -> None:
        """Set the models to serve, with the folder of each."""
        self._models = dict(models)
        self._shown = {d: s for d, s in self._shown.items() if s.manifest.model in models}

    def close(self) -> None:
        """Stop serving models."""
        self._timer.cancel()
        self._open.clear()
        self._reactor.unwatch(self._link)
        self._link.close()

    # --- what comes in ---

    def _received(self, frames: Frames) -> None:
        if len(frames) != 2:
            return
        asker, payload = frames
        try:
            message = decode(payload, limit_bytes=MAX_ASK_BYTES).message
        except BadMessage as error:
            self._log.debug("the store dropped a message", error=str(error)[:200])
            return
        match message:
            case AskManifest(model=model):
                self._show(asker, model)
            case AskPiece():
                self._queue(asker, message)
            case _ if type(message) in self._beside.answers:
                self._beside.answers[type(message)](asker, message)
            case _:
                self._log.debug(
                    "the store ignored a message that is no request for weights",
                    kind=type(message).__name__,
                )

    def send(self, asker: bytes, message: Message, *content: bytes) -> None:
        """Send an answer; it is dropped if the client reads too slowly."""
        self._link.send(asker, self._pack(message), *content)

    # --- manifests ---

    def _show(self, asker: bytes, model: ModelId) -> None:
        folder = self._models.get(model)
        if folder is None:
            text = f"{model} is not on this node's disk"
            self.send(asker, WeightsRefused(reason="unknown_model", message=text, model=model))
            return
        try:
            held = held_files(folder)
        except OSError as error:
            self._cannot_read(asker, model, error)
            return
        by_path = {file.path: file for file in held}
        for shown in self._shown.values():
            if shown.manifest.model == model and shown.held == by_path:
                self.send(asker, shown.manifest)
                return
        hashing = self._hashing.get(model)
        if hashing is None:
            self._hashing[model] = hashing = _Hashing(held)
            self._jobs.add(partial(self._hash, hashing), partial(self._hashed, model, hashing))
        hashing.waiting.add(asker)
        self._pending(asker, model, hashing)

    def _hash(self, hashing: _Hashing, stopped: Stopped) -> list[FileEntry]:
        """Hash the files of a model; runs in the disk thread."""

        def progress(done: int) -> None:
            """Add `done` to the number of hashed bytes."""
            hashing.done_bytes += done

        return [self._hashes.of(held, progress, stopped) for held in hashing.held]

    def _hashed(
        self, model: ModelId, hashing: _Hashing, result: list[FileEntry] | Exception
    ) -> None:
        del self._hashing[model]
        if isinstance(result, Exception):
            for asker in hashing.waiting:
                self._cannot_read(asker, model, result)
            return
        manifest = manifest_of(model, result)
        self._shown = {d: s for d, s in self._shown.items() if s.manifest.model != model}
        if model in self._models:
            held = {file.path: file for file in hashing.held}
            self._shown[manifest.digest] = Shown(manifest, held)
        for asker in hashing.waiting:
            self.send(asker, manifest)

    def _tell_waiting(self) -> None:
        for model, hashing in self._hashing.items():
            for asker in hashing.waiting:
                self._pending(asker, model, hashing)

    def _pending(self, asker: bytes, model: ModelId, hashing: _Hashing) -> None:
        done, total = hashing.done_bytes, sum(file.size_bytes for file in hashing.held)
        self.send(asker, ManifestPending(model=model, done_bytes=done, total_bytes=total))

    def _cannot_read(self, asker: bytes, model: ModelId, error: Exception) -> None:
        self._log.warning("cannot read a model for another node", model=model, error=str(error))
        text = f"cannot read {model}: {type(error).__name__}"
        self.send(asker, WeightsRefused(reason="unreadable", message=text, model=model))

    # --- pieces ---

    def _queue(self, asker: bytes, ask: AskPiece) -> None:
        waiting = self._open.setdefault(asker, deque())
        if len(waiting) >= MAX_OPEN:
            self._refuse(asker, ask, "busy", f"too many open pieces: the limit is {MAX_OPEN}")
            return
        if not waiting:
            self._turn.append(asker)
        waiting.append(ask)
        self._read_soon()

    def _read_soon(self) -> None:
        if not self._reading and self._turn:
            self._reading = True
            wait_s = self._pace.wait_s(self._reactor.now())
            self._reactor.later(wait_s, self._read_some)

    def _read_some(self) -> None:
        self._reading = False
        for _ in range(SLICE):
            if not self._turn:
                return
            if self._pace.wait_s(self._reactor.now()):
                break
            asker = self._turn.popleft()
            waiting = self._open.get(asker)
            if not waiting:
                continue
            self._answer(asker, waiting.popleft())
            if waiting:
                self._turn.append(asker)
            else:
                del self._open[asker]
        self._read_soon()

    def _answer(self, asker: bytes, ask: AskPiece) -> None:
        shown, lent = self._shown.get(ask.digest), self._beside.files.get(ask.digest)
        if shown is None and lent is None:
            self._refuse(asker, ask, "unknown_digest", "this content is no longer here")
            return
        held = lent if shown is None else shown.held.get(ask.path)
        if held is None or ask.offset + ask.length > held.size_bytes:
            self._refuse(asker, ask, "bad_request", "this piece does not exist")
            return
        try:
            content = held.read(ask.offset, ask.length)
        except (FileChanged, FileNotFoundError):
            self._shown.pop(ask.digest, None)
            self._beside.files.pop(ask.digest, None)
            self._refuse(asker, ask, "unknown_digest", f"{ask.path} has changed on the disk")
            return
        except OSError as error:
            self._log.error("cannot read a piece", path=str(held.real), error=str(error))
            self._refuse(asker, ask, "unreadable", f"cannot read {ask.path}: {error.strerror}")
            return
        self._pace.sent(len(content), self._reactor.now())
        self.send(asker, PieceSent(digest=ask.digest, path=ask.path, offset=ask.offset), content)

    def _refuse(self, asker: bytes, ask: AskPiece, reason: Reason, message: str) -> None:
        where = ask.model_dump(include={"digest", "path", "offset"})
        self.send(asker, WeightsRefused(reason=reason, message=message, **where))
