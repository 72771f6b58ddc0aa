"""What `shoal up` sees and says before and while a node starts."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.process.supervisor import Supervisor
from conf.settings import load_settings
from gateway.cli.app import app
from gateway.cli.node.node_api import NodeApi
from gateway.cli.node.node_state import parse_state
from gateway.cli.node.processes import free_base_port
from gateway.cli.node.readiness import NO_ROOM, Look, ModelLook
from gateway.cli.verbs.node.up import log_tail, look_at, model_look
from tests.harness.node_server import NODE, card, instance, serving, state


def up(home: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["up", "--home", str(home), *words])


def test_a_taken_port_is_said_with_its_owner_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.verbs.node.up.PORT_GRACE_S", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = up(tmp_path, "--http-port", str(port), "--json")
    error = json.loads(found.stdout)["error"]
    assert found.exit_code == 1
    assert f"port {port} is in use by" in error["message"] and "--base-port" in error["remedy"]
    assert not (tmp_path / "state" / "supervisord.conf").exists()


def test_a_taken_port_of_the_cluster_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.verbs.node.up.PORT_GRACE_S", 0.0)
    base = free_base_port(load_settings(home=tmp_path))
    assert base is not None
    with socket.create_server(("127.0.0.1", base + 4)):
        found = up(tmp_path, "--base-port", str(base), "--json")
    error = json.loads(found.stdout)["error"]
    assert found.exit_code == 1 and f"port {base + 4} is in use by" in error["message"]
    assert f"--base-port {base}`" not in error["remedy"] and "--base-port" in error["remedy"]
    assert not (tmp_path / "state" / "supervisord.conf").exists()


@pytest.mark.parametrize(
    "words",
    [("--listen", "0.0.0.0"), ("--listen", "192.168.1.5"), ("--peers", "studio.local:24154")],
    ids=["all", "one", "a peer"],
)
def test_meeting_nodes_of_other_machines_without_a_cluster_key_is_refused(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    found = up(tmp_path, *words)
    assert found.exit_code == 1 and "shoal keys init" in found.stderr
    assert not (tmp_path / "state" / "supervisord.conf").exists()


def test_a_models_look_follows_its_instance_and_its_runners_reading() -> None:
    here = [card("tiny", Path("/x"))]
    loading = instance("tiny", "placed")
    failed = instance("tiny", "failed", failures=("generation 1 rank 0: out of memory",))
    looks = [
        model_look(parse_state(state(cards, instances)), "tiny")
        for cards, instances in (([], []), (here, []), (here, [loading]), (here, [failed]))
    ]
    assert [look.status for look in looks] == ["on no node's disk", "waiting", "loading", "failed"]
    assert looks[3].why == "out of memory"


def test_a_copy_that_failed_says_nothing_of_another_that_is_well() -> None:
    here, first = [card("tiny", Path("/x"))], instance("tiny", "ready")
    second = first.model_copy(update={"instance": "inst-second", "status": "failed"})
    for copies in ([first, second], [second, first]):
        assert model_look(parse_state(state(here, copies)), "tiny").status == "ready"


def test_a_look_without_supervisord_sees_nothing(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    nobody = Supervisor(str(tmp_path / "supervisor.sock"))
    with serving(lambda *_: (200, state([], []))) as url:
        assert look_at(settings, nobody, NodeApi(url)) == Look(services=None)


class Listing(Supervisor):
    """supervisord without processes."""

    def list_processes(self) -> list[Any]:
        return []


def test_a_look_tells_what_the_api_misses(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    settings.paths.state.mkdir(parents=True)
    (settings.paths.state / "node-id").write_text(f"{NODE}\n")
    leaderless = {**state([card("shoal-tiny", Path("/x"))], []), "live": False}
    with serving(lambda *_: (200, leaderless)) as url:
        look = look_at(settings, Listing("x"), NodeApi(url))
    assert look.http == "no leader yet"
    assert look.models == (ModelLook("shoal-tiny", "waiting"),)
    (settings.paths.state / "node-id").write_text("n2\n")
    with serving(lambda *_: (200, leaderless)) as url:
        assert look_at(settings, Listing("x"), NodeApi(url)) == Look(services=(), stranger=NODE)
    with serving(lambda *_: (503, {"error": {"message": "draining"}})) as url:
        assert look_at(settings, Listing("x"), NodeApi(url)).http is None


def test_the_end_of_a_log_is_readable_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    assert log_tail(settings, "worker") == ""
    settings.paths.logs.mkdir(parents=True)
    (settings.paths.logs / "worker.log").write_text("x" * 20_000 + "\nlast words\n")
    assert log_tail(settings, "worker", 1).endswith("last words")


def test_a_look_asks_why_a_model_waits_and_tells_the_sum(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    settings.paths.state.mkdir(parents=True)
    (settings.paths.state / "node-id").write_text(f"{NODE}\n")
    told = {**state([card("shoal-tiny", Path("/x"))], []), "live": True}
    answers = {507: {"error": {"message": "needs 9 GB, n1 has 2 GB"}}, 200: {}, 503: {}}
    asked = iter(answers.items())
    with serving(
        lambda _, path, *__: next(asked) if path.startswith("/instance/pl") else (200, told)
    ) as url:
        looks = [look_at(settings, Listing("x"), NodeApi(url)).models for _ in answers]
    assert looks == [
        (ModelLook("shoal-tiny", NO_ROOM, why="needs 9 GB, n1 has 2 GB"),),
        *[(ModelLook("shoal-tiny", "waiting"),)] * 2,
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="a folder that takes no file, of root either")
def test_a_home_that_cannot_be_written_is_no_defect() -> None:
    found = up(Path("/sys/shoal-home"))
    assert found.exit_code == 1, found.stderr
    assert "defect" not in found.stderr and "/sys/shoal-home" in found.stderr
    assert "choose another home with `--home DIR`" in found.stderr
