"""Talks to llama-server's process and the text thread, and to gateways: serves a GGUF model.

This role has a single rank. llama-server loads the model, then the text thread opens the tokenizer
and compares it with llama-server's. The runner is ready when both are done, and leaves if either
fails, or if llama-server ends or is silent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from bus.models.gguf import DTYPE, ENGINE
from bus.process.clock import wall
from bus.process.memory import keep
from bus.service import Shell
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.requests import GenerationRequest, PromptQuestion, TextPrompt
from runner.lifecycle import ENGINE_ERROR, PREPARES_S
from runner.llama import (
    STALLED_S,
    STILL_S,
    Launch,
    LlamaClient,
    LlamaLoop,
    LlamaResponder,
    LlamaTrouble,
    SentWorks,
    SlotDisk,
    SlotFiles,
    Slots,
    differing,
    plan_launch,
    slots_key,
)
from runner.roles.model_thread import Broken, LoadFailed, ThreadNews
from runner.roles.reports import RunnerMeter
from runner.roles.role import (
    TEXT_THREAD,
    RoleParts,
    ServingRole,
    leave_without_text,
    load_of,
    watchdog,
)
from runner.schedule import DiskFigures
from runner.text import PreparedRequest, ReadPrompt, TextThread, TokenizerError

SAVES_S = 5.0
"""How long a runner that ends waits for a prompt that is being written to disk."""
COMPARED_TOKENS = 4_096
"""The longest context for texts by which tokenizers are compared."""


def socket_of(shell: Shell) -> Path:
    """Return the path of the socket at which a runner's llama-server answers."""
    return Path(shell.endpoints.folder, f"{shell.speaker.process.replace(':', '-')}.llama.sock")


class LlamaRole(ServingRole):
    """The role of a runner with a GGUF model."""

    def __init__(self, parts: RoleParts) -> None:
        spec, shell, reactor = parts.spec, parts.shell, parts.shell.reactor
        self._socket = socket_of(shell)
        program = parts.factories.llama_server
        self._files: SlotFiles | None = None
        self._loop = LlamaLoop(program, partial(self._plan, program), spec.load_deadline_s)
        super().__init__(parts, self._loop)
        self._text: TextThread[PreparedRequest | ReadPrompt] = TextThread(
            self._open_text, reactor.call, self._text_loaded
        )
        self._responder = self._server.responder = LlamaResponder(
            self._server, reactor.now, post=reactor.call, later=reactor.later, text=self._text
        )
        self._since = reactor.now()
        self._works: SentWorks | None = None
        self._differs = ""
        self._meter = RunnerMeter(spec, shell.speaker, self._server.totals, reactor.now())
        self._preparing = watchdog(parts.spec, lambda: self._text.busy_since, TEXT_THREAD)

    @staticmethod
    def serves(spec: RunnerSpec) -> bool:
        """Return whether a spec is for a GGUF model."""
        return spec.dtype == DTYPE

    def watch(self, now: float) -> None:
        """Check as every serving role does; also leave if llama-server or the text thread takes too
        long."""
        super().watch(now)
        if self._preparing.passed(now, lambda: PREPARES_S) is not None:
            what = f"preparing a request took more than {PREPARES_S:g} s"
            self._stuck(what, thread=TEXT_THREAD)
        silent_s = self._responder.stalled_s(now)
        if silent_s > STALLED_S:
            self._stuck(f"{ENGINE} sent nothing for {STALLED_S:g} s")
        elif min(silent_s, self._loop.still_s(now)) > STILL_S:
            self._stuck(f"{ENGINE} sent nothing and used no processor time for {STILL_S:g} s")

    def reading(self, now: float) -> RunnerReading:
        """Return the current reading (status and rates) of this runner. The rates cover the time
        since the previous reading; the memory is that of llama-server."""
        load, status = load_of(self._server.open, self._responder.running), self.status
        if self._responder.disk is not None:
            load = replace(load, disk=DiskFigures(**asdict(self._responder.disk.figures)))
        reading = self._meter.reading(self._host.phase, status, load, self.open_requests, now)
        return reading.model_copy(update={"process_bytes": status.memory.active_bytes})

    def stop(self, timeout_s: float) -> None:
        """Stop llama-server; kill it if it does not end in time. A prompt that is being written to
        disk may end first."""
        if self._responder.disk is not None:
            self._responder.disk.close(min(timeout_s / 2, SAVES_S))
        super().stop(timeout_s)
        self._loop.kill()

    # --- from the threads ------------------------------------------------------------------

    def _plan(self, program: Sequence[str]) -> Launch:
        """Return how to start llama-server, with a folder for the prompts of its slots; called in
        the engine's thread. Raises BadGguf, OSError, LlamaTrouble."""
        launch, limits = plan_launch(program, self._spec, self._socket), self._factories.kv_limits
        if limits is None or not limits.most_bytes:
            return launch
        try:
            key = slots_key(sorted(launch.file.parent.glob("*.gguf")))
            files = SlotFiles(limits, self._spec.model, key, self._say)
            files.make_folder()
        except OSError as error:
            self._say(f"prompts are not kept on disk: {error}")
            return launch
        self._files = files
        return replace(launch, saves=files.folder)

    def _say(self, text: str) -> None:
        self._log.warning("kv", text=text)

    def _take_news(self, news: ThreadNews) -> None:
        """Process a report from the engine's thread. A load that failed because llama-server was
        killed may be retried, as that of a killed runner."""
        if isinstance(news, LoadFailed) and self._loop.was_killed:
            news = Broken(news.message, news.message, news.story)
        super()._take_news(news)

    def _loaded(self) -> None:
        launch = self._loop.launch
        assert launch is not None, "llama-server is not ready"
        responder, client = self._responder, LlamaClient(self._socket)
        responder.launch, responder.client = launch, client
        post, resume = self._reactor.call, responder.resume_rows
        responder.disk = SlotDisk(Slots(launch.rows), self._files, post, resume)
        responder.disk.begin(client)
        self.described = {
            "engine": ENGINE,
            "context_tokens": self._spec.context_tokens,
            "rows": launch.rows,
            "kv_tokens": launch.cells,
        }
        self._host.signal("loaded")
        self._recorder.note(wall(), "warmup")
        self._text.start(self._spec.context_tokens)

    def _open_text(self) -> SentWorks:
        """Return the request preparer; called in the text thread. Raises TokenizerError."""
        load = self._factories.load_sent_text
        assert load is not None, "the factory `load_sent_text` is missing"
        works = self._works = load(self._spec)
        self._compare(works)
        return works

    def _compare(self, works: SentWorks) -> None:
        """Compare the tokenizer with llama-server's. A tokenizer that was built from the file must
        be equal. A `tokenizer.json` with the file's vocabulary and merges is the model's own: it is
        used, and the difference is reported."""

        def encode(text: str) -> tuple[int, ...]:
            request = GenerationRequest(
                request_id=RequestId("compare"),
                model=ModelId(self._spec.model),
                prompt=TextPrompt(text=text),
                question=PromptQuestion(wants="tokens", special=False),
            )
            answer = works.read(request, COMPARED_TOKENS)
            return answer.tokens if isinstance(answer, ReadPrompt) else ()

        try:
            text = differing(LlamaClient(self._socket), encode)
        except LlamaTrouble as error:
            raise TokenizerError(str(error)) from error
        if text and not (Path(self._spec.path) / "tokenizer.json").is_file():
            raise TokenizerError(
                f"the tokenizer that shoal built from the file differs from {ENGINE}'s for "
                f"{text!r}; put the tokenizer.json of the original model into the folder"
            )
        if text:
            self._differs = (
                f"tokenizer.json splits {text!r} differently from {ENGINE}; tokenizer.json is used"
            )

    def _text_loaded(self, error: Exception | None) -> None:
        if error is not None and isinstance(error.__cause__, LlamaTrouble):
            self._host.leave(ENGINE_ERROR, "runner_lost", f"the engine failed: {error}")
            return
        if error is not None or self._works is None:
            leave_without_text(self._host, self._log, error)
            return
        self._responder.works = self._works
        self._meter.facts_found = self._works.facts
        self.described = {**self.described, **self._works.facts}
        if self._differs:
            self.described["tokenizer"] = self._differs
            self._log.warning("tokenizer", text=self._differs)
        keep()
        self._host.signal("warmed")
        self._recorder.note(wall(), "idle")
        seconds = round(self._reactor.now() - self._since, 2)
        self._log.info("ready", seconds=seconds, pid=os.getpid())
