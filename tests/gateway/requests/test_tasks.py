"""Who is asked for a task, in which order and why; and the file that says so, while it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.models.tasks import read_tasks
from gateway.dialects.faults import HttpFault
from gateway.requests.tasks import TaskBook, leads_on, order_of

PROVIDER = '[providers.cloud]\nkind = "openai"\nbase_url = "http://127.0.0.1:1/v1"\n'


def order(
    candidates: list[str], *, warm: str = "", pinned: bool = False, cloud: bool = True
) -> tuple[list[tuple[str, str]], list[str]]:
    """(candidate, why) in order, and those that are left out."""
    pin = "\npin_primary = true" if pinned else ""
    table = read_tasks(f"{PROVIDER}[tasks.t]\ncandidates = {candidates}{pin}\n")
    found = order_of(table, "t", is_warm=warm.split().__contains__, allow_cloud=cloud)
    return [(one.candidate, one.why) for one in found.choices], list(found.left_out)


def names(*args: object, **more: object) -> list[str]:
    found, _ = order(*args, **more)  # type: ignore[arg-type]
    return [name for name, _ in found]


def test_the_order_is_that_of_the_file() -> None:
    found, left_out = order(["a", "b", "cloud:x"])
    assert found == [("a", "primary"), ("b", "primary"), ("cloud:x", "primary")] and not left_out


def test_a_model_that_is_loaded_goes_before_a_primary_that_is_not_and_says_why() -> None:
    found, _ = order(["a", "b", "c"], warm="b c")
    assert found[0] == ("b", "b is loaded, and a is not")
    assert [name for name, _ in found] == ["b", "a", "c"]


@pytest.mark.parametrize("warm", ["a", "a b"])
def test_a_primary_that_is_loaded_stays_the_first(warm: str) -> None:
    assert names(["a", "b"], warm=warm) == ["a", "b"]


def test_a_pinned_primary_is_the_first_though_another_is_loaded() -> None:
    assert names(["a", "b"], warm="b", pinned=True) == ["a", "b"]


def test_a_provider_never_goes_before_a_model_for_being_there() -> None:
    assert names(["a", "cloud:x", "b"]) == ["a", "cloud:x", "b"]
    assert names(["a", "cloud:x", "b"], warm="cloud:x") == ["a", "cloud:x", "b"]


def test_the_guard_leaves_providers_out_behind_the_first_alone() -> None:
    found, left_out = order(["a", "cloud:x", "b"], cloud=False)
    assert [name for name, _ in found] == ["a", "b"] and left_out == ["cloud:x"]
    found, left_out = order(["cloud:x", "cloud:y"], cloud=False)
    assert [name for name, _ in found] == ["cloud:x"] and left_out == ["cloud:y"]


@pytest.mark.parametrize(
    ("status", "code", "leads"),
    [
        (404, "model_not_found", True),
        (400, "context_length_exceeded", True),
        (400, "unsupported", True),
        (429, "queue_full", True),
        (502, "provider_unauthorized", True),
        (503, "model_loading", True),
        (507, "insufficient_memory", True),
        (400, "invalid_value", False),
        (404, "not_found", False),
        (413, "too_large", False),
        (499, "client_closed", False),
        (503, "draining", False),
    ],
)
def test_a_fault_of_the_model_leads_on_and_one_of_the_request_does_not(
    status: int, code: str, leads: bool
) -> None:
    assert leads_on(HttpFault(status, code, "")) is leads


TASK = '[tasks.one]\ncandidates = ["a"]\n'


def looked(book: TaskBook) -> list[str]:
    """The tasks after two looks: a change counts when two have seen the same."""
    book.look()
    book.look()
    return sorted(book.table.tasks)


def test_a_change_is_taken_when_two_looks_have_seen_it(tmp_path: Path) -> None:
    file, told = tmp_path / "tasks.toml", list[str]()
    book = TaskBook(str(file), told.append)
    assert not book.table
    file.write_text(TASK)
    book.look()
    assert not book.table, "it may be written at this moment"
    assert looked(book) == ["one"]
    file.write_text(TASK + TASK.replace("one", "two"))
    assert looked(book) == ["one", "two"]
    file.unlink()
    assert looked(book) == [] and not told


def test_a_broken_file_is_told_once_and_what_was_read_before_stays(tmp_path: Path) -> None:
    file, told = tmp_path / "tasks.toml", list[str]()
    file.write_text(TASK)
    book = TaskBook(str(file), told.append)
    assert sorted(book.table.tasks) == ["one"], "it is read at the start"
    file.write_text(TASK + "budget = 3\n")
    for _ in range(3):
        assert looked(book) == ["one"]
    assert len(told) == 1 and "line 3" in told[0] and "stays in force" in told[0]
    assert book.trouble.startswith("tasks.toml, line 3: unknown key tasks.one.budget")
    file.write_text(TASK.replace("one", "two"))
    assert looked(book) == ["two"] and book.trouble == ""


def test_a_file_that_cannot_be_read_is_told_too(tmp_path: Path) -> None:
    file, told = tmp_path / "tasks.toml", list[str]()
    file.write_bytes(b"\xff\xfe")
    book = TaskBook(str(file), told.append)
    assert not book.table and len(told) == 1 and book.trouble


def test_the_variables_of_keys_are_named(tmp_path: Path) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text(PROVIDER + 'key_env = "CLOUD"\n')
    assert TaskBook(str(file), print).variables() == {"CLOUD"}
