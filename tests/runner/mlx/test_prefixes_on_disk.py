"""Prefixes on disk through a real engine: a runner ends, the next one starts from its files."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from bus.models.kv import KvLimits, kv_files
from bus.process.clock import now as clock_now
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.kv import KvKind
from bus.wire.messages.requests import GenerationRequest, Sampling, TextPrompt
from runner.lead import LeadLoop, MemoryWatch, Stepped
from runner.mlx.engine import load_engine
from runner.schedule import RowFailed, RowFinished, RowToken, Scheduler, ScheduleSettings
from runner.text import PreparedChoice, PreparedRequest
from tests.harness.families import MODELS, write_model
from tests.harness.nodes import eventually

LEAST = 128


class Run:
    """One life of a runner: its engine's loop in a thread."""

    def __init__(self, model: Path, limits: KvLimits | None, kind: KvKind = "full") -> None:
        self.said: list[str] = []
        self._news: Queue[Stepped] = Queue()
        self.loop = LeadLoop(
            lambda progress: load_engine(
                model,
                memory_limit_bytes=4 << 30,
                kv=kind,
                progress=progress,
                disk=None if limits is None else (limits, model.name),
            ),
            lambda facts: Scheduler(facts, ScheduleSettings()),
            self._news.put,
            MemoryWatch(4 << 30),
        )
        self.loop.say = self.said.append
        self.loaded = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.loop.load()
        self.loaded.set()
        self.loop.run()

    def ask(self, tokens: list[int], count: int = 12, **parts: Any) -> tuple[list[int], int]:
        """The tokens that follow, and how many of the prompt's came from a prefix."""
        request = GenerationRequest(
            request_id=RequestId(f"r{random.random()}"),
            model=ModelId("tiny"),
            prompt=TextPrompt(text=""),
            sampling=Sampling(temperature=0.0),
            **parts,
        )
        prepared = PreparedRequest(
            request, tuple(map(TokenId, tokens)), count, frozenset(), (PreparedChoice(0, None),)
        )
        with self.loop.scheduling() as scheduler:
            scheduler.submit(prepared, seeds=[1], now=clock_now())
        made: list[int] = []
        while True:
            try:
                news = self._news.get(timeout=60)
            except Empty:
                raise AssertionError("the runner says nothing") from None
            for event in news.events:
                assert not isinstance(event, RowFailed), event
                if isinstance(event, RowToken):
                    made.append(event.sampled.token)
                if isinstance(event, RowFinished):
                    return made, event.cost.cached_tokens

    def figures(self) -> Any:
        load = self.loop.scheduler_load()
        assert load is not None
        return load.disk


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("models") / "small", MODELS["qwen3"] | {"head_dim": 32}
    )


@contextmanager
def running(model: Path, limits: KvLimits | None, kind: KvKind = "full") -> Generator[Run]:
    run = Run(model, limits, kind)
    run.thread.start()
    assert run.loaded.wait(60)
    try:
        if limits is not None and kv_files(limits.root):
            eventually(lambda: run.figures().runs, 10, "the files are found")
        yield run
    finally:
        run.loop.stop()
        run.thread.join(30)


def limits_in(folder: Path, **parts: Any) -> KvLimits:
    whole: dict[str, Any] = {"most_bytes": 1 << 30, "least_tokens": LEAST, "unused_s": 3600.0}
    return KvLimits(folder / "kv", **{**whole, **parts})


def prompt(length: int, salt: int = 0) -> list[int]:
    chance = random.Random(salt)
    return [chance.randrange(3, 250) for _ in range(length)]


def written(run: Run, limits: KvLimits, count: int = 1) -> list[Path]:
    eventually(lambda: run.figures().runs and len(_whole(limits)) == count, 20, "files")
    return _whole(limits)


def _whole(limits: KvLimits) -> list[Path]:
    return [file.path for file in kv_files(limits.root) if not file.unfinished]


@pytest.mark.parametrize("kind", ["full", "8bit", "4bit"])
def test_text_after_a_prefix_from_disk_is_the_text_without(
    model: Path, tmp_path: Path, kind: KvKind
) -> None:
    limits, tokens = limits_in(tmp_path), prompt(400)
    with running(model, limits, kind) as run:
        wanted, cached = run.ask(tokens)
        assert cached == 0
        (path,) = written(run, limits)
        assert path.stat().st_mode & 0o777 == 0o600
        assert all(place.stat().st_mode & 0o777 == 0o700 for place in path.parents[:3])
    with running(model, limits, kind) as run:
        made, cached = run.ask(tokens)
        assert cached == 399
        assert made == wanted
        assert run.figures().hits == 1 and run.figures().hit_tokens == 399
        longer, cached = run.ask([*tokens[:250], *prompt(100, 1)])
        assert 250 <= cached < 260
    with running(model, None, kind) as run:
        assert run.ask(tokens)[0] == wanted
        assert run.ask([*tokens[:250], *prompt(100, 1)])[0] == longer
