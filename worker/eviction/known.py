"""Talks to the bus and to a thread: collects what a node must know before it deletes a model.

It follows the pulls and fetches of other nodes and detects which models were unloaded. Its thread
checks which model folders have files that a person added or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.readings import PullReading, WeightsReading
from worker.eviction.folders import added_to
from worker.eviction.holdings import FETCHED, Surroundings
from worker.transfer.disk_thread import DiskThread

if TYPE_CHECKING:
    from bus.client import BusClient
    from bus.wire.codec import Envelope
    from worker.models.local_models import LocalModels
    from worker.slots.table import SlotTable
    from worker.transfer.downloads import Downloads

DISK_S = 10.0
FRESH_S = 15.0


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Fetched models may take `limit_bytes` in the folder `models`; below 0: unlimited.
    `keeps_all`: nothing is deleted. `offline`: no hub is contacted."""

    models: Path
    limit_bytes: int = -1
    keeps_all: bool = False
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Near:
    """Facts that other parts of the worker have: the models on its disk and when they were `used`;
    other nodes' cards (`downloads`); its slots; and the models being verified (`verifying`)."""

    here: LocalModels
    used: Mapping[ModelId, int]
    downloads: Downloads
    table: SlotTable
    verifying: Callable[[], Collection[ModelId]]


@dataclass(slots=True)
class _Heard:
    """The latest readings of each node about fetched and pulled models, with the instant of
    arrival."""

    weights: dict[NodeId, tuple[WeightsReading, float]] = field(
        default_factory=dict[NodeId, tuple[WeightsReading, float]]
    )
    pulls: dict[NodeId, tuple[PullReading, float]] = field(
        default_factory=dict[NodeId, tuple[PullReading, float]]
    )


class Knowledge:
    """A node's knowledge of the models on its disk and of their use in the cluster. `free_bytes` is
    the disk's free space at the last scan, None before the first."""

    def __init__(
        self, client: BusClient, settings: StoreSettings, near: Near, thread: DiskThread
    ) -> None:
        self._client = client
        self._settings = settings
        self._near = near
        self._thread = thread
        self._heard = _Heard()
        self._reads: dict[str, ModelId] = {}
        self._disk_at: float | None = None
        self.free_bytes: int | None = None
        self._stay_reasons: Mapping[str, str] = {}
        for kind in ("weights", "pulls"):
            client.hear(f"reading.{kind}", self._hear)

    @property
    def is_ready(self) -> bool:
        """Return whether the cluster's state, other nodes' cards and the disk's free space are
        known."""
        elsewhere = self._near.downloads.elsewhere(self._client.reactor.now())
        return elsewhere.has_heard and self._client.mirror.live and self.free_bytes is not None

    def unloaded(self) -> bool:
        """Return whether an instance of a model, or other work on a model, has ended since the last
        call, and its runners too."""
        seated = self._seated()
        instances = self._client.state.instances
        reads = {
            key: instance.reads for key, instance in instances.items() if instance.test is None
        }
        gone = self._reads.keys() - reads.keys()
        self._reads = reads | {key: self._reads[key] for key in gone & seated}
        return bool(gone - seated)

    def around(self) -> Surroundings:
        state, near, now = self._client.state, self._near, self._client.reactor.now()
        return Surroundings(
            models=str(self._settings.models),
            instances=tuple(state.instances.values()),
            pins=state.pins,
            weights=tuple(
                reading for reading, at in self._heard.weights.values() if now - at < FRESH_S
            ),
            pulls=tuple(
                reading for reading, at in self._heard.pulls.values() if now - at < FRESH_S
            ),
            others=near.downloads.elsewhere(now).cards,
            stores=near.downloads.stores(now),
            seated={self._reads[instance] for instance in self._seated() & self._reads.keys()},
            verifying=near.verifying(),
            stay_reasons=self._stay_reasons,
            keeps_all=self._settings.keeps_all,
            offline=self._settings.offline,
        )

    def look_at_disk(self) -> None:
        """If that is due, measure the free space of the disk, and search the folders of fetched
        models for files that a person added or changed."""
        now = self._client.reactor.now()
        if self._disk_at is not None and now - self._disk_at < DISK_S:
            return
        self._disk_at = now
        cards = self._near.here.cards.values()
        folders = [Path(card.path) for card in cards if card.origin in FETCHED]
        models = self._settings.models
        self._thread.add(
            lambda _stopped: (disk_usage(models).free, dict(_kept_folders(folders))), self._looked
        )

    def _looked(self, seen: tuple[int, dict[str, str]] | Exception) -> None:
        if not isinstance(seen, Exception):
            self.free_bytes, self._stay_reasons = seen

    def _hear(self, _topic: str, envelope: Envelope) -> None:
        reading, now = envelope.message, self._client.reactor.now()
        if isinstance(reading, WeightsReading):
            self._heard.weights[reading.node] = (reading, now)
        elif isinstance(reading, PullReading):
            self._heard.pulls[reading.node] = (reading, now)

    def _seated(self) -> set[str]:
        slots = self._near.table.slots.values()
        return {slot.task.instance for slot in slots if slot.task is not None}


def _kept_folders(folders: Iterable[Path]) -> Iterable[tuple[str, str]]:
    """Yield each model folder that must not be deleted, with the reason. A person may have added or
    changed files in it, shoal may have no record that it fetched them, or it cannot be read."""
    for folder in folders:
        try:
            why = added_to(folder)
        except OSError as error:
            why = f"the model's folder cannot be read: {error.strerror}"
        if why:
            yield str(folder), why
