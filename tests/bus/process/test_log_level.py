"""Lines of a log have their time; its level follows the settings, and no file that is wrong changes
it."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from bus.process.logs import LevelFollower, LevelSource, Log, follow_level
from bus.wire.errors import ConfigError


def test_a_log_and_what_is_bound_to_it_follow_the_level(tmp_path: Path) -> None:
    file, out = tmp_path / "shoal.toml", io.StringIO()
    asked: list[str] = []

    def now() -> tuple[str, str]:
        """Return the file's first word; `bad` cannot be read, `odd` has trouble."""
        word = file.read_text().strip() if file.exists() else "info"
        asked.append(word)
        if word == "bad":
            raise ConfigError("shoal.toml: no such level")
        return ("info", "shoal.toml is odd") if word == "odd" else (word, "")

    log = Log(node="n1", process="worker", stream=out)
    bound = log.bind(request="r1")
    follower = LevelFollower(log, LevelSource(file, now))
    bound.debug("not told")
    file.write_text("bad\n")
    follower.look()
    for word in ("debug", "bad", "odd", "error"):
        file.write_text(word + "\n")
        follower.look()
        follower.look()
        bound.debug(f"debug after {word}")
        bound.warning(f"warning after {word}")
    assert asked == ["bad", "debug", "bad", "odd", "error"], "the file is read once for each change"
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one["message"] for one in told] == [
        "log level changed",
        "debug after debug",
        "warning after debug",
        "shoal.toml: no such level (the log level does not change)",
        "debug after bad",
        "warning after bad",
        "shoal.toml is odd (the log level does not change)",
        "debug after odd",
        "warning after odd",
    ]


def test_a_file_that_breaks_the_parser_is_trouble_and_nothing_else(tmp_path: Path) -> None:
    file, out = tmp_path / "shoal.toml", io.StringIO()

    def now() -> tuple[str, str]:
        """Fail as Python's TOML parser does on thousands of nested arrays."""
        if file.exists():
            raise RecursionError("maximum recursion depth exceeded")
        return "info", ""

    turns: list[Callable[[], None]] = []
    log = Log(node="n1", process="worker", stream=out)
    follow_level(log, LevelSource(file, now), lambda _seconds, look: turns.append(look))
    file.write_text("x = " + "[" * 9)
    turns[0]()
    assert "RecursionError" in json.loads(out.getvalue())["message"]


def test_a_line_tells_its_time_by_iso_8601_and_no_field_of_a_caller_takes_its_place() -> None:
    out = io.StringIO()
    before = time.time()
    Log(node="n1", process="worker", stream=out).info("fetching", at="127.0.0.1", request="r1")
    told = json.loads(out.getvalue())
    moment = datetime.fromisoformat(told["time"])
    assert told["time"].endswith("Z") and moment.utcoffset() == timedelta(0)
    assert before - 0.001 <= moment.timestamp() <= time.time()
    assert (told["at"], told["request"], told["level"]) == ("127.0.0.1", "r1", "info")
