"""What a log tells of an error says where it came from, and nothing of what it says."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import json
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from bus.process.logs import (
    Log,
    dead_threads,
    death_note,
    log_strays,
    story_of,
    stray_of_loop,
)

SECRET = "a prompt of somebody"


def raised() -> ValueError:
    """An error whose words, and those of what it came of, quote a prompt."""
    try:
        try:
            try:
                raise LookupError(SECRET)
            except LookupError:
                raise OSError(28, "No space left on device", f"/tmp/{SECRET}")  # noqa: B904
        except OSError as cause:
            raise ValueError(f"not taken: {SECRET}") from cause
    except ValueError as error:
        return error


def test_a_story_has_each_error_and_its_code_and_no_words_but_the_systems() -> None:
    story = story_of(raised())
    first, second, third = story.split("\nwhich caused:\n")
    assert SECRET not in story
    assert first.endswith("LookupError") and "raise LookupError(SECRET)" in first
    assert second.endswith("OSError: No space left on device")
    assert third.endswith("ValueError") and "test_stories.py" in third


def test_what_zeromq_and_sqlite_call_it_is_told() -> None:
    with pytest.raises(sqlite3.Error) as told, sqlite3.connect(":memory:") as file:
        file.execute(f'SELECT "{SECRET}" FROM nowhere')
    assert story_of(told.value).endswith("sqlite3.OperationalError: SQLITE_ERROR")
    assert story_of(zmq.ZMQError(errno.EADDRINUSE)) == "zmq.error.ZMQError: Address already in use"


def test_a_story_comes_to_an_end_where_errors_lead_in_a_circle() -> None:
    one, other = ValueError(SECRET), KeyError(SECRET)
    one.__context__, other.__context__ = other, one
    assert story_of(one) == "KeyError\nwhich caused:\nValueError"


def test_what_came_before_is_left_out_where_it_was_hidden() -> None:
    try:
        try:
            raise LookupError(SECRET)
        except LookupError:
            raise ValueError(SECRET) from None
    except ValueError as error:
        assert "LookupError" not in story_of(error).splitlines()


def test_each_member_of_a_group_is_told() -> None:
    group = ExceptionGroup(SECRET, [raised(), UnicodeEncodeError("utf-8", SECRET, 0, 1, "x")])
    story = story_of(group)
    assert SECRET not in story
    assert "ExceptionGroup\none of its errors: " in story and story.endswith("UnicodeEncodeError")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """A log's lines; Python's own hooks are put back afterwards."""
    before = sys.excepthook, threading.excepthook, sys.unraisablehook
    stream = io.StringIO()
    log_strays(Log(node="n1", process="test", stream=stream))
    yield stream
    sys.excepthook, threading.excepthook, sys.unraisablehook = before


def last(lines: io.StringIO) -> dict[str, Any]:
    text = lines.getvalue()
    assert SECRET not in text
    return json.loads(text.splitlines()[-1])


def test_what_ends_a_process_a_thread_or_an_object_is_told_as_a_story(lines: io.StringIO) -> None:
    error = raised()
    sys.excepthook(ValueError, error, error.__traceback__)
    assert last(lines)["message"] == "stopped by an uncaught error"
    thread = threading.Thread(target=fails, name="the-reader")
    thread.start()
    thread.join()
    assert (last(lines)["thread"], last(lines)["level"]) == ("the-reader", "critical")
    assert "in fails" in last(lines)["error"]
    made = Fails()
    del made
    gc.collect()
    assert "in __del__" in last(lines)["error"]
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert len(lines.getvalue().splitlines()) == 3


def test_a_thread_that_ends_by_an_error_is_noted_for_as_long_as_its_process_lives(
    lines: io.StringIO, tmp_path: Path
) -> None:
    log = Log(node="n1", process="gateway:0", stream=lines)
    log_strays(log, death_note(str(tmp_path), "gateway:0"))
    assert dead_threads(str(tmp_path), lambda _pid: True) == ()
    for name in ("records", "otlp", "records"):
        thread = threading.Thread(target=fails, name=name)
        thread.start()
        thread.join()
    told = dead_threads(str(tmp_path), lambda pid: pid == os.getpid())
    assert told == (("gateway:0", "otlp"), ("gateway:0", "records"))
    assert dead_threads(str(tmp_path), lambda _pid: False) == ()
    assert list(tmp_path.iterdir()) == [], "what a process noted goes with it"


def test_strays_of_a_loop_are_told_without_what_they_were_called_with(lines: io.StringIO) -> None:
    async def strays() -> None:
        """Have a callback and a task raise."""
        loop = asyncio.get_running_loop()
        log = Log(node="n1", process="test", stream=lines)
        loop.set_exception_handler(stray_of_loop(log))
        loop.call_soon(fails, SECRET)
        task = loop.create_task(fails_later(SECRET))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert task.done()
        del task
        gc.collect()

    asyncio.run(strays())
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert SECRET not in lines.getvalue()
    assert {one["where"] for one in told} == {
        "Exception in callback fails",
        "Task exception was never retrieved",
    }
    assert all("raise" in one["error"] for one in told)


class Fails:
    """Fails when it is gone."""

    def __del__(self) -> None:
        raise ValueError(SECRET)


def fails(said: str = SECRET) -> None:
    raise LookupError(said)


async def fails_later(said: str) -> None:
    raise LookupError(said)
