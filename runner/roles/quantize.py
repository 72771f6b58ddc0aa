"""Talks to the engine's thread: quantises a model.

This role has a single rank and serves no gateway. It is ready when the source is open and the disk
has room; it ends by itself when the model is written. Its reading reports progress and counts the
work as a running request, so that no load evicts it.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.process.clock import now as clock_now
from bus.process.clock import wall
from bus.wire.instances import Phase
from bus.wire.messages.readings import RunnerReading
from runner import lifecycle
from runner.engine import EngineStatus, LoadProgress, Maker, NotMade
from runner.recorder import ServedTotals
from runner.roles.model_thread import Broken, LoadFailed, ThreadNews
from runner.roles.reports import RunnerMeter
from runner.roles.role import Role, RoleParts, watchdog
from runner.schedule import SchedulerLoad

PIECE_S = 900.0
"""Time limit in seconds for reading, quantising and writing one tensor."""


class MakerLoop:
    """The `EngineLoop` of a quantization. `ended` is called from the thread with the reason of a
    failure; None: the model is written, or the loop was stopped."""

    def __init__(self, opened: Callable[[], Maker], ended: Callable[[str | None], None]) -> None:
        self._opened = opened
        self._ended = ended
        self._maker: Maker | None = None
        self._stops = False
        self.status = EngineStatus()

    def load(self) -> None:
        """Open the source model and check the disk space. Raises NotMade."""
        self.status.busy_since = clock_now()
        self._maker = self._opened()

    def run(self) -> None:
        assert self._maker is not None, "the source model is not open"
        why: str | None = None
        try:
            self._maker.make(self._report, lambda: self._stops)
        except NotMade as error:
            why = str(error)
        finally:
            self.status.busy_since = None
        self._ended(why)

    def stop(self) -> None:
        """Make the quantization end after the current tensor."""
        self._stops = True

    def _report(self, progress: LoadProgress) -> None:
        assert self._maker is not None, "the source model is not open"
        self.status.progress = progress
        self.status.steps_done += 1
        self.status.busy_since = clock_now()
        self.status.memory = self._maker.memory()


class QuantizeRole(Role):
    """The role of a runner that quantises a model."""

    def __init__(self, parts: RoleParts) -> None:
        reactor, spec = parts.shell.reactor, parts.spec
        self._loop = MakerLoop(
            lambda: parts.factories.open_maker(spec),
            lambda why: reactor.call(lambda: self._ended(why)),
        )
        super().__init__(parts, self._loop)
        self._making = watchdog(parts.spec, lambda: self.status.busy_since)
        self._meter = RunnerMeter(spec, parts.shell.speaker, ServedTotals(), reactor.now())

    @property
    def open_requests(self) -> int:
        """Return 1: the quantization counts as a request, so that the machine stays awake."""
        return 1

    @property
    def is_empty(self) -> bool:
        """Return True: the runner may end immediately, because partial files are deleted."""
        return True

    def entered(self, phase: Phase) -> None:
        """Stop the quantization when the runner begins to drain."""
        if phase in ("draining", "ended"):
            self._loop.stop()

    def watch(self, now: float) -> None:
        """End the runner if one tensor takes too long."""
        super().watch(now)
        if self._making.passed(now, lambda: PIECE_S) is not None:
            self._stuck(f"no tensor was written for {PIECE_S:g} s")

    def reading(self, now: float) -> RunnerReading:
        return self._meter.reading(
            self._host.phase, self.status, SchedulerLoad(running=1), self.open_requests, now
        )

    # --- from the engine's thread ----------------------------------------------------------

    def _take_news(self, news: ThreadNews) -> None:
        """Process what the engine's thread reports, and turn its errors into messages for
        people."""
        if isinstance(news, LoadFailed | Broken):
            self._log.error("quantising failed", error=news.story)
            self._leave(news.message)
        else:
            super()._take_news(news)

    def _ended(self, why: str | None) -> None:
        if why is not None:
            self._leave(why)
            return
        self._recorder.note(wall(), "completion", model=self._spec.model)
        self._log.info("the model is written", model=self._spec.model)
        self._host.leave(lifecycle.STOPPED, "model_unavailable", f"{self._spec.model} is written")

    def _leave(self, why: str) -> None:
        self._recorder.note(wall(), "error", message=why)
        self._host.leave(lifecycle.LOAD_FAILED, "model_unavailable", why)
