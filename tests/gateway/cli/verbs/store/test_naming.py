"""`shoal cp` and the `shoal rm` of a name, over a gateway; the lines of the page run as printed."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.wire.ids import ModelId
from bus.wire.messages.commands import DeriveModel
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.events import ModelDerived
from gateway.cli.app import app
from gateway.cli.verbs.models.models import stands_for
from tests.harness.gateway_testbed import GatewayTestbed, gateway_testbed
from tests.harness.typed_lines import examples, typed

BRIEF = DerivedModel(
    name=ModelId("brief"),
    base=ModelId("shoal-tiny"),
    system="Be brief.",
    parameters={"num_predict": 3},
    max_tokens=3,
)


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as found:
        yield found


@pytest.fixture
def shoal(made: GatewayTestbed, tmp_path: Path) -> Iterator[Any]:
    """Type a line; the names that it leaves are taken away at the end."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return typed(made, tmp_path, f"shoal {line}")

    yield run
    if left := names(made):
        assert run(f"rm {shlex.join(left)}").returncode == 0


def names(made: GatewayTestbed) -> list[str]:
    """The names that the holder knows."""
    return sorted(made.do(lambda: made.holder.state.derived))


def test_the_lines_of_the_page_run_as_printed_one_after_the_other(
    made: GatewayTestbed, shoal: Any
) -> None:
    lines = [line.removeprefix("shoal ") for line in examples("cp")]
    told = [shoal(line) for line in lines]
    assert [one.returncode for one in told] == [0] * len(lines), [one.stderr for one in told]
    first, shown, second, gone = (one.stdout for one in told)
    assert "helper is now an alias of shoal-tiny" in first
    assert "helper, an alias of shoal-tiny" in shown
    assert "second-helper is now an alias of shoal-tiny" in second
    assert "deleted the alias helper; shoal-tiny stays" in gone
    assert names(made) == []


def test_a_name_is_listed_as_what_it_is_and_shown_with_what_it_stands_for(shoal: Any) -> None:
    assert shoal("cp other worker").returncode == 0
    (row,) = [line for line in shoal("ls").stdout.splitlines() if line.startswith("worker")]
    assert "an alias of org/other" in row
    (listed,) = json.loads(shoal("ls --json").stdout)["derived"]
    assert (listed["name"], listed["base"]) == ("worker", "org/other")
    shown = json.loads(shoal("show worker --json").stdout)
    assert (shown["model"], shown["derived"]["name"]) == ("org/other", "worker")
    assert json.loads(shoal("show org/other --json").stdout)["derived"] is None


def test_a_copy_of_what_was_made_has_what_that_was_made_with(
    made: GatewayTestbed, shoal: Any
) -> None:
    made.happen(ModelDerived(derived=BRIEF))
    assert shoal("cp brief short").returncode == 0
    commands: list[Any] = made.do(lambda: list(made.holder.commands))
    copied = next(one for one in reversed(commands) if isinstance(one, DeriveModel)).derived
    assert (copied.name, copied.base, copied.system) == ("short", "shoal-tiny", "Be brief.")
    assert copied.max_tokens == 3
    assert "an alias of shoal-tiny, with a system prompt, num_predict 3" in shoal("ls").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("sahol-tiny one", 4, "no model 'sahol-tiny'"),
        ("sahol-tiny one", 4, "models here: org/other, shoal-tiny"),
        ("shoal-tiny org/other", 1, "org/other is the name of org/other, which is on disk"),
        ("shoal-tiny other", 1, "other is the name of org/other, which is on disk"),
        (
            "org/other held",
            1,
            ("held is already an alias of shoal-tiny (delete it with `shoal rm held`"),
        ),
        (
            "org/other Held:latest",
            1,
            ("is already an alias of shoal-tiny (delete it with `shoal rm held`"),
        ),
        ("shoal-tiny 'two words'", 1, "is not a valid model name"),
        ("shoal-tiny ''", 1, "destination: is required"),
    ],
)
def test_what_cannot_be_is_refused_in_words_and_changes_nothing(
    made: GatewayTestbed, shoal: Any, words: str, code: int, said: str
) -> None:
    assert shoal("cp shoal-tiny held").returncode == 0
    found = shoal(f"cp {words}")
    assert (found.returncode, found.stdout) == (code, "")
    assert said in " ".join(found.stderr.split())
    assert names(made) == ["held"]


def test_without_a_node_it_says_how_to_start_one(tmp_path: Path) -> None:
    nowhere = ["--home", str(tmp_path), "--url", "http://127.0.0.1:9"]
    found = CliRunner().invoke(app, [*nowhere, "cp", "shoal-tiny", "helper"])
    assert found.exit_code == 3 and "shoal up" in found.stderr


def test_rm_takes_names_and_no_others_away(made: GatewayTestbed, shoal: Any) -> None:
    for name in ("one", "two"):
        assert shoal(f"cp shoal-tiny {name}").returncode == 0
    missing = shoal("rm one three")
    assert missing.returncode == 4 and names(made) == ["one", "two"], "all is looked at before"
    gone = json.loads(shoal("rm one --json").stdout)
    assert (gone["names"], gone["deleted"], names(made)) == (["one"], [], ["two"])
    everywhere = json.loads(shoal("rm two --everywhere --json").stdout)
    assert (everywhere["names"], everywhere["models"], names(made)) == (["two"], [], [])


def test_a_name_says_whose_it_is_and_what_it_adds() -> None:
    base = ModelId("m")
    plain = DerivedModel(name=ModelId("n"), base=base, made_at_s=5.0)
    assert stands_for(plain) == "an alias of m"
    assert stands_for(plain.model_copy(update={"adapter": "fox"})) == "an alias of m:fox"
    assert stands_for(BRIEF) == "an alias of shoal-tiny, with a system prompt, num_predict 3"
    thinks = plain.model_copy(update={"thinking": False})
    assert stands_for(thinks) == "an alias of m, with defaults of its own"
