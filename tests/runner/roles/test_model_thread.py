"""The engine's thread with a fake engine: one step ahead, asleep when idle, told when broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from bus.process.memory import DataGrant
from bus.wire.ids import RequestId
from runner.engine import EngineFacts, LoadProgress, StepPlan, StepResult
from runner.lead.lead_loop import LeadLoop, Stepped
from runner.lead.memory_watch import MemoryWatch
from runner.roles.model_thread import Broken, Loaded, LoadFailed, ModelThread, ThreadNews
from runner.schedule import RowFinished, RowKey, RowToken, Scheduler, ScheduleSettings
from tests.harness.engine import FakeEngine, facts, whole_output
from tests.harness.nodes import eventually
from tests.harness.scheduling import prepared

PATIENCE_S = 20.0


class Watched(FakeEngine):
    """Notes how many steps were unread at each read."""

    def __init__(self, facts: EngineFacts) -> None:
        super().__init__(facts)
        self.unread_at_read: list[int] = []
        self.broken = False

    def issue(self, plan: StepPlan) -> None:
        if self.broken:
            raise RuntimeError("the device is lost")
        super().issue(plan)

    def read(self) -> StepResult:
        self.unread_at_read.append(len(self.unread))
        return super().read()


class Bench:
    """A running thread and what it posted."""

    def __init__(self, load: Callable[[Callable[[LoadProgress], None]], Watched]) -> None:
        self.takes_bytes = 0
        self.news: SimpleQueue[ThreadNews | Stepped] = SimpleQueue()
        self.loop = LeadLoop(
            load,
            lambda facts: Scheduler(facts, ScheduleSettings()),
            self.news.put,
            MemoryWatch(1 << 30, self.granted),
        )
        self.thread = ModelThread(self.loop, self.news.put)
        self.thread.start()

    def granted(self) -> DataGrant:
        """Of 1,400 bytes, of which the runner takes 1,225 at most."""
        return DataGrant(self.takes_bytes, 1400)

    def next(self) -> ThreadNews | Stepped:
        return self.news.get(timeout=PATIENCE_S)

    def submit(self, name: str, most: int) -> None:
        with self.loop.scheduling() as scheduler:
            scheduler.submit(prepared(name, [5] * 9, max_tokens=most), seeds=[100], now=0.0)

    def until_finished(self, name: str) -> list[int]:
        tokens: list[int] = []
        while True:
            news = self.next()
            assert isinstance(news, Stepped)
            for event in news.events:
                if event.key != RowKey(RequestId(name), 0):
                    continue
                if isinstance(event, RowToken):
                    tokens.append(event.sampled.token)
                elif isinstance(event, RowFinished):
                    return tokens


@pytest.fixture
def engine() -> Watched:
    return Watched(facts())


@pytest.fixture
def bench(engine: Watched) -> Iterator[Bench]:
    made = Bench(lambda progress: engine)
    assert isinstance(made.next(), Loaded)
    yield made
    made.thread.stop(PATIENCE_S)


def test_a_request_is_run_one_step_ahead(bench: Bench, engine: Watched) -> None:
    bench.submit("a", 40)
    assert bench.until_finished("a") == whole_output(100, [5] * 9, 40, frozenset())
    assert engine.unread_at_read.count(2) >= 38


def test_an_idle_thread_sleeps_and_wakes_for_the_next_request(bench: Bench) -> None:
    bench.submit("a", 3)
    bench.until_finished("a")
    bench.submit("b", 3)
    bench.until_finished("b")
    assert bench.thread.stop(PATIENCE_S)
    assert bench.loop.status.busy_since is None
    assert bench.loop.status.steps_done >= 6


def test_an_exception_of_the_engine_is_told_and_ends_the_thread(
    bench: Bench, engine: Watched
) -> None:
    engine.broken = True
    bench.submit("a", 3)
    news = bench.next()
    while isinstance(news, Stepped):
        news = bench.next()
    assert isinstance(news, Broken)
    assert "the device is lost" in news.message
    assert bench.thread.stop(PATIENCE_S)


def test_a_load_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def load(progress: Callable[[LoadProgress], None]) -> Watched:
        progress(LoadProgress("weights", 5, 10))
        raise ValueError("no such model")

    bench = Bench(load)
    news = bench.next()
    assert news == LoadFailed("no such model")
    assert bench.loop.status.progress.done_bytes == 5
    assert "no such model" in capsys.readouterr().err


def test_an_idle_engine_tidies_once(bench: Bench, engine: Watched) -> None:
    bench.submit("a", 3)
    bench.until_finished("a")
    eventually(lambda: engine.rests == 1, PATIENCE_S, "the engine rested")
    with bench.loop.scheduling():
        pass  # woken for nothing
    bench.submit("b", 3)
    bench.until_finished("b")
    eventually(lambda: engine.rests == 2, PATIENCE_S, "the engine rested again")


def test_memory_that_is_short_is_eased_and_then_ends_one_row_with_its_reason(
    bench: Bench, engine: Watched
) -> None:
    bench.takes_bytes = 1226
    bench.submit("a", 4000)
    made: list[int] = []
    end: RowFinished | None = None
    while end is None:
        news = bench.next()
        assert isinstance(news, Stepped)
        made += [one.sampled.token for one in news.events if isinstance(one, RowToken)]
        end = next((one for one in news.events if isinstance(one, RowFinished)), None)
    assert end.finish == "memory_pressure" and "1.0" not in end.why and "rank 0" in end.why
    assert engine.eases >= 1
    assert made == whole_output(100, [5] * 9, len(made), frozenset()) and len(made) < 200
    bench.takes_bytes = 1225
    bench.submit("b", 400)
    assert bench.until_finished("b") == whole_output(100, [5] * 9, 400, frozenset())
