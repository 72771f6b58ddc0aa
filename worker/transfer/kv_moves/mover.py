"""Talks to other nodes' stores: finds runs of KV for this node's runners, and copies them.

Runs in the weights thread. Other nodes offer runs; the best one is copied if that is faster than
computing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bus.links.reactor import Timer
from bus.links.transport import Frames, Link
from bus.models.kv import (
    BLOCK_TOKENS,
    KvKey,
    KvLimits,
    model_folder,
    run_path,
)
from bus.process.logs import Log
from bus.wire.codec import decode
from bus.wire.errors import BadMessage
from bus.wire.ids import NodeId
from bus.wire.kv import AskRun, RunOffered, RunSought, SeekRun, SoughtWhat
from bus.wire.messages.weights import PieceSent, WeightsRefused
from worker.transfer.disk_thread import DiskThread
from worker.transfer.kv_moves.choice import MOST_BYTES_PER_S, choose, saved_s
from worker.transfer.kv_moves.run_copy import RunCopy
from worker.transfer.kv_moves.shelf import content_for, content_of
from worker.transfer.source import StoreAddress
from worker.transfer.thread import ThreadParts

MOST_MOVES = 4
TICK_S = 0.1
ANSWER_S = 1.2
"""How long to wait for the offers of other nodes, at most."""
SILENT_S = 60.0
"""A node that did not answer is not asked again before this time has passed."""
SPEED_S = 600.0
"""For this time after a copy, its measured speed counts instead of the link's."""


@dataclass(frozen=True, slots=True)
class Seek:
    """A question of a runner. `path` is the model's folder, and `bytes_per_s` has the measured
    speed of the link to each node that can be asked. The weights thread calls `reply`."""

    question: SeekRun
    path: Path
    bytes_per_s: Mapping[StoreAddress, float]
    reply: Callable[[RunSought], None]


@dataclass(slots=True, eq=False)
class _Move:
    """A seek, from the question to the file. `content`: the hash of this node's model files; None
    before its computation begins, and empty until it ends."""

    seek: Seek
    began_at: float
    links: dict[StoreAddress, Link] = field(default_factory=dict[StoreAddress, Link])
    offers: dict[StoreAddress, RunOffered] = field(default_factory=dict[StoreAddress, RunOffered])
    content: str | None = None
    copy: RunCopy | None = None
    over: bool = False


class RunMover:
    """The copies that runners of this node wait for. `disk` is the thread that checks files."""

    def __init__(
        self, parts: ThreadParts, limits: KvLimits, disk: DiskThread, node: NodeId, log: Log
    ) -> None:
        self._parts = parts
        self._limits = limits
        self._node = node
        self._log = log
        self._disk = disk
        self._moves: list[_Move] = []
        self._unwatched: list[Link] = []
        self._count = 0
        self._silent: dict[NodeId, float] = {}
        """By node: when it may be asked again."""
        self._speeds: dict[NodeId, tuple[float, float]] = {}
        """By node: the measured speed of its last copy, and when."""
        self._timer: Timer | None = None

    def close(self) -> None:
        """End all copies; the thread's loop has ended."""
        for move in list(self._moves):
            self._end(move)
        self._close_links()

    def seek(self, seek: Seek) -> None:
        """Ask other nodes for a run; copy the best one if that is faster than computing."""
        now = self._parts.reactor.now()
        sources = [s for s in seek.bytes_per_s if now >= self._silent.get(s.node, now)]
        if len(self._moves) >= MOST_MOVES or not sources:
            seek.reply(RunSought(prompt=seek.question.prompt, what="none"))
            return
        move = _Move(seek, now)
        self._moves.append(move)
        question = seek.question
        ask = AskRun(
            model=question.model,
            adapter=question.adapter,
            how=question.how,
            hashes=question.hashes,
        )
        for source in sources:
            link = move.links[source] = self._parts.link("dealer", source.node)
            self._parts.reactor.watch(link, partial(self._received, move, source))
            link.connect(source.address, peer=source.node)
            link.send(self._parts.pack(ask))
        if self._timer is None:
            self._timer = self._parts.reactor.every(TICK_S, self._tick)

    def _received(self, move: _Move, source: StoreAddress, frames: Frames) -> None:
        if move.over or len(frames) > 2:
            return
        try:
            message = decode(frames[0]).message
        except BadMessage as error:
            self._log.debug("dropped a message from a store", error=str(error)[:200])
            return
        copy = move.copy
        if copy is not None and copy.plan.source != source:
            return
        match message:
            case RunOffered() if copy is None:
                move.offers[source] = message
                self._look_at_offers(move)
            case PieceSent(offset=offset) if copy is not None and len(frames) == 2:
                copy.take_piece(offset, frames[1])
            case WeightsRefused() if copy is not None:
                copy.refuse(message)
            case _:
                pass

    def prepare(self, path: Path) -> None:
        """Hash a model's files now, so that the first copy need not wait for that."""
        work = partial(content_of, path, "", self._parts.hashes)
        self._parts.hashing.add(work, lambda _content: None)

    def _look_at_offers(self, move: _Move) -> None:
        """If an offer has more blocks than the runner, hash this node's model files, to compare
        them with the offering node's. When all nodes have answered, choose an offer."""
        offers, question = move.offers, move.seek.question
        least = 1 + question.have // BLOCK_TOKENS
        if any(offer.blocks >= least for offer in offers.values()):
            if move.content is None:
                move.content = ""
                key, path = KvKey(question.folder, question.how), move.seek.path
                work = partial(content_for, key, path, question.adapter, self._parts.hashes)
                self._parts.hashing.add(work, partial(self._hashed, move))
            elif move.content and len(offers) == len(move.links):
                self._choose(move)
        elif len(offers) == len(move.links):
            self._finish(move, "none")

    def _hashed(self, move: _Move, content: str | Exception) -> None:
        if move.over:
            return
        if isinstance(content, Exception):
            self._finish(move, "none")
            return
        move.content = content
        if len(move.offers) == len(move.links):
            self._choose(move)

    def _choose(self, move: _Move) -> None:
        """Begin the best copy, or report that none is worth it."""
        now, question = self._parts.reactor.now(), move.seek.question
        offers = {
            source: offer
            for source, offer in move.offers.items()
            if offer.blocks and offer.content == move.content and offer.origin != self._node
        }
        speeds = {source: self._speed(source, move.seek, now) for source in offers}
        plan = choose(question, offers, speeds, self._limits.most_bytes)
        if plan is None:
            self._note_dearer(move, offers, speeds)
            self._finish(move, "dearer" if offers else "none")
            return
        source, offered = plan.source, plan.offered
        try:
            folder = model_folder(self._limits.root, question.model) / question.folder
            path = run_path(folder, offered.name, offered.origin or source.node)
        except ValueError as error:
            self._log.warning("refused KV of a node", source=source.node, why=str(error))
            self._finish(move, "failed")
            return
        self._count += 1
        move.copy = RunCopy(
            self._parts,
            self._disk,
            plan,
            question,
            move.links[source],
            path,
            self._count,
            partial(self._copied, move),
        )
        self._tell(move, "coming", wait_s=plan.wait_s)
        move.copy.begin(self._limits)

    def _note_dearer(
        self,
        move: _Move,
        offers: Mapping[StoreAddress, RunOffered],
        speeds: Mapping[StoreAddress, float],
    ) -> None:
        """Log the offers that would be slower than computing, with the numbers compared."""
        for source, offered in offers.items():
            self._log.info(
                "KV of a prompt is not copied: computing it is expected to be faster",
                source=source.node,
                size_bytes=offered.size_bytes,
                bytes_per_s=round(speeds[source]),
                computing_s=round(saved_s(move.seek.question, BLOCK_TOKENS * offered.blocks), 3),
            )

    def _speed(self, source: StoreAddress, seek: Seek, now: float) -> float:
        """Return the speed of a recent copy from the node, else the speed of the link."""
        speed, at = self._speeds.get(source.node, (0.0, -SPEED_S))
        return speed if now - at < SPEED_S else min(seek.bytes_per_s[source], MOST_BYTES_PER_S)

    def _tick(self) -> None:
        now = self._parts.reactor.now()
        for move in list(self._moves):
            if move.copy is not None:
                move.copy.tick(now)
            elif now - move.began_at >= ANSWER_S:
                silent = move.links.keys() - move.offers.keys()
                self._silent |= {source.node: now + SILENT_S for source in silent}
                if move.content and any(offer.blocks for offer in move.offers.values()):
                    self._choose(move)
                else:
                    self._finish(move, "none")
        if not self._moves and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _copied(self, move: _Move, why: str) -> None:
        """Record the speed of a copy that has ended, log it and answer the runner. `why`: why the
        copy failed; empty if the file is there."""
        copy, now = move.copy, self._parts.reactor.now()
        assert copy is not None, "a copy ended that was never begun"
        source, seconds = copy.plan.source.node, max(now - copy.began_at, 1e-6)
        model, size = move.seek.question.model, copy.plan.offered.size_bytes
        if copy.received_bytes:
            self._speeds[source] = copy.received_bytes / seconds, now
        else:
            self._silent[source] = now + SILENT_S
        if why:
            text = "KV of a prompt was not copied"
            self._log.warning(text, source=source, model=model, why=why)
            self._finish(move, "failed")
            return
        took_s = round(seconds, 3)
        text = "copied KV of a prompt"
        self._log.info(text, source=source, model=model, size_bytes=size, seconds=took_s)
        self._finish(move, "moved", size_bytes=size)

    def _tell(
        self, move: _Move, what: SoughtWhat, *, wait_s: float = 0.0, size_bytes: int = 0
    ) -> None:
        prompt = move.seek.question.prompt
        move.seek.reply(RunSought(prompt=prompt, what=what, wait_s=wait_s, size_bytes=size_bytes))

    def _finish(self, move: _Move, what: SoughtWhat, *, size_bytes: int = 0) -> None:
        self._tell(move, what, size_bytes=size_bytes)
        self._end(move)
        self._parts.reactor.later(0.0, self._close_links)

    def _close_links(self) -> None:
        while self._unwatched:
            self._unwatched.pop().close()

    def _end(self, move: _Move) -> None:
        """Free everything that a move uses, and delete an unfinished file. Its links are closed
        later, because one of them may be calling."""
        move.over = True
        self._moves.remove(move)
        for link in move.links.values():
            self._parts.reactor.unwatch(link)
        if move.copy is not None:
            move.copy.discard()
        self._unwatched += move.links.values()
