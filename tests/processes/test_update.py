"""An update under a running node: it is said, no runner mixes it in, `shoal restart`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.nodes import MODEL, TREE, Node, eventually

pytestmark = pytest.mark.proof

PACKAGES = ("bus", "master", "worker", "runner", "gateway", "telemetry", "conf")


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Start a node from a tree of its own, and install other code over it while it runs."""
    tree = tmp_path_factory.mktemp("installed")
    for package in PACKAGES:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(TREE / package, tree / package, ignore=skipped)
    node = Node(PYTHONPATH=str(tree))
    try:
        node.up()
        eventually(node.ready, 60, "the model is loaded")
        before = json.loads(node.shoal("status", "--json").stdout)
        assert before["answers"], before
        assert "restart" not in node.shoal("status").stdout, "nothing to say before the update"
        update(tree / "runner" / "recorder.py")
        yield node
    finally:
        node.close()


def update(path: Path) -> None:
    """Change a file of the code as a later version would."""
    path.write_text(path.read_text() + "\nUPDATED = True\n")


@pytest.mark.parametrize("verb", ["status", "up", "doctor"])
def test_an_update_under_a_running_node_is_said(updated: Node, verb: str) -> None:
    said = updated.shoal(verb)
    assert "processes run other code" in said.stdout, said.stdout
    assert "`shoal restart`" in said.stdout
    assert all(name in said.stdout for name in ("bus", "master", "worker", "gateway")), said.stdout


def test_the_worker_starts_no_runner_of_another_tree(updated: Node) -> None:
    asked = updated.http.post("/place_instance", json={"model": MODEL, "if_absent": False})
    name = asked.json()["instance"]

    def outcome() -> dict[str, str] | None:
        """Return the new copy once it is ready or given up."""
        found = updated.state()["instances"].get(name)
        return found if found and found["status"] in ("ready", "failed") else None

    found = eventually(outcome, 60, "the second copy is ready or refused")
    assert found["status"] == "failed", "a runner of the new code serves beside the old bus"
    assert "`shoal restart`" in found["why"], found["why"]
    assert updated.chat("Hi.", max_tokens=4).status_code == 200, "the first copy serves on"


def test_shoal_restart_runs_what_is_installed_as_it_was_started(updated: Node) -> None:
    before = updated.processes()
    done = updated.shoal("restart", timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    after = updated.processes()
    assert all(after[name] != before[name] for name in ("bus", "master", "worker", "gateway"))
    said = updated.shoal("status")
    assert "processes run other code" not in said.stdout and updated.url in said.stdout
    eventually(updated.ready, 60, "the model is loaded again")
    assert updated.chat("Hi.", max_tokens=4).status_code == 200
