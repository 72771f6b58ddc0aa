"""Prefixes on disk as the scheduler sees them: read only where that is cheaper, and never for
another API key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.models.kv import DiskOrder, DiskReport, DiskRun
from bus.wire.ids import RequestId
from bus.wire.messages.requests import PromptCost
from runner.engine import EntryId, StepPlan
from runner.schedule import RowFinished, RowKey, ScheduleSettings
from runner.schedule.prefixes import DiskIndex, TokenChain
from tests.harness.engine import facts, whole_output
from tests.harness.scheduling import Loop, prepared

LEAST = 128


@dataclass
class DiskLoop(Loop):
    """A loop with a disk in virtual time: `read_s` seconds for a read; runs in `torn` are lost."""

    read_s: float = 0.01
    files: dict[str, DiskRun] = field(default_factory=dict)
    torn: set[str] = field(default_factory=set)
    reading: list[tuple[float, str]] = field(default_factory=list)
    reports: list[DiskReport] = field(default_factory=list)
    restored: list[tuple[DiskRun, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reports += [DiskReport("found", run) for run in self.files.values()]

    def turn(self) -> bool:
        due = [one for one in self.reading if one[0] <= self.now]
        for one in due:
            self.reading.remove(one)
            self.reports.append(self._read(one[1]))
        disk = self.scheduler.disk
        assert disk is not None
        disk.take(self.reports, self.now)
        self.reports.clear()
        before = len(self.plans)
        worked = super().turn()
        for plan in self.plans[before:]:
            self._take(plan)
        for order in disk.orders(self.now):
            self._do(order)
        if not worked and self.reading:
            wake_at = self.scheduler.wake_at()
            ends_at = min(self.reading)[0]
            self.now = max(self.now, ends_at if wake_at is None else min(ends_at, wake_at))
            return True
        return worked or bool(self.reports)

    def _read(self, name: str) -> DiskReport:
        run = self.files.get(name)
        if run is None or name in self.torn:
            self.files.pop(name, None)
            return DiskReport("lost", DiskRun(name, b"", TokenChain().first(0)))
        self.engine.on_disk[name] = list(run.tokens)  # type: ignore[arg-type]
        return DiskReport("read", run, self.read_s)

    def _take(self, plan: StepPlan) -> None:
        for save in plan.save:
            run = replace(save.run, size_bytes=10 * len(save.run.tokens))
            assert list(run.tokens) == self.engine.kept[save.entry]
            self.files[run.name] = run
            self.reports.append(DiskReport("written", run))
        for restored in plan.restore:
            run = self.files[restored.name]
            row = next(hit.row for hit in plan.hits if hit.entry == restored.entry)
            assert any(spec.row == row for spec in plan.admit)
            self.restored.append((run, restored.length))

    def _do(self, order: DiskOrder) -> None:
        if order.what == "read":
            self.reading.append((self.now + self.read_s, order.name))
        elif order.what == "delete":
            self.files.pop(order.name, None)
        elif order.what == "forget":
            self.engine.on_disk.pop(order.name, None)


def tokens(length: int, salt: int = 1) -> list[int]:
    return [(salt * 31 + at * 7) % 61 + 2 for at in range(length)]


def asked(name: str, prompt: list[int], key: str | None = None, count: int = 4) -> Any:
    one = prepared(name, prompt, max_tokens=count)
    return replace(one, request=one.request.model_copy(update={"key_id": key}))


def cached(loop: Loop, name: str) -> int:
    end = loop.ends[RowKey(RequestId(name), 0)]
    assert isinstance(end, RowFinished)
    return end.cost.cached_tokens


def one_life(files: dict[str, DiskRun], request: Any, **parts: Any) -> DiskLoop:
    """A runner that starts with these files and answers one request."""
    loop = DiskLoop(facts(disk_tokens=LEAST), ScheduleSettings(), files=files, **parts)
    assert loop.turn() is not None
    loop.submit(request)
    loop.run()
    key = RowKey(request.request_id, 0)
    assert loop.made[key] == whole_output(100, list(request.tokens), 4, frozenset())
    return loop


def test_a_new_runner_starts_from_what_the_last_one_wrote() -> None:
    first = one_life({}, asked("a", tokens(400)))
    assert cached(first, "a") == 0 and len(first.files) == 1
    second = one_life(first.files, asked("b", tokens(400)))
    assert cached(second, "b") == 399
    third = one_life(second.files, asked("c", [*tokens(300), *tokens(50, 5)]))
    assert cached(third, "c") == 300


def test_a_slow_disk_is_given_up_and_not_asked_again_at_once() -> None:
    files = one_life({}, asked("a", tokens(400))).files
    slow = one_life(files, asked("b", tokens(400)), read_s=60.0)
    assert cached(slow, "b") == 0
    assert slow.now < 5.0 + 60.0


def test_a_read_that_costs_more_than_computing_is_not_begun() -> None:
    index = DiskIndex(LEAST)
    chain = TokenChain(tokens(400))
    run = replace(index.save(EntryId(1), chain, 400, ""), size_bytes=10**9)
    index.take([DiskReport("found", run)], 0.0)
    assert not index.waits(chain, 0, lambda _length: 0.5, 0.0)
    assert index.waits(chain, 0, lambda _length: 2.0, 0.0)
    assert index.waits(chain, 0, lambda _length: 2.0, 1.9)
    assert not index.waits(chain, 0, lambda _length: 2.0, 2.0)


def test_a_torn_file_costs_time_and_no_token() -> None:
    files = one_life({}, asked("a", tokens(400))).files
    loop = one_life(files, asked("b", tokens(400)), torn=set(files))
    assert cached(loop, "b") == 0
    assert len(loop.files) == 1, "it is written again"


def test_another_key_or_adapter_never_gets_a_prefix() -> None:
    files = one_life({}, asked("a", tokens(400), "one")).files
    for key in ("two", None):
        loop = one_life(dict(files), asked("b", tokens(400), key))
        assert cached(loop, "b") == 0 and not loop.restored
    tuned = asked("c", tokens(400), "one")
    tuned = replace(tuned, request=tuned.request.model_copy(update={"adapter": "lora"}))
    assert cached(one_life(dict(files), tuned), "c") == 0
    assert cached(one_life(dict(files), asked("d", tokens(400), "one")), "d") == 399


def test_a_file_whose_name_does_not_fit_its_tokens_is_deleted() -> None:
    (run,) = one_life({}, asked("a", tokens(400))).files.values()
    forged = replace(run, tokens=TokenChain(tokens(400, 9)).first(400))
    loop = one_life({run.name: forged}, asked("b", tokens(400, 9)))
    assert cached(loop, "b") == 0 and not loop.restored


def test_short_prompts_and_little_growth_are_not_written() -> None:
    assert not one_life({}, asked("a", tokens(LEAST - 20))).files
    first = one_life({}, asked("a", tokens(900)))
    second = one_life(first.files, asked("b", tokens(950)))
    assert [len(run.tokens) for run in second.files.values()] == [900]
    third = one_life(second.files, asked("c", tokens(1200)))
    assert [len(run.tokens) for run in third.files.values()] == [1200]


def test_a_prompt_costs_what_is_neither_in_memory_nor_on_disk() -> None:
    loop = DiskLoop(facts(disk_tokens=LEAST), ScheduleSettings())
    disk = loop.scheduler.disk
    assert disk is not None
    disk.seeks.is_on = True
    prompt, other = TokenChain(tokens(400)), TokenChain([*tokens(200), *tokens(600, 5)])

    def cost(chain: TokenChain) -> PromptCost:
        return loop.scheduler.intake.prompt_cost(chain, "way")

    new = cost(prompt)
    assert (new.tokens, new.missing, new.saved, new.how) == (400, 400, 0, "way")
    assert (new.prefill_s, new.busy_s) == (0.0, 0.0) and new.kv_bytes > 0
    loop.submit(asked("a", tokens(400)))
    assert cost(other).busy_s > 0, "a prompt waits before it"
    loop.run()
    done = cost(prompt)
    assert (done.missing, done.saved) == (1, 399), "the last token is always computed"
    assert (cost(other).missing, cost(other).saved) == (600, 200)
    assert cost(other).prefill_s > 0 and cost(other).busy_s == 0
    keyed = cost(TokenChain(tokens(400), seed=b"key"))
    assert (keyed.missing, keyed.saved) == (400, 0)
    assert cost(TokenChain(tokens(LEAST - 1))).how == "", "it would not be written"
    disk.seeks.is_on = False
    assert cost(prompt).how == ""


def test_a_prompt_is_being_written_until_its_file_is_there() -> None:
    index = DiskIndex(LEAST)
    chain = TokenChain(tokens(400))
    assert not index.is_writing(chain)
    run = index.save(EntryId(1), chain, 399, "")
    assert index.is_writing(chain) and index.is_writing(TokenChain([*tokens(400), 3]))
    assert not index.is_writing(TokenChain(tokens(400, 2))) and index.saved(chain) == 0
    index.take([DiskReport("written", run)], 0.0)
    assert not index.is_writing(chain) and index.saved(chain) == 399


REQUESTS = st.lists(
    st.tuples(
        st.integers(min_value=20, max_value=500),
        st.integers(min_value=1, max_value=3),
        st.sampled_from([None, "one", "two"]),
        st.floats(min_value=0.0, max_value=2.0),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=40)
@given(REQUESTS, st.sampled_from([0.001, 0.05, 3.0]), st.integers(min_value=400, max_value=4000))
def test_texts_never_change_and_keys_never_meet(
    requests: list[tuple[int, int, str | None, float]], read_s: float, kv_bytes: int
) -> None:
    files: dict[str, DiskRun] = {}
    owners: dict[bytes, set[str | None]] = {}
    for _life in range(2):
        loop = DiskLoop(
            facts(kv_bytes=kv_bytes, disk_tokens=LEAST),
            ScheduleSettings(),
            files=files,
            read_s=read_s,
        )
        made: list[Any] = []
        for number, (length, salt, key, wait_s) in enumerate(requests):
            request = asked(f"r{number}", tokens(length, salt), key)
            made.append(request)
            loop.submit(request)
            loop.now += wait_s
            loop.turn()
        loop.run()
        for request in made:
            wanted = whole_output(100, list(request.tokens), 4, frozenset())
            assert loop.made.get(RowKey(request.request_id, 0), wanted) == wanted
        for run, length in loop.restored:
            key = (run.seed or b"").decode() or None
            owners.setdefault(run.seed, set()).add(key)
            assert any(
                request.request.key_id == key
                and list(request.tokens[:length]) == list(run.tokens[:length])
                for request in made
            )
        files = loop.files
