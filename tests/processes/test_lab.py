"""`shoal lab` as somebody who tries it out runs it: two nodes (`make prove`: three), one model, one
command."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conf.ports import SPAN
from tests.harness.clusters import free_base_ports
from tests.harness.nodes import MODEL, shoal
from tests.processes.conftest import PROVING
from worker.models.local_models import parts_held

FORMED_S, NODES = 3.0, 3 if PROVING else 2


@pytest.fixture
def home() -> Iterator[Path]:
    """A home whose lab is ended, whatever became of the test. Not `tmp_path`: sockets have short
    names."""
    made = Path(tempfile.mkdtemp(prefix="shoal-lab-", dir="/tmp"))
    try:
        yield made
    finally:
        shoal("lab", "down", "--home", str(made))
        shutil.rmtree(made, ignore_errors=True)


def run_in_a_row() -> int:
    """The first of three base ports that follow each other and are free."""
    found = free_base_ports(NODES * 4)
    return next(b for b in found if {b + SPAN * n for n in range(NODES)} <= set(found))


def processes_of(home: Path) -> list[str]:
    """What runs for any node of this lab."""
    found: list[str] = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environ = process.info["environ"] or {}
        if environ.get("SHOAL_HOME", "").startswith(str(home)):
            found.append(" ".join(process.info["cmdline"] or ()))
    return found


def test_a_lab_serves_the_bundled_model_over_its_nodes_and_ends_whole(home: Path) -> None:
    base = run_in_a_row()
    words = ("lab", "--home", str(home))
    done = shoal(*words, str(NODES), "--base-port", str(base), "--json", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    print(f"formed in {told['formed_s']} s, held after {told['loaded_s']} s, "
          f"first token after {told['first_token_s']} s")  # fmt: skip
    assert told["formed_s"] <= 3 * FORMED_S
    assert (told["ranks"], told["sharding"]) == (NODES, "pipeline")
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9, 10" in told["answer"] and told["first_token_s"] is not None
    assert [one["url"] for one in told["nodes"]] == [
        f"http://127.0.0.1:{base + SPAN * n}" for n in range(NODES)
    ]
    for one in told["nodes"][1:]:
        (part,) = parts_held(Path(one["home"]) / "data" / "models")
        assert part.model == MODEL

    again = shoal(*words, "2")
    assert again.returncode == 1 and "a lab is already running" in again.stderr
    assert "shoal lab down" in again.stderr

    ended = shoal(*words, "down")
    assert (
        ended.returncode == 0 and ", ".join(f"node-{n + 1}" for n in range(NODES)) in ended.stdout
    )
    assert processes_of(home) == []
    assert "no lab is running" in shoal(*words, "down").stdout


@pytest.mark.proof
def test_a_lab_whose_ports_are_taken_says_which_and_leaves_nothing(home: Path) -> None:
    base = run_in_a_row()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + SPAN))
        taken.listen()
        refused = shoal("lab", "2", "--home", str(home), "--base-port", str(base), timeout=240)
    assert refused.returncode == 1
    assert f"lab-2: error: port {base + SPAN} is taken" in refused.stderr
    assert "--base-port" in refused.stderr and "--http-port" not in refused.stderr
    assert processes_of(home) == []
