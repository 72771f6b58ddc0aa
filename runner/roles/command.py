"""Talks to a program of `engines.toml`, and to gateways: serves the program's model.

This role has a single rank. The runner is ready when the program has answered a short request, and
leaves if the program ends, is silent or takes too much memory.
"""

from __future__ import annotations

import os

from bus.models.tasks import COMMAND_DTYPE, CommandEngine, lack_of
from bus.process.clock import wall
from bus.process.installation import Environment
from bus.process.memory import keep
from bus.wire.errors import ConfigError
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.readings import RunnerReading
from runner.command import CommandLoop, CommandResponder, EngineTrouble, warm_up_of
from runner.roles.reports import RunnerMeter
from runner.roles.role import RoleParts, ServingRole, load_of


class CommandRole(ServingRole):
    """The role of a runner whose model is a program."""

    def __init__(self, parts: RoleParts) -> None:
        spec, shell, reactor = parts.spec, parts.shell, parts.shell.reactor
        self._loop = CommandLoop(
            spec.model,
            self._plan,
            lambda engine: warm_up_of(spec.model, engine),
            spec.load_deadline_s,
        )
        super().__init__(parts, self._loop)
        self._responder = self._server.responder = CommandResponder(
            self._server, reactor.now, post=reactor.call, heard=self._note_news
        )
        self._since = reactor.now()
        self._meter = RunnerMeter(spec, shell.speaker, self._server.totals, reactor.now())

    @staticmethod
    def serves(spec: RunnerSpec) -> bool:
        """Return whether a spec is for a program of `engines.toml`."""
        return spec.dtype == COMMAND_DTYPE

    def reading(self, now: float) -> RunnerReading:
        """Return the current reading (status and rates) of this runner. The rates cover the time
        since the previous reading; the memory is that of the program which serves the model."""
        load = load_of(self._server.open, self._responder.running)
        status = self.status
        reading = self._meter.reading(self._host.phase, status, load, self.open_requests, now)
        return reading.model_copy(update={"process_bytes": status.memory.active_bytes})

    def _note_news(self, now: float) -> None:
        self._loop.news_at = now

    def _plan(self) -> tuple[CommandEngine, Environment | None]:
        """Return the program's settings and its environment of packages; called in the engine's
        thread. Raises EngineTrouble."""
        try:
            engine = self._factories.command_engine(self._spec.model)
        except ConfigError as error:
            raise EngineTrouble(str(error)) from error
        if engine is None:
            raise EngineTrouble(f"engines.toml has no engine {self._spec.model} any more")
        reserved = {share.index for share in self._spec.devices}
        if reserved and reserved != set(engine.gpus):
            raise EngineTrouble(
                f"engines.toml names the GPUs {sorted(engine.gpus)} for {self._spec.model}, but "
                f"{sorted(reserved)} are reserved; load it again"
            )
        venv = self._factories.environment(engine.venv) if engine.venv else None
        if engine.venv and venv is None:
            raise EngineTrouble("; ".join(lack_of(engine.venv)))
        return engine, venv

    def _loaded(self) -> None:
        engine, client = self._loop.engine, self._loop.client
        assert engine is not None and client is not None, "the program is not ready"
        self._responder.engine, self._responder.client = engine, client
        self.described = {
            "engine": "command",
            "command": engine.command,
            "dialect": engine.dialect,
            "context_tokens": engine.context_tokens,
            "rows": engine.capacity,
        }
        self._host.signal("loaded")
        keep()
        self._host.signal("warmed")
        self._recorder.note(wall(), "idle")
        seconds = round(self._reactor.now() - self._since, 2)
        self._log.info("ready", seconds=seconds, pid=os.getpid())
