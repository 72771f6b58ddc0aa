"""Whether what answers at a home's address is that home's node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf.paths import find_paths
from gateway.cli.node.node_api import NodeApi, check_is_of
from gateway.cli.output.errors import FAILED, NO_NODE, CliError
from tests.harness.node_server import serving

NOBODY = (404, {"error": {"message": "no such path"}})
KEYED = (401, {"error": {"message": "an API key is needed"}})


def checked(home: Path, own: str, health: Any, state: Any = NOBODY) -> CliError | None:
    """Check that the node `own` of a home is what answers so; return what is said against it."""
    paths = find_paths(home)
    paths.state.mkdir(parents=True)
    (paths.state / "node-id").write_text(f"{own}\n")
    with serving(lambda _m, path, _b: health if path == "/health" else state) as url:
        try:
            check_is_of(NodeApi(url), paths)
        except CliError as problem:
            return problem
    return None


def test_the_homes_own_node_is_known_by_its_id(tmp_path: Path) -> None:
    assert checked(tmp_path, "n1", (200, {"status": "ok", "node": "n1"})) is None


@pytest.mark.parametrize(
    ("health", "state", "answers"),
    [
        ((200, {"status": "ok", "node": "n2"}), NOBODY, "n2"),
        ((200, {"status": "ok"}), (200, {"node": "n2"}), "n2"),
        ((200, {"status": "ok"}), NOBODY, "another program"),
        ((200, ["ok"]), (200, []), "another program"),
        (NOBODY, NOBODY, "another program"),
    ],
)
def test_another_node_or_server_is_told_from_the_homes_own(
    tmp_path: Path, health: Any, state: Any, answers: str
) -> None:
    problem = checked(tmp_path, "n1", health, state)
    assert problem is not None and problem.code == NO_NODE
    assert f"not the node of {tmp_path}" in problem.message and answers in problem.message


def test_a_node_that_asks_for_a_key_is_said_to(tmp_path: Path) -> None:
    problem = checked(tmp_path, "n1", (200, {"status": "ok"}), KEYED)
    assert problem is not None and problem.code == FAILED
    assert "SHOAL_API_KEY" in problem.remedy


def test_a_home_in_which_no_node_was_ever_started_is_not_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CliError) as caught:
        check_is_of(NodeApi("http://127.0.0.1:9"), find_paths(tmp_path))
    assert caught.value.code == NO_NODE and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("model_not_found", "shoal ls"),
        ("key_not_found", "shoal apikey ls"),
        ("node_not_found", "shoal nodes"),
        ("not_found", ""),
    ],
)
def test_what_was_not_found_is_looked_for_where_its_kind_is_listed(code: str, remedy: str) -> None:
    answer = (404, {"error": {"message": "it does not exist", "code": code}})
    with serving(lambda _m, _p, _b: answer) as url, pytest.raises(CliError) as problem:
        NodeApi(url).get("/v1/jobs/job_1")
    assert problem.value.message == "it does not exist"
    assert remedy in problem.value.remedy and bool(remedy) == bool(problem.value.remedy)
