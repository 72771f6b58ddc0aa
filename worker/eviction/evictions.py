"""Talks to the bus and to a thread: deletes models that this node fetched, one at a time.

The worker calls `tick`. For each model another node is first asked to keep its copy (`grants`).
Then the folder is moved aside and checked again, as in `shoal rm`; if the model is in use by then,
it is moved back. The contents of the store are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from bus.models.held_models import FolderKept
from bus.models.model_folders import delete_aside, put_back
from bus.process.clock import wall
from bus.wire.cards import ModelCard, PartialModel
from bus.wire.messages.weights import LetGo, PurgeAsked, StorageReading
from bus.wire.topics import reading_topic
from worker.eviction.choice import fetched_bytes, plan
from worker.eviction.folders import NotLetGo, content_of, put_away
from worker.eviction.grants import Content, Granted, NotGranted
from worker.eviction.holdings import Holding, holdings_of
from worker.eviction.keeping import Keeping
from worker.eviction.known import Knowledge, Near, StoreSettings
from worker.eviction.report import WHY_CHARACTERS, Told, reading_of, stored
from worker.eviction.rounds import Round, StoreRounds
from worker.transfer.disk_thread import DiskThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from bus.client import BusClient
    from bus.wire.codec import Envelope
    from bus.wire.ids import ModelId, NodeId

LOOK_S = 1.0
PUBLISH_S = 30.0
PARTS_S = 60.0
"""A folder with only some layers of a model is deleted within this many seconds, or else kept. Its
deletion needs no promise of another node."""


@dataclass(slots=True)
class _Going:
    """A model to delete in a round. `has_begun`: the thread has begun to delete it. `content`
    identifies the copy that another node is asked to keep. It is None for a model with only some
    layers, which other nodes need not keep."""

    holding: Holding
    round: Round
    kept_by: NodeId | None = None
    has_begun: bool = False
    content: Content | None = None


class Evictions:
    """Deletes models that this node fetched, and publishes what its store contains."""

    def __init__(self, client: BusClient, settings: StoreSettings, near: Near) -> None:
        self._client = client
        self._settings = settings
        self._near = near
        now, node = client.reactor.now(), client.speaker.node
        self._rounds = StoreRounds(-1 if settings.keeps_all else settings.limit_bytes, now)
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = DiskThread("evicting", self._news.put)
        self._knowledge = Knowledge(client, settings, near, self._thread)
        self._keeping = Keeping(client, self._thread, self._copy_of)
        self._grants = self._keeping.grants
        self._going: _Going | None = None
        self._gone: dict[str, ModelCard | PartialModel] = {}
        """Deleted models by folder. An entry stays until a scan of the disk no longer finds the
        model, or finds a new one in its folder."""
        self._look_at = self._published_at = now - PUBLISH_S
        self._published: StorageReading | None = None
        self._report = Told(node, settings.limit_bytes, settings.keeps_all)
        client.hear(f"purge.asked.{node}", self._take_question)

    def tick(self, now: float) -> None:
        """Start the next check or deletion if it is due, and act on what the thread has
        finished."""
        while not self._news.empty():
            self._news.get()()
        self._rounds.tick(now)
        if self._knowledge.unloaded():
            self._rounds.begin("a model was unloaded", now)
        self._keeping.tick(now)
        if self._going is not None and not self._going.has_begun:
            self._judge(self._going)
        if now - self._look_at >= LOOK_S:
            self._look_at = now
            self._knowledge.look_at_disk()
            if self._knowledge.is_ready:
                self._look(now)

    def close(self) -> None:
        """End the thread. Folders that were moved aside are deleted when a worker starts."""
        self._thread.close()

    def _take_question(self, _topic: str, envelope: Envelope) -> None:
        if isinstance(envelope.message, PurgeAsked):
            self._rounds.ask(envelope.message, self._client.reactor.now())

    def _copy_of(self, model: ModelId) -> ModelCard | None:
        card = self._near.here.cards.get(model)
        return None if card is None or self._gone.get(card.path) == card else card

    def _holdings(self) -> tuple[Holding, ...]:
        """Return the models on this disk, each with the reason why it must stay. Models that were
        just deleted are left out."""
        here = self._lying_here()
        self._gone = {
            path: stored for path, stored in self._gone.items() if here.get(path) == stored
        }
        left = [stored for path, stored in here.items() if path not in self._gone]
        return holdings_of(
            [stored for stored in left if isinstance(stored, ModelCard)],
            [stored for stored in left if isinstance(stored, PartialModel)],
            self._near.used,
            self._knowledge.around(),
        )

    def _lying_here(self) -> dict[str, ModelCard | PartialModel]:
        """Return the complete and the partial models that the last scan found, by folder."""
        here = self._near.here
        return {stored.path: stored for stored in (*here.cards.values(), *here.parts.values())}

    # --- what goes ---

    def _look(self, now: float) -> None:
        """Start the next deletion, if one is due, and publish the state of the store."""
        holdings, current = self._holdings(), self._rounds.current
        if current is not None:
            holdings = tuple(_judged(holding, current.refused) for holding in holdings)
            if self._going is None:
                self._go_on(current, holdings, now)
        self._publish(holdings, now)

    def _go_on(self, current: Round, holdings: tuple[Holding, ...], now: float) -> None:
        going = plan(holdings, current.limit_bytes)
        purge = self._rounds.purge
        if not going:
            fetched = [holding for holding in holdings if holding.what == "fetched"]
            over = fetched_bytes(fetched) > current.limit_bytes
            waits = over and any(holding.path not in current.refused for holding in fetched)
            self._rounds.exhausted(tuple(map(stored, fetched)), now, waits=waits)
        else:
            if purge is not None:
                purge.phase, purge.note = "deleting", f"{going[0].model} is next"
            self._begin(_Going(going[0], current), now)

    def _begin(self, going: _Going, now: float) -> None:
        self._going, holding = going, going.holding
        if holding.in_part:
            self._put_away(going, now + PARTS_S)
        else:
            folder = Path(holding.path)
            self._thread.add(lambda _stopped: content_of(folder), partial(self._wish, going))

    def _wish(self, going: _Going, content: Content | Exception) -> None:
        holding, now = going.holding, self._client.reactor.now()
        if isinstance(content, Exception):
            self._keep(going, _words(content))
            return
        going.content = content
        self._grants.wish(holding.model, holding.digest, holding.keepers, now, content=content)

    def _judge(self, going: _Going) -> None:
        """Act on the answers of the other nodes: delete the model if one of them granted the
        deletion, keep the model if none did. Do nothing while answers are missing."""
        match self._grants.verdict:
            case Granted(node=node, until_at=until_at):
                going.kept_by = node
                self._put_away(going, until_at)
            case NotGranted(why=why):
                self._keep(going, why)
            case None:
                pass

    def _put_away(self, going: _Going, until_at: float) -> None:
        if why := self._in_use(going):
            self._keep(going, why)
            return
        going.has_begun, holding = True, going.holding
        models, content = self._settings.models, going.content
        self._thread.add(
            lambda _stopped: put_away(Path(holding.path), models, until_at, content),
            partial(self._look_again, going),
        )

    def _look_again(self, going: _Going, aside: tuple[Path, Path] | Exception) -> None:
        """Delete the folder that was moved aside, unless the model has come into use since."""
        if isinstance(aside, Exception):
            self._keep(going, _words(aside))
            return
        folder, hidden = aside
        models = self._settings.models
        if why := self._in_use(going):
            self._thread.add(
                lambda _stopped: put_back(hidden, folder),
                lambda failed: self._keep(going, _words(failed) if failed else why),
            )
            return
        path = going.holding.path
        if (gone := self._lying_here().get(path)) is not None:
            self._gone[path] = gone
        self._thread.add(
            lambda _stopped: delete_aside(hidden, folder, models), partial(self._went, going)
        )

    def _in_use(self, going: _Going) -> str:
        return self._knowledge.around().in_use(going.holding.model)

    def _went(self, going: _Going, failed: Exception | None) -> None:
        holding, log = going.holding, self._client.log
        if failed is not None:
            log.warning(
                "an evicted model was not deleted completely",
                model=holding.model,
                why=_words(failed),
            )
        gone = LetGo(
            model=holding.model,
            size_bytes=holding.size_bytes,
            at_s=wall(),
            why=self._reason(going.round),
            kept_by=going.kept_by or "",
        )
        log.info(
            "deleted a fetched model",
            model=holding.model,
            bytes=holding.size_bytes,
            folder=holding.path,
            why=gone.why,
            kept_by=gone.kept_by,
        )
        self._report.let_go.append(gone)
        if (purge := self._rounds.purge) is not None and purge.round is going.round:
            purge.let_go.append(gone)
        self._end()

    def _reason(self, current: Round) -> str:
        limit_bytes = self._settings.limit_bytes
        if current.cause == "purged":
            return "purged: another node or the hub still has it"
        if limit_bytes == 0:
            return f"{current.cause}, and store_bytes is 0"
        text = f"{current.cause}, and the fetched models exceed store_bytes ({limit_bytes})"
        return f"{text}; this deletable model was used least recently"

    def _keep(self, going: _Going, why: str) -> None:
        """Keep the model, for the reason `why`, and do not try to delete it again in this round."""
        holding = going.holding
        for node, card in self._knowledge.around().others.items():
            why = why.replace(node, card.name)
        self._client.log.info(
            "kept a fetched model", model=holding.model, folder=holding.path, why=why
        )
        going.round.refused[holding.path] = why
        self._end()

    def _end(self) -> None:
        self._grants.forget()
        self._going, self._look_at = None, self._client.reactor.now() - LOOK_S

    # --- what is told ---

    def _publish(self, holdings: tuple[Holding, ...], now: float) -> None:
        """Publish the report about the store if it has changed, and every half minute."""
        self._report.disk_free_bytes = self._knowledge.free_bytes or 0
        reading = reading_of(self._report, holdings, [purge.state for purge in self._rounds.purges])
        free, last = {"disk_free_bytes": reading.disk_free_bytes}, self._published
        same = last is not None and last.model_copy(update=free) == reading
        if not same or now - self._published_at >= PUBLISH_S:
            self._published, self._published_at = reading, now
            self._client.publish(reading_topic("storage", self._client.speaker.node), reading)


def _judged(holding: Holding, refused: Mapping[str, str]) -> Holding:
    """Return the model's entry in the report. If the model's deletion was refused in this round,
    the entry's `why` is the reason of that refusal."""
    return (
        replace(holding, why=refused[holding.path])
        if not holding.why and holding.path in refused
        else holding
    )


def _words(error: Exception) -> str:
    if isinstance(error, FolderKept):
        return error.words[:WHY_CHARACTERS]
    return str(error) if isinstance(error, NotLetGo) else f"{type(error).__name__}: {error}"
