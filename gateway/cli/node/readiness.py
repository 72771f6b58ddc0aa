"""Decide when a node that was just started is up, and when waiting longer cannot help.

Pure: a `Look` at the node goes in, a verdict comes out. A start has four steps, in this order:
every service runs, the HTTP API answers, the cluster has a leader, the preloaded models are ready.
If a service ended three times, or if supervisord no longer restarts it, that is reported
immediately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bus.process.supervisor import SupervisedProcess

MAX_LIVES = 3
"""A service that was started this many times during one start of the node counts as stuck."""
OLD_LOOKS = 20
"""If the first check already finds a model failed, it may have failed before this start. Then it
counts as failed only after this many checks (about 5 s), because the leader places such a model
again when the node joins."""


NO_ROOM = "no memory"
NO_ROOM_LOOKS = 4
"""The number of consecutive checks (one per second) that find no node with enough memory for a
model, after which `up` stops waiting."""
NO_ROOM_REMEDY = (
    "the node runs without the model; free memory, or choose a smaller model with "
    "`shoal up --model` after `shoal down`"
)


@dataclass(frozen=True, slots=True)
class ModelLook:
    """The status of a model that the node loads at its start: waiting, loading, ready, failed or
    `NO_ROOM`."""

    model: str
    status: str
    done_bytes: int = 0
    total_bytes: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """The node's state at one moment. `services` is None while supervisord does not answer. `http`
    is None while the HTTP API does not answer; otherwise it names the part that is missing, or is
    "" if none is. `stranger` is another node that answers at this node's address."""

    services: tuple[SupervisedProcess, ...] | None
    http: str | None = None
    models: tuple[ModelLook, ...] = ()
    stranger: str = ""


@dataclass(frozen=True, slots=True)
class Up:
    """A verdict: the node is up."""


@dataclass(frozen=True, slots=True)
class Starting:
    """A verdict: the node is not up yet. `done` of `total` steps are finished; `text` says what is
    missing."""

    done: int
    total: int
    text: str
    model: ModelLook | None = None


@dataclass(frozen=True, slots=True)
class Stuck:
    """A verdict: waiting cannot help. `process` is the cause, and the log of that process says
    why."""

    why: str
    process: str | None = None
    remedy: str = ""


Verdict = Up | Starting | Stuck


@dataclass(slots=True)
class StartWatch:
    """One start of a node. It judges each check of the node (`Look`), together with the earlier
    checks."""

    services: Sequence[str]
    _pids: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    _failed_looks: dict[str, int] = field(default_factory=dict[str, int])
    _roomless_looks: dict[str, int] = field(default_factory=dict[str, int])

    def judge(self, look: Look) -> Verdict:
        """Return the verdict on this check of the node. It also depends on how often a model failed
        or lacked memory in earlier checks."""
        total = len(self.services) + 2 + len(look.models)
        if look.services is None:
            return Starting(0, total, "starting supervisord")
        by_name = {service.name: service for service in look.services}
        if (stuck := self._stuck(by_name)) is not None:
            return stuck
        up = [name for name in self.services if _runs(by_name.get(name))]
        if len(up) < len(self.services):
            missing = [name for name in self.services if name not in up]
            return Starting(len(up), total, f"starting {', '.join(missing)}")
        if look.stranger:
            return Stuck(
                f"another node ({look.stranger}) answers at this node's address", "gateway"
            )
        if look.http is None:
            return Starting(len(up), total, "the HTTP API does not answer yet")
        for model in look.models:
            if self._failed_now(model):
                return Stuck(f"{model.model} could not be loaded: {model.why}")
            if self._has_no_room(model):
                return Stuck(f"{model.model} is not loaded: {model.why}", remedy=NO_ROOM_REMEDY)
        ready = sum(model.status == "ready" for model in look.models)
        done = len(up) + 1 + ready
        for model in look.models:
            if model.status != "ready":
                return Starting(done, total, f"{model.model} is {model.status}", model)
        if look.http:
            return Starting(done, total, look.http)
        return Up()

    def _failed_now(self, model: ModelLook) -> bool:
        """Return whether a model failed during this start. A model that had failed before counts
        too if it is still failed after `OLD_LOOKS` checks."""
        looks = self._failed_looks.get(model.model, 0)
        if model.status != "failed":
            looks = OLD_LOOKS
        elif looks < OLD_LOOKS:
            looks += 1
        else:
            return True
        self._failed_looks[model.model] = looks
        return False

    def _has_no_room(self, model: ModelLook) -> bool:
        looks = self._roomless_looks.get(model.model, 0) + 1 if model.status == NO_ROOM else 0
        self._roomless_looks[model.model] = looks
        return looks >= NO_ROOM_LOOKS

    def _stuck(self, by_name: Mapping[str, SupervisedProcess]) -> Stuck | None:
        for name in self.services:
            service = by_name.get(name)
            if service is None:
                return Stuck(f"supervisord has no {name}; it runs with another configuration")
            if service.pid:
                self._pids.setdefault(name, set()).add(service.pid)
            lives = len(self._pids.get(name, ()))
            if service.status == "fatal" or lives >= MAX_LIVES:
                suffix = f" ({service.description})" if service.description else ""
                return Stuck(f"{name} keeps stopping: {service.status}{suffix}", name)
        return None


def _runs(service: SupervisedProcess | None) -> bool:
    return service is not None and service.status == "running"


def overdue(
    verdict: Starting, by_name: Mapping[str, SupervisedProcess], deadline_s: float
) -> Stuck:
    """Return the verdict after the deadline. It names the process that is most likely the cause."""
    culprit = next((name for name, look in by_name.items() if not _runs(look)), None)
    if culprit is None:
        culprit = "worker" if verdict.model is not None else "gateway"
    return Stuck(f"not up after {deadline_s:.0f} s: {verdict.text}", culprit)
