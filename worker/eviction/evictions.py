"""Talks to the bus and to a thread: what one node fetched is let go, one model after the other.

`tick` is called by the worker. Of a model that is to go another node is asked first, which keeps
its copy (`grants`); then it is moved out of sight and looked at once more, as `shoal rm` does:
where something has to do with it by then it is moved back. What lies here is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from bus.held_models import FolderKept
from bus.model_folders import delete_aside, put_back
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
"""Layers of a model are no copy of it, and need no grant; they go within this, or stay."""


@dataclass(slots=True)
class _Going:
    """A model that is to go, for a round. `has_begun`: the thread has it. `content` is what another
    node is asked to keep; None of some layers, which no node keeps for it."""

    holding: Holding
    round: Round
    kept_by: NodeId | None = None
    has_begun: bool = False
    content: Content | None = None


class Evictions:
    """What this node lets go."""

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
        """What was deleted, by folder, until a look at the disk finds it gone, or come anew."""
        self._look_at = self._published_at = now - PUBLISH_S
        self._published: StorageReading | None = None
        self._told = Told(node, settings.limit_bytes, settings.keeps_all)
        client.hear(f"purge.asked.{node}", self._asked)

    def tick(self, now: float) -> None:
        """Do what is due, and take in what the thread has done."""
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
        """End the thread. What was put aside is deleted when a worker starts."""
        self._thread.close()

    def _asked(self, _topic: str, envelope: Envelope) -> None:
        if isinstance(envelope.message, PurgeAsked):
            self._rounds.asked(envelope.message, self._client.reactor.now())

    def _copy_of(self, model: ModelId) -> ModelCard | None:
        card = self._near.here.cards.get(model)
        return None if card is None or self._gone.get(card.path) == card else card

    def _holdings(self) -> tuple[Holding, ...]:
        """Return what lies here and why it stays, without what was just deleted."""
        here = self._lying_here()
        self._gone = {path: one for path, one in self._gone.items() if here.get(path) == one}
        left = [one for path, one in here.items() if path not in self._gone]
        return holdings_of(
            [one for one in left if isinstance(one, ModelCard)],
            [one for one in left if isinstance(one, PartialModel)],
            self._near.used,
            self._knowledge.around(),
        )

    def _lying_here(self) -> dict[str, ModelCard | PartialModel]:
        """Return what the last look at the disk found, by folder."""
        here = self._near.here
        return {one.path: one for one in (*here.cards.values(), *here.parts.values())}

    # --- what goes ---

    def _look(self, now: float) -> None:
        """Begin with the next that is to go, and tell how the store is."""
        holdings, current = self._holdings(), self._rounds.current
        if current is not None:
            holdings = tuple(_judged(one, current.refused) for one in holdings)
            if self._going is None:
                self._go_on(current, holdings, now)
        self._publish(holdings, now)

    def _go_on(self, current: Round, holdings: tuple[Holding, ...], now: float) -> None:
        going = plan(holdings, current.limit_bytes)
        purge = self._rounds.purge
        if not going:
            fetched = [one for one in holdings if one.what == "fetched"]
            over = fetched_bytes(fetched) > current.limit_bytes
            waits = over and any(one.path not in current.refused for one in fetched)
            self._rounds.exhausted(tuple(map(stored, fetched)), now, waits=waits)
        else:
            if purge is not None:
                purge.phase, purge.note = "deleting", f"{going[0].model} is next"
            self._begin(_Going(going[0], current), now)

    def _begin(self, going: _Going, now: float) -> None:
        self._going, one = going, going.holding
        if one.in_part:
            self._put_away(going, now + PARTS_S)
        else:
            folder = Path(one.path)
            self._thread.add(lambda _stopped: content_of(folder), partial(self._wish, going))

    def _wish(self, going: _Going, content: Content | Exception) -> None:
        one, now = going.holding, self._client.reactor.now()
        if isinstance(content, Exception):
            self._keep(going, _words(content))
            return
        going.content = content
        self._grants.wish(one.model, one.digest, one.keepers, now, content=content)

    def _judge(self, going: _Going) -> None:
        """Go by what other nodes said of it."""
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
        going.has_begun, one = True, going.holding
        models, content = self._settings.models, going.content
        self._thread.add(
            lambda _stopped: put_away(Path(one.path), models, until_at, content),
            partial(self._look_again, going),
        )

    def _look_again(self, going: _Going, aside: tuple[Path, Path] | Exception) -> None:
        """Delete what lies aside, unless something has to do with the model by now."""
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
        one, log = going.holding, self._client.log
        if failed is not None:
            log.warning("what was let go is not all deleted", model=one.model, why=_words(failed))
        gone = LetGo(
            model=one.model,
            size_bytes=one.size_bytes,
            at_s=wall(),
            why=self._reason(going.round),
            kept_by=going.kept_by or "",
        )
        log.info(
            "let a fetched model go",
            model=one.model,
            bytes=one.size_bytes,
            folder=one.path,
            why=gone.why,
            kept_by=gone.kept_by,
        )
        self._told.let_go.append(gone)
        if (purge := self._rounds.purge) is not None and purge.round is going.round:
            purge.let_go.append(gone)
        self._end()

    def _reason(self, current: Round) -> str:
        limit_bytes = self._settings.limit_bytes
        if current.cause == "purged":
            return "purged, for it can be had again"
        if limit_bytes == 0:
            return f"{current.cause}, and store_bytes is 0"
        text = f"{current.cause}, and what was fetched takes more than store_bytes, {limit_bytes}"
        return f"{text}; of what may go it was used longest ago"

    def _keep(self, going: _Going, why: str) -> None:
        """Note that it is not let go in this round."""
        one = going.holding
        for node, card in self._knowledge.around().others.items():
            why = why.replace(node, card.name)
        self._client.log.info("a fetched model stays", model=one.model, folder=one.path, why=why)
        going.round.refused[one.path] = why
        self._end()

    def _end(self) -> None:
        self._grants.forget()
        self._going, self._look_at = None, self._client.reactor.now() - LOOK_S

    # --- what is told ---

    def _publish(self, holdings: tuple[Holding, ...], now: float) -> None:
        """Publish on change, and each half minute."""
        self._told.disk_free_bytes = self._knowledge.free_bytes or 0
        reading = reading_of(self._told, holdings, [one.state for one in self._rounds.purges])
        free, last = {"disk_free_bytes": reading.disk_free_bytes}, self._published
        same = last is not None and last.model_copy(update=free) == reading
        if not same or now - self._published_at >= PUBLISH_S:
            self._published, self._published_at = reading, now
            self._client.publish(reading_topic("storage", self._client.speaker.node), reading)


def _judged(one: Holding, refused: Mapping[str, str]) -> Holding:
    """Return it with why it was not let go a moment ago."""
    return replace(one, why=refused[one.path]) if not one.why and one.path in refused else one


def _words(error: Exception) -> str:
    if isinstance(error, FolderKept):
        return error.words[:WHY_CHARACTERS]
    return str(error) if isinstance(error, NotLetGo) else f"{type(error).__name__}: {error}"
