"""Fields that the engine's thread writes while the main thread reads: every interleaving is safe.

No luck is needed: the engine's next write happens right after the main thread's read of the field.
"""

from __future__ import annotations

import ast
import io
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import runner
from bus.links.reactor import PollReactor
from bus.wire.ids import TokenId
from bus.wire.messages.control import Phase
from bus.wire.messages.requests import Sampling
from runner import lifecycle
from runner.engine import EngineStatus, RowId, RowSpec, StepPlan
from runner.group.rank_recorder import OpenTurn, RankRecorder
from runner.roles.lead import LeadRole
from runner.roles.quantize import QuantizeRole
from runner.roles.role import Role
from tests.harness.role_site import bare_parts

SHARED = frozenset(field.name for field in fields(EngineStatus))
LONG_S = 3600.0
"""Longer than any deadline."""


class Interleaved(EngineStatus):
    """A status whose engine makes its next write between two reads of the main thread."""

    writes: list[tuple[str, Callable[[EngineStatus], None]]]

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in SHARED:
            writes = super().__getattribute__("writes")
            if writes and writes[0][0] == name:
                writes.pop(0)[1](self)
        return value


def interleaved(
    busy_since: float, *writes: tuple[str, Callable[[EngineStatus], None]]
) -> Interleaved:
    """A status; each of `writes` happens right after the next read of the field that it names."""
    Interleaved.writes = []
    status = Interleaved(busy_since=busy_since)
    Interleaved.writes = list(writes)
    return status


class Host:
    """Notes why the role leaves."""

    phase: Phase = "ready"

    def __init__(self) -> None:
        self.left: list[str] = []

    def signal(self, signal: lifecycle.Signal) -> None: ...

    def leave(self, code: int, reason: str, message: str) -> None:
        self.left.append(message)


@pytest.fixture(params=["lead", "quantize"])
def role(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Role, Host]]:
    reactor, host = PollReactor(), Host()
    parts = bare_parts(tmp_path, host, reactor, io.StringIO())
    made = LeadRole(parts) if request.param == "lead" else None
    role = made or QuantizeRole(parts)
    yield role, host
    role.say_goodbye("the test is over")
    role.stop(0.0)
    reactor.close()


def test_a_step_that_ends_under_the_watchdogs_eyes_ends_no_runner(role: tuple[Role, Host]) -> None:
    watched, host = role
    now = watched.reading(1.0) and LONG_S
    assert now is not None

    def ended(status: EngineStatus) -> None:
        status.busy_since = None

    watched.status = interleaved(0.0, ("busy_since", ended))
    watched.watch(now)
    assert host.left == []


def test_a_result_that_is_followed_by_more_work_is_progress(role: tuple[Role, Host]) -> None:
    watched, host = role

    def went_on(status: EngineStatus) -> None:
        status.busy_since = LONG_S

    watched.status = interleaved(0.0, ("busy_since", went_on))
    watched.watch(LONG_S)
    assert host.left == []


def test_a_step_that_does_not_end_is_found_stuck(role: tuple[Role, Host]) -> None:
    watched, host = role
    watched.status = interleaved(0.0)
    watched.watch(LONG_S)
    assert len(host.left) == 1


class Taken(RankRecorder):
    """A recorder whose main thread takes the last traced request right after `_turn` was read."""

    takes = ""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        request = super().__getattribute__("takes")
        if name == "_turn" and request and isinstance(value, OpenTurn):
            self.takes = ""
            self.take(request)
        return value


def test_a_trace_that_is_taken_while_the_engine_numbers_a_crossing_breaks_nothing() -> None:
    spans = Taken(lambda: 1.0, threading.Lock())
    row = RowSpec(RowId(1), (TokenId(1),), Sampling(), seed=0, traced="r")
    spans.begin(StepPlan(7, admit=(row,)))
    spans.takes = "r"
    assert spans.numbered("tokens", 1, sent=True) == (7, 0)
    assert not spans.notes


def test_no_function_of_the_main_thread_reads_a_shared_field_twice() -> None:
    """But in the loops, which are the engine's thread and the only writers."""
    found: list[str] = []
    for path in sorted(Path(runner.__path__[0]).rglob("*.py")):
        tree = ast.parse(path.read_text())
        own = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Loop", "Thread"))
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node not in own:
                reads = Counter(
                    ast.unparse(one)
                    for one in ast.walk(node)
                    if isinstance(one, ast.Attribute)
                    and one.attr in SHARED
                    and ast.unparse(one.value).endswith(("status", "text", "_text"))
                )
                found += [
                    f"{path.name}:{node.lineno} {node.name} reads {read} {count} times"
                    for read, count in reads.items()
                    if count > 1
                ]
    assert found == []
