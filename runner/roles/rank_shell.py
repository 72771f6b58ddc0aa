"""Talks to the engine's thread and the other ranks: what every role does alike.

It forms the group (where there is one) and loads, and says with which code a rank leaves when
its engine fails, is stuck, or has lost the others.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.process.clock import wall
from bus.service import Shell
from bus.wire.messages.control import RunnerSpec
from runner.group.group_config import CannotForm
from runner.group.lockstep import RankContext
from runner.group.plan_channel import PlanChannel, PlanListener, open_channel
from runner.lifecycle import ENGINE_ERROR, GROUP_LOST, LOAD_FAILED, WEDGED, lost_peer
from runner.recorder import FlightRecorder
from runner.roles.model_thread import Broken, EngineLoop, LoadFailed, ModelThread, ThreadNews
from runner.roles.role import Factories, RoleHost


class RankShell:
    """One rank's thread and its channel (None for a runner alone).

    The role is the channel's `listener`; `heard` is told the thread's news in the main thread.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        host: RoleHost,
        shell: Shell,
        recorder: FlightRecorder,
        *,
        loop: EngineLoop,
        listener: PlanListener,
        heard: Callable[[ThreadNews], None],
    ) -> None:
        self._spec = spec
        self._host = host
        self._log = shell.log
        self._recorder = recorder
        is_alone = spec.size == 1 and spec.rank == 0 and spec.test is None
        self.channel: PlanChannel | None = None
        if not is_alone:
            self.channel = open_channel(spec, shell, listener)
        self._thread = ModelThread(loop, lambda news: shell.reactor.call(lambda: heard(news)))

    @property
    def context(self) -> RankContext | None:
        """Return what the engine must know of its group; None for a runner alone."""
        return None if self.channel is None else self.channel.context

    @property
    def grouped(self) -> RankContext:
        """Return the context of a rank that is not alone."""
        assert self.channel is not None, "a group"
        return self.channel.context

    def form(self, factories: Factories) -> bool:
        """Join the ring; return False, and leave, where that fails."""
        channel = self.channel
        assert channel is not None, "a group"
        try:
            factories.form_group(channel.group, self._spec.rank, channel.group.form_deadline_s)
        except CannotForm as error:
            self._host.leave(GROUP_LOST, "model_unavailable", str(error))
            return False
        channel.formed()
        return True

    def start(self) -> None:
        """Have the thread load a model, or meet for a test, and go on from there."""
        if self._spec.test is None:
            self._recorder.note(wall(), "load_model", model=self._spec.model)
        self._thread.start()

    def stepped(self, steps_done: int) -> None:
        """Note the last step computed here, for the beats."""
        if self.channel is not None:
            self.channel.step = steps_done

    def ready(self) -> None:
        """Note that this rank has loaded."""
        if self.channel is not None:
            self.channel.ready = True

    def end(self, why: str, *, is_final: bool = False) -> None:
        """Tell the other ranks that this one leaves."""
        if self.channel is not None:
            self.channel.end(why, is_final=is_final)

    def stop(self, timeout_s: float) -> None:
        """Give the thread a moment to end, then drop the channel."""
        self._thread.stop(timeout_s)
        if self.channel is not None:
            self.channel.close()

    # --- how a rank of a model leaves ------------------------------------------------------

    def load_failed(self, news: LoadFailed) -> None:
        """Leave: the model cannot be loaded here, or another rank was lost meanwhile."""
        self._recorder.note(wall(), "error", message=news.message)
        self._log.error("loading failed", error=news.message)
        code = GROUP_LOST if lost_peer(news.message) else LOAD_FAILED
        self._host.leave(code, "model_unavailable", news.message)

    def broken(self, news: Broken) -> None:
        """Leave: the engine raised, or another rank was lost in a step."""
        self._recorder.note(wall(), "error", message=news.message)
        self._log.critical("the engine raised", error=news.story)
        code = GROUP_LOST if lost_peer(news.message) else ENGINE_ERROR
        self._host.leave(code, "runner_lost", f"the engine failed: {news.message}")

    def stuck(self, what: str) -> None:
        """Leave: the engine has passed a deadline."""
        self._log.critical("the engine is stuck", what=what)
        self._host.leave(WEDGED, "runner_lost", what)

    def lost(self, what: str, is_final: bool) -> None:
        """Leave: another rank is gone, and where `is_final` it always would be."""
        self._log.error("the group is over", why=what)
        self._host.leave(LOAD_FAILED if is_final else GROUP_LOST, "runner_lost", what)
