"""`shoal pulls`, `shoal pull` and the offer of `shoal run`, against a node that answers as told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from gateway.cli.verbs.models import chat
from tests.harness.node_server import card, serving, state

ROW: dict[str, Any] = {
    "model": "someone/big", "node": "n1", "name": "attic", "state": "fetching", "background": True,
    "revision": "abc", "completed": 1_000_000, "total": 4_000_000, "bytes_per_s": 500_000.0,
    "eta_s": 6.0, "sources": [], "note": "", "code": None, "message": "",
    "choice": "",
}  # fmt: skip
FAILED = {
    **ROW, "name": "kelp", "state": "failed", "bytes_per_s": 0.0, "eta_s": None,
    "code": "hub_unreachable", "message": "no route to the hub",
}  # fmt: skip
EVENT: dict[str, Any] = {
    "status": "fetching", "model": "someone/big", "node": "n1", "known_as": "", "hub": "https://hub",
    "revision": "abc", "digest": "d", "files": 3, "completed": 1, "total": 4, "received_bytes": 1,
    "bytes_per_s": 0.0, "eta_s": None, "sources": [], "note": "", "unreckoned": "",
    "background": False, "choice": "",
}  # fmt: skip
PLAN: dict[str, Any] = {
    "model": "someone/big", "node": "n1", "known_as": "", "hub": "https://hub", "revision": "abc",
    "digest": "d", "files": 3, "total_bytes": 4_000_000, "fetch_bytes": 4_000_000, "sources": [],
    "note": "", "disk": None, "fits": "now", "why": "", "bill": None,
    "placement": {"ranks": [{"name": "attic"}, {"name": "kelp"}]}, "tokens_per_s": 41.5,
    "no_speed": "", "nodes": [], "blocked": {}, "choice": "",
}  # fmt: skip


class Desk:
    """A node with one model. `plan` answers a dry run; `events` are the lines of a pull."""

    def __init__(self, tmp_path: Path) -> None:
        self.state = state([card("shoal-tiny", tmp_path)], [])
        self.pulls: list[dict[str, Any]] = []
        self.plan: tuple[int, Any] = (200, PLAN)
        self.events: list[dict[str, Any]] = []
        self.changed: tuple[int, Any] = (200, {})
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.home = tmp_path

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """Answer a request."""
        self.asked.append((method, path, body))
        if path == "/state":
            return 200, self.state
        if path == "/v1/models":
            return 200, {"data": [{"id": "shoal-tiny"}]}
        if path.startswith("/v1/models/"):
            here = path.endswith("/shoal-tiny")
            return (200, {}) if here else _refused(404, "model_not_found", "model not found")
        if path == "/models/pulls":
            return 200, {"pulls": self.pulls}
        if path == "/models/pull":
            lines = (json.dumps(event) + "\n" for event in self.events)
            return self.plan if body.get("dry_run") else lines
        if path.startswith("/models/pulls/"):
            return self.changed
        return _refused(404, "model_not_found", f"download it with `shoal pull {body['model']}`")

    def type(self, *words: str, keys: str = "") -> Result:
        """Run a line of the command line."""
        with serving(self.answer) as url:
            line = ["--home", str(self.home), "--url", url, *words]
            return CliRunner().invoke(app, line, input=keys, env={"NO_COLOR": "1"})

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies that the node got at a path."""
        return [body for _, asked, body in self.asked if asked == path]


def _refused(status: int, code: str, message: str) -> tuple[int, Mapping[str, Any]]:
    return status, {"error": {"message": message, "code": code}}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "is_terminal", lambda: True)


def test_pulls_are_a_table_with_rate_time_and_error(desk: Desk) -> None:
    assert "no node pulls a model" in desk.type("pulls").stdout
    desk.pulls = [ROW, FAILED]
    shown = desk.type("pulls")
    head, first, second = shown.stdout.splitlines()
    assert head.split() == ["model", "node", "state", "done", "of", "rate", "left", "note"]
    for words in ("someone/big", "attic", "fetching", "1.0 MB", "4.0 MB", "500.0 kB/s", "6 s"):
        assert words in first, shown.stdout
    assert "kelp" in second and "no route to the hub" in second
    assert "`shoal pulls resume someone/big`" in shown.stderr
    assert json.loads(desk.type("pulls", "--json").stdout) == {"pulls": [ROW, FAILED]}


def test_a_pull_is_cancelled_paused_and_resumed(desk: Desk) -> None:
    result = {"node": "n1", "name": "attic", "deleted_bytes": 5_000_000, "why": ""}
    desk.changed = 200, {"model": "someone/big", "change": "cancel", "nodes": [result]}
    done = desk.type("pulls", "cancel", "someone/big", "--node", "attic")
    assert (
        done.exit_code == 0 and done.stdout == "cancelled someone/big on attic (5.0 MB deleted)\n"
    )
    assert desk.asked[-1][:2] == ("DELETE", "/models/pulls/someone/big?node=attic")
    result["deleted_bytes"] = 0
    for act, words in (("pause", "paused"), ("resume", "resumed")):
        assert desk.type("pulls", act, "someone/big").stdout == f"{words} someone/big on attic\n"
        assert desk.asked[-1] == ("POST", "/models/pulls/someone/big", {"change": act})
    failed = {"node": "n2", "name": "kelp", "deleted_bytes": 0, "why": "kelp did not answer"}
    desk.changed = 200, {"model": "someone/big", "change": "pause", "nodes": [result, failed]}
    half = desk.type("pulls", "pause", "someone/big")
    assert half.exit_code == 5 and "kelp did not answer" in half.stderr
    desk.changed = _refused(404, "pull_not_found", "no node has a pull of 'someone/big'")
    none = desk.type("pulls", "cancel", "someone/big")
    assert none.exit_code == 4 and "list the pulls with `shoal pulls`" in none.stderr
    for words in (("stop", "someone/big"), ("cancel",), ("list", "someone/big")):
        assert desk.type("pulls", *words).exit_code == 2


def test_a_detached_pull_ends_once_the_node_has_recorded_it(desk: Desk) -> None:
    begun = {**EVENT, "background": True}
    desk.events = [EVENT, begun, {"error": {"message": "never read", "status": 500}}]
    done = desk.type("pull", "someone/big", "--detach")
    assert done.exit_code == 0 and done.stdout == "desk pulls someone/big\n", done.output
    assert "see `shoal pulls`" in done.stderr
    assert desk.bodies("/models/pull")[-1]["background"] is True
    told = desk.type("pull", "someone/big", "--detach", "--json")
    assert json.loads(told.stdout) == begun
    assert desk.type("pull", "someone/big", "--detach", "--dry-run").exit_code == 2


def test_a_pull_says_once_that_it_continues_without_the_terminal(desk: Desk) -> None:
    begun = {**EVENT, "background": True}
    desk.events = [EVENT, begun, {**begun, "completed": 2}, {**EVENT, "status": "done"}]
    done = desk.type("pull", "someone/big")
    assert done.exit_code == 0 and "pulled someone/big" in done.stdout
    assert done.stderr.count("`shoal pulls cancel someone/big`") == 1
    desk.events = [begun, {"error": {"message": "it was paused", "code": "pull_paused"}}]
    paused = desk.type("pull", "someone/big")
    assert paused.exit_code == 1 and "`shoal pulls resume MODEL`" in paused.stderr


@pytest.mark.usefixtures("terminal")
def test_run_on_a_terminal_offers_a_missing_model_and_pulls_it(desk: Desk) -> None:
    desk.events = [{**EVENT, "status": "done", "background": True}]
    run = desk.type("run", "someone/big", "hi", keys="y\n")
    for words in (
        "no node has someone/big", "4.0 MB (3 files at https://hub)", "it fits now: attic, kelp",
        "41.5 tokens/s, a prediction for one stream", "pulled someone/big",
    ):  # fmt: skip
        assert words in run.stdout, run.output
    assert "Pull it now? [y/n]" in run.stderr
    assert [body.get("dry_run", False) for body in desk.bodies("/models/pull")] == [True, False]
    assert desk.asked[-1][1] == "/v1/chat/completions"


@pytest.mark.usefixtures("terminal")
def test_a_declined_offer_pulls_nothing_and_names_the_command(desk: Desk) -> None:
    for words in (("run", "someone/big", "hi"), ("run", "someone/big"), ("chat", "someone/big")):
        declined = desk.type(*words, keys="n\n")
        assert declined.exit_code == 4 and "`shoal pull someone/big`" in declined.stderr
    assert all(body["dry_run"] for body in desk.bodies("/models/pull"))


@pytest.mark.usefixtures("terminal")
def test_a_model_that_fits_nowhere_is_not_offered(desk: Desk) -> None:
    desk.plan = 200, {**PLAN, "fits": "never", "why": "it needs 900 GB", "placement": None}
    refused = desk.type("run", "someone/big", "hi", keys="y\n")
    assert refused.exit_code == 1 and "it needs 900 GB" in refused.stderr
    assert "`shoal pull someone/big --anyway`" in refused.stderr


@pytest.mark.usefixtures("terminal")
def test_a_slip_suggests_the_model_that_is_there(desk: Desk) -> None:
    for code, status in (("invalid_value", 400), ("hub_model_not_found", 404)):
        desk.plan = _refused(status, code, "the hub has no such model")
        slip = desk.type("run", "shoal-tinny", "hi")
        assert slip.exit_code == 4 and "did you mean 'shoal-tiny'?" in slip.stderr, slip.output
        far = desk.type("run", "zzz/zzz", "hi")
        assert "the hub has no such model" in far.stderr and "did you mean" not in far.stderr


@pytest.mark.usefixtures("terminal")
def test_a_hub_that_does_not_answer_is_an_error_with_a_remedy(desk: Desk) -> None:
    desk.plan = _refused(502, "hub_unreachable", "https://hub did not answer")
    failed = desk.type("run", "someone/big", "hi")
    assert failed.exit_code == 1 and "https://hub did not answer" in failed.stderr
    assert "check that this node can reach the model hub" in failed.stderr


@pytest.mark.usefixtures("terminal")
def test_a_model_that_is_there_and_json_are_never_asked_about(desk: Desk) -> None:
    desk.type("run", "shoal-tiny", "hi")
    refused = desk.type("run", "someone/big", "hi", "--json")
    assert "`shoal pull someone/big`" in json.loads(refused.stdout)["error"]["message"]
    assert not desk.bodies("/models/pull")


def test_a_pipe_is_never_asked(desk: Desk) -> None:
    refused = desk.type("run", "someone/big", "hi")
    assert refused.exit_code == 4 and "`shoal pull someone/big`" in refused.stderr
    assert not desk.bodies("/models/pull")
