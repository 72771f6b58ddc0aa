"""A gateway whose records cannot be written, or are of another time: it serves on, says so, and
heals by itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import chat, ready
from tests.harness.small_disks import filled, needs_mounts, remounted, small_disk

pytestmark = pytest.mark.slow
AHEAD_S = 86_400.0


def respond(made: GatewayTestbed, **more: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "tokens=3", **more}
    answer = httpx.post(f"{made.url}/v1/responses", json=body, timeout=30)
    assert answer.status_code in (200, 503), answer.text
    return answer


def get(made: GatewayTestbed, path: str) -> Any:
    answer = httpx.get(f"{made.url}{path}", timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def submit(made: GatewayTestbed, orders: str) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": orders}]}
    asked = {"path": "/v1/chat/completions", "body": body}
    return httpx.post(f"{made.url}/v1/jobs", json=asked, timeout=30)


def problems(made: GatewayTestbed) -> str:
    """What is told of the records, where people look; the node stays ready all the same."""
    assert httpx.get(f"{made.url}/readyz", timeout=30).status_code == 200
    health = get(made, "/health")
    said = "; ".join(health["problems"])
    assert health["status"] == ("degraded" if said else "ok")
    return said


def kept(made: GatewayTestbed) -> bool:
    answer = respond(made)
    if "x-shoal-not-kept" in answer.headers:
        return False
    assert get(made, f"/v1/responses/{answer.json()['id']}") == answer.json()
    return True


def restarted(made: GatewayTestbed, meanwhile: Callable[[], object], **options: Any) -> None:
    """End the gateway, do something, and start it again."""
    made.gateway.terminate()
    made.gateway.wait(20)
    made.log.close()
    meanwhile()
    made.gateway = made.start_gateway(**options)
    eventually(lambda: ready(made), 10, "the instance is ready again")


def takes_nothing(made: GatewayTestbed) -> None:
    """Answers are given and not kept, jobs refused, and it is said, once."""
    eventually(lambda: not kept(made), 20, "no answer can be kept")
    eventually(lambda: problems(made), 20, "it is said")
    assert chat(made, "tokens=3").status_code == 200
    refused = submit(made, "tokens=1")
    assert refused.status_code == 503, refused.text
    assert refused.json()["error"]["code"] == "records_unavailable"
    assert respond(made, background=True).status_code == 503
    lines = [one for one in made.log_lines() if "cannot write records" in one["message"]]
    assert [one["level"] for one in lines] == ["critical"]


def heals(made: GatewayTestbed, disk: Path, before: dict[str, Any]) -> None:
    """It is written again, and what was kept is there."""
    eventually(lambda: not problems(made), 30, "it is healed, and that is said")
    eventually(lambda: kept(made), 20, "answers are kept")
    assert get(made, f"/v1/responses/{before['id']}") == before
    assert submit(made, "tokens=1").status_code == 202
    assert not [*disk.glob("records.sqlite.*-*")], "nothing was set aside"


@needs_mounts
def test_a_full_disk_costs_what_would_be_kept_and_heals(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path, "2m") as disk,
        gateway_testbed(records_file=str(disk / "records.sqlite")) as made,
    ):
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        before = respond(made).json()
        job = submit(made, "tokens=60 every_ms=50").json()["id"]
        eventually(lambda: get(made, f"/v1/jobs/{job}")["progress"]["tokens"], 10, "it runs")
        ballast = filled(disk)
        takes_nothing(made)
        assert get(made, f"/v1/responses/{before['id']}") == before, "what was kept is read"
        ballast.unlink()
        heals(made, disk, before)
        done = eventually(
            lambda: (told := get(made, f"/v1/jobs/{job}"))["status"] == "done" and told, 40, "done"
        )
        assert done["progress"]["tokens"] == 60


@needs_mounts
def test_a_read_only_disk_costs_what_would_be_kept_and_heals(tmp_path: Path) -> None:
    with small_disk(tmp_path, "2m") as disk:
        file = str(disk / "records.sqlite")
        with gateway_testbed(records_file=file) as made:
            made.runner()
            eventually(lambda: ready(made), 10, "the instance is ready")
            before = respond(made).json()
            restarted(made, lambda: remounted(disk, "ro"), records_file=file)
            takes_nothing(made)
            remounted(disk, "rw")
            heals(made, disk, before)


def moved_ahead(path: Path) -> None:
    """Move what is kept a day ahead, which is what a clock that is set back finds."""
    connection = sqlite3.connect(path)
    for table, column in (
        ("request", "ended_at_s"),
        ("answer", "kept_at_s"),
        ("job", "created_at_s"),
        ("job", "ready_at_s"),
    ):
        connection.execute(f"UPDATE {table} SET {column} = {column} + {AHEAD_S}")
    connection.commit()
    connection.close()


def test_a_clock_that_was_set_back_is_said_and_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    with gateway_testbed(records_file=str(path), jobs_running=0) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        before = respond(made).json()
        job = submit(made, "tokens=2").json()["id"]
        chat(made, "tokens=1")
        get(made, "/requests/recent")
        restarted(made, lambda: moved_ahead(path), records_file=str(path))
        said = eventually(lambda: problems(made), 20, "it is said")
        assert "the clock was set back" in said
        assert get(made, f"/v1/responses/{before['id']}") == before
        done = eventually(
            lambda: (told := get(made, f"/v1/jobs/{job}"))["status"] == "done" and told, 40, "done"
        )
        assert done["started_at"] <= time.time() + 1
        assert kept(made)
        after = respond(made, previous_response_id=before["id"])
        assert after.status_code == 200
        assert get(made, "/requests/recent")["requests"][0]["request"] in after.json()["id"]
