"""Talks to the text thread and the engine's loop: takes a lead from loaded to ready.

The engine computes the warm-up prompts while the text thread opens the tokenizer. The runner is
ready when both are done, and leaves if either fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from bus.process.clock import wall
from bus.process.memory import keep
from runner.engine import EngineFacts
from runner.lead import LeadLoop, Stepped, WarmUp
from runner.lifecycle import LOAD_FAILED
from runner.roles.role import RoleParts, leave_without_text
from runner.text import PreparedRequest, ReadPrompt, TextThread, TextWorks


class Startup:
    """Takes a lead from loaded to ready. Call `loaded` first, then `stepped` for every step during
    warm-up.

    `text` is the text thread. `opened` is called in the main thread with the result of `load_text`,
    before the runner is ready.
    """

    def __init__(
        self, parts: RoleParts, loop: LeadLoop, opened: Callable[[TextWorks], None]
    ) -> None:
        self._spec = spec = parts.spec
        self._host = parts.host
        self._reactor = reactor = parts.shell.reactor
        self._log = parts.shell.log
        self._recorder = parts.recorder
        self._loop = loop
        self._opened = opened
        self._since = reactor.now()
        self._waits_for = {"engine", "text"}
        self._warm_up: WarmUp | None = None
        self._works: TextWorks | None = None
        self._load_text = lambda: parts.factories.load_text(spec)
        self.text: TextThread[PreparedRequest | ReadPrompt] = TextThread(
            self._open_text, reactor.call, self._text_loaded
        )

    def loaded(self, facts: EngineFacts) -> None:
        """Open the tokenizer and submit the first warm-up prompt."""
        self.text.start(min(facts.context_tokens, self._spec.context_tokens))
        self._recorder.note(wall(), "warmup")
        with self._loop.scheduling() as scheduler:
            self._warm_up = WarmUp(self._spec.model, facts, scheduler)
        self._advance(self._warm_up)

    def stepped(self, news: Stepped) -> None:
        """Submit the next prompt if this step ended the last one."""
        warm_up = self._warm_up
        if warm_up is None:
            return
        try:
            ended = any(warm_up.ended(event) for event in news.events)
        except RuntimeError as error:
            self._host.leave(LOAD_FAILED, "model_unavailable", str(error))
            return
        if ended:
            self._advance(warm_up)

    def _advance(self, warm_up: WarmUp) -> None:
        try:
            with self._loop.scheduling():
                goes_on = warm_up.advance(self._reactor.now())
        except RuntimeError as error:
            self._host.leave(LOAD_FAILED, "model_unavailable", str(error))
            return
        if not goes_on:
            self._is_done("engine")

    def _open_text(self) -> TextWorks:
        """Return the request preparer; called in the text thread."""
        works = self._works = self._load_text()
        return works

    def _text_loaded(self, error: Exception | None) -> None:
        if error is not None or self._works is None:
            leave_without_text(self._host, self._log, error)
        else:
            self._opened(self._works)
            self._log.info("read the model's text files", **self._works.facts)
            self._is_done("text")

    def _is_done(self, what: str) -> None:
        self._waits_for.discard(what)
        if not self._waits_for and self._host.phase == "warming":
            keep()
            self._host.signal("warmed")
            self._recorder.note(wall(), "idle")
            seconds = round(self._reactor.now() - self._since, 2)
            self._log.info("ready", seconds=seconds, pid=os.getpid())
