"""Talks to other nodes' stores and to the disk: fetches the models that this node must hold.

Each model has a `worker.transfer.download.Download`, which decides what to fetch from where; this
module carries it out. The event loop writes pieces to disk; a thread hashes whole files and moves
complete models into place. A cancelled attempt leaves its
staging folder, and the next attempt continues there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, assert_never

from bus.links.reactor import Reactor, Timer
from bus.links.transport import Change, Frames, Link
from bus.process.logs import Log
from bus.wire.codec import decode
from bus.wire.errors import BadMessage, Refusal
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import FetchReading
from bus.wire.messages.weights import DISK_MARGIN_BYTES
from bus.wire.messages.wire import Message
from worker.models.layer_bytes import Layers
from worker.transfer.disk_thread import DiskThread, Result, Work
from worker.transfer.download import Download, DownloadAction, OpenStage, PublishModel, WritePiece
from worker.transfer.file_checks import CheckFile, broken_disk
from worker.transfer.source import AskSource, StoreAddress
from worker.transfer.staging import Stage, begun

TICK_S = 0.25
SLICE = 4
"""The number of messages that the loop processes before it handles other events."""

OpenLink = Callable[[Literal["dealer", "router"], NodeId | None], Link]
"""Returns a new socket: a ROUTER for this node's store, or a DEALER to the store of the given
node."""
Pack = Callable[[Message], bytes]
"""Packs a message into an envelope of this node, as one frame."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model to fetch (all of it, or the pieces that its `layers` need) and the nodes that have
    it. If an attempt with the same number runs, it only gets the new sources."""

    model: ModelId
    attempt: int
    sources: Sequence[StoreAddress]
    layers: Layers | None = None


@dataclass(frozen=True, slots=True)
class DownloadNews:
    """The state of an attempt to fetch a model; `refusal` is set if it failed. `received_bytes`
    counts only bytes that came over the network in this attempt."""

    attempt: int
    reading: FetchReading
    refusal: Refusal | None
    received_bytes: int


@dataclass(slots=True)
class _Run:
    """One attempt to fetch a model: its state machine, its staging folder, and a DEALER socket for
    each source."""

    attempt: int
    download: Download
    stage: Stage | None = None
    links: dict[StoreAddress, Link] = field(default_factory=dict[StoreAddress, Link])
    live: bool = True
    ended: bool = False

    def news(self, now: float) -> DownloadNews:
        """Return the current state and progress of a fetch attempt."""
        of = self.download
        return DownloadNews(self.attempt, of.reading(now), of.refusal, of.received.total)


class Downloader:
    """All running fetches of one node. `models` is the folder that they fill. `latest` has the
    state of each, at most a quarter of a second old, for other threads to read."""

    def __init__(
        self,
        reactor: Reactor,
        open_link: OpenLink,
        pack: Pack,
        jobs: DiskThread,
        models: Path,
        log: Log,
        *,
        margin_bytes: int = DISK_MARGIN_BYTES,
    ) -> None:
        self._reactor = reactor
        self._open_link = open_link
        self._pack = pack
        self._jobs = jobs
        self._models = models
        self._log = log
        self._margin_bytes = margin_bytes
        self._runs: dict[ModelId, _Run] = {}
        self._inbox: deque[tuple[_Run, StoreAddress, Frames]] = deque()
        self._timer: Timer | None = None
        self.latest: Mapping[ModelId, DownloadNews] = {}

    def want(self, wanted: Wanted) -> None:
        """Begin this attempt, and cancel an earlier one for the same model. If the attempt already
        runs, add its sources."""
        model, layers = wanted.model, wanted.layers
        run = self._runs.get(model)
        if run is not None and run.attempt == wanted.attempt:
            run.download.sources.add(wanted.sources)
            return
        self.cancel(model)
        names = ", ".join(sorted({str(source.node) for source in wanted.sources}))
        part = f"layers {layers.first} to {layers.last}" if layers else "all"
        self._log.info("fetching a model", model=model, sources=names, part=part)
        download = Download(
            model,
            wanted.sources,
            self._reactor.now(),
            begun=begun(self._models, model),
            margin_bytes=self._margin_bytes,
            layers=layers,
        )
        self._runs[model] = run = _Run(wanted.attempt, download)
        if self._timer is None:
            self._timer = self._reactor.every(TICK_S, self._tick)
        self._do(run, download.tick(self._reactor.now()))

    def cancel(self, model: ModelId) -> None:
        """Cancel the attempt to fetch a model. If it has ended, drop its result."""
        run = self._runs.pop(model, None)
        if run is not None:
            if not run.download.over:
                self._log.info("cancelled a fetch", model=model)
            run.live = False
            self._hang_up(run)
        if self._timer is not None and not self._runs:
            self._timer.cancel()
            self._timer = None
            self.latest = {}

    def news(self) -> Mapping[ModelId, DownloadNews]:
        """Return the state of each attempt; finished ones stay until cancelled."""
        now = self._reactor.now()
        return {model: run.news(now) for model, run in self._runs.items()}

    def close(self) -> None:
        """Cancel all fetches. Their partial files stay on the disk for a later attempt."""
        for model in list(self._runs):
            self.cancel(model)

    # --- what happens ---

    def _tick(self) -> None:
        now = self._reactor.now()
        for run in list(self._runs.values()):
            self._do(run, run.download.tick(now))
        self.latest = self.news()

    def _received(self, run: _Run, source: StoreAddress, frames: Frames) -> None:
        """Queue a message of a source. A few messages are processed at a time, so that no source
        keeps the loop busy."""
        self._inbox.append((run, source, frames))
        if len(self._inbox) == 1:
            self._reactor.later(0.0, self._take_some)

    def _take_some(self) -> None:
        for _ in range(min(SLICE, len(self._inbox))):
            self._take_frames(*self._inbox.popleft())
        if self._inbox:
            self._reactor.later(0.0, self._take_some)

    def _take_frames(self, run: _Run, source: StoreAddress, frames: Frames) -> None:
        if not run.live or len(frames) > 2:
            return
        try:
            message = decode(frames[0]).message
        except BadMessage as error:
            self._log.debug(
                "dropped a message from a store", node=source.node, error=str(error)[:200]
            )
            return
        content = frames[1] if len(frames) == 2 else b""
        self._do(run, run.download.receive(source, message, content, self._reactor.now()))

    def _changed(self, run: _Run, source: StoreAddress, change: Change) -> None:
        if run.live:
            now, download = self._reactor.now(), run.download
            lost = change == "lost"
            self._do(run, download.lost(source, now) if lost else download.connected(source, now))

    # --- what is to be done ---

    def _do(self, run: _Run, actions: list[DownloadAction]) -> None:
        if not run.live:
            return
        try:
            for action in actions:
                self._act(run, action)
        except OSError as error:
            run.download.failed(broken_disk(run.download.model, error))
        if run.download.over and not run.ended:
            run.ended = True
            self._tell_end(run)
            self._hang_up(run)

    def _act(self, run: _Run, action: DownloadAction) -> None:
        match action:
            case AskSource(source=source, message=message):
                self._link(run, source).send(self._pack(message))
            case OpenStage(manifest=manifest):
                run.stage = stage = Stage(self._models, manifest)
                then = run.download.staged
                self._work(run, stage.open, lambda staged: then(staged, self._reactor.now()))
            case WritePiece(piece=piece, content=content) if run.stage is not None:
                run.stage.write(piece, content)
            case CheckFile(path=path, wanted=wanted) if run.stage is not None:
                checked = partial(self._checked, run, run.stage, action)
                self._work(run, partial(run.stage.check, path, wanted=wanted), checked)
            case PublishModel() if run.stage is not None:
                layers, stage = run.download.layers, run.stage
                nodes = run.download.reading(self._reactor.now()).sources
                whole = partial(stage.publish, nodes=nodes)
                ends = whole if layers is None else partial(stage.keep, layers)
                self._work(run, ends, lambda _place: run.download.published())
            case WritePiece() | CheckFile() | PublishModel():
                raise AssertionError("a staging folder must be opened before it is used")
            case _:
                assert_never(action)

    def _work(
        self, run: _Run, work: Work[Result], then: Callable[[Result], list[DownloadAction]]
    ) -> None:
        """Run `work` in the disk thread, and pass its result to `then` in the loop's thread."""

        def done(result: Result | Exception) -> None:
            """Process the result of the work, or cancel the download if the disk failed."""
            if isinstance(result, Exception):
                run.download.failed(broken_disk(run.download.model, result))
                self._do(run, [])
            else:
                self._do(run, then(result))

        self._jobs.add(work, done)

    def _checked(
        self, run: _Run, stage: Stage, check: CheckFile, bad: tuple[int, ...] | None
    ) -> list[DownloadAction]:
        if bad:
            self._log.warning("fetched bytes changed on the disk", path=check.path, pieces=len(bad))
            stage.spoil(check.path, bad)
        return run.download.checked(check.digest, check.path, bad, self._reactor.now())

    def _tell_end(self, run: _Run) -> None:
        download, model = run.download, run.download.model
        if download.refusal is not None:
            self._log.error("could not fetch a model", model=model, why=download.refusal.message)
        else:
            self._log.info("fetched a model", model=model, received_bytes=download.received.total)

    def _link(self, run: _Run, source: StoreAddress) -> Link:
        link = run.links.get(source)
        if link is None:
            run.links[source] = link = self._open_link("dealer", source.node)
            self._reactor.watch(link, partial(self._received, run, source))
            self._reactor.watch_changes(link, partial(self._changed, run, source))
            link.connect(source.address, peer=source.node)
        return link

    def _hang_up(self, run: _Run) -> None:
        for link in run.links.values():
            self._reactor.unwatch(link)
            link.close()
        run.links.clear()
