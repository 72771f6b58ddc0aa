"""Clients over HTTP, with one HTTP process and with two: what each has asked for, what its profile
gives and forbids, and what is left of it after a restart."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.wire.messages.commands import KeepAlive
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import Reader, ready

FILE = """
[clients.calm]
cooldown_s = 3600

[clients.few]
max_waiting = 1

[clients.night]
priority = "low"
keep_alive_s = 40
keep_alive_most_s = 60
model = "shoal-tiny"
"""
MOST_S = 100.0


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.proof), 2],
    ids=["one process", "two processes"],
)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayTestbed]:
    file = tmp_path_factory.mktemp("config") / "clients.toml"
    file.write_text(FILE)
    most = {"text": MOST_S, "embedding": -1.0}
    options = {"clients_file": str(file), "keep_alive_most_s": most}
    with gateway_testbed(processes=request.param, **options) as found:
        found.runner()
        eventually(lambda: ready(found), 10, "the instance is ready")
        yield found


def chat(made: GatewayTestbed, client: str | None, orders: str = "tokens=3", **more: Any) -> Any:
    """The answer over a connection of its own, which any of the processes may take."""
    turns = [{"role": "user", "content": orders}]
    asked: dict[str, Any] = {"model": MODEL, "messages": turns, **more}
    if client is not None:
        asked["x_client_id"] = client
    asked = {name: value for name, value in asked.items() if value is not None}
    return httpx.post(f"{made.url}/v1/chat/completions", json=asked, timeout=30)


def clients(made: GatewayTestbed) -> dict[str, dict[str, Any]]:
    answer = httpx.get(f"{made.url}/clients", timeout=30)
    assert answer.status_code == 200, answer.text
    return {one["client"]: one for one in answer.json()["clients"]}


def counts(row: dict[str, Any] | None) -> tuple[int, ...]:
    names = ("requests", "refused", "failed", "prompt_tokens", "completion_tokens")
    return () if row is None else tuple(row[name] for name in names)


def counted(made: GatewayTestbed, client: str, wanted: tuple[int, ...]) -> dict[str, Any]:
    """The client's row, once it has these counts."""

    def row() -> dict[str, Any] | None:
        found = clients(made).get(client)
        return found if counts(found) == wanted else None

    return eventually(row, 10, f"{client} has {wanted}")


def test_what_a_client_asked_for_is_summed_over_the_processes(made: GatewayTestbed) -> None:
    for _ in range(6):
        assert chat(made, "ann", "tokens=4").status_code == 200
    assert chat(made, "ann", "tokens=2 fail=runner_lost").status_code == 503
    assert chat(made, "ann", model="no-such").status_code == 404
    row = counted(made, "ann", (7, 1, 1, 49, 26))
    assert (row["known_by"], row["mean_prompt_tokens"]) == ("client_id", 7.0)
    assert row["mean_completion_tokens"] == round(26 / 7, 1)
    assert 0 < row["first_seen_at_s"] <= row["last_seen_at_s"]
    assert (row["waiting"], row["rests_s"], row["profile"]) == (0, 0.0, None)


def test_who_says_no_name_counts_by_address(made: GatewayTestbed) -> None:
    before = counts(clients(made).get("127.0.0.1")) or (0, 0, 0, 0, 0)
    assert chat(made, None, "tokens=5").status_code == 200
    assert httpx.post(f"{made.url}/v1/chat/completions", content=b"{").status_code == 400
    added = zip(before, (1, 1, 0, 7, 5), strict=True)
    row = counted(made, "127.0.0.1", tuple(map(sum, added)))
    assert row["known_by"] == "address"


def test_a_client_that_rests_is_refused_with_when_to_come_again(made: GatewayTestbed) -> None:
    assert chat(made, "calm").status_code == 200
    for _ in range(4):
        refused = chat(made, "calm")
        assert refused.status_code == 429, refused.text
        error = refused.json()["error"]
        assert error["code"] == "client_cooldown" and "cooldown_s" in error["message"]
        assert 3500 < int(refused.headers["retry-after"]) <= 3600
    assert chat(made, "ben").status_code == 200, "it is one client's alone"
    row = counted(made, "calm", (1, 4, 0, 7, 3))
    assert 3500 < row["rests_s"] <= 3600 and row["profile"] == {"cooldown_s": 3600.0}


@pytest.mark.parametrize(
    ("path", "body", "error_of"),
    [
        ("/v1/messages", {"max_tokens": 9}, lambda told: told["error"]["message"]),
        ("/api/chat", {"stream": False}, lambda told: told["error"]),
    ],
)
def test_the_refusal_is_in_the_callers_dialect(
    made: GatewayTestbed, path: str, body: dict[str, Any], error_of: Callable[[Any], str]
) -> None:
    name = path.rpartition("/")[2] + "-rests"
    turns = [{"role": "user", "content": "tokens=3"}]
    asked = {"model": MODEL, "messages": turns, "x_client_id": name, "x_cooldown": 500, **body}
    url, headers = made.url + path, {"anthropic-version": "2023-06-01"}
    assert httpx.post(url, json=asked, headers=headers, timeout=30).status_code == 200
    refused = httpx.post(url, json=asked, headers=headers, timeout=30)
    assert refused.status_code == 429 and 400 < int(refused.headers["retry-after"]) <= 500
    assert f"'{name}' is in cooldown for" in error_of(refused.json())


def test_a_question_about_a_prompt_makes_no_client_rest(made: GatewayTestbed) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    asked |= {"x_client_id": "counts", "x_cooldown": 500}
    url, headers = f"{made.url}/v1/messages", {"anthropic-version": "2023-06-01"}

    def ask(path: str = "") -> int:
        return httpx.post(url + path, json=asked, headers=headers, timeout=30).status_code

    # the synthetic runner has no answer to questions, which is another refusal
    found = [ask("/count_tokens"), ask("/count_tokens"), ask(), ask(), ask("/count_tokens")]
    assert [one == 429 for one in found] == [False, False, False, True, False]
    assert found[2] == 200


def test_a_stream_rests_too_and_jobs_are_not_a_way_around_it(made: GatewayTestbed) -> None:
    reader = Reader(made, "tokens=3", x_client_id="streams", x_cooldown=500)
    reader.wait_end(10)
    assert chat(made, "streams").status_code == 429
    body = {"model": MODEL, "messages": [{"role": "user", "content": "tokens=3"}]}
    job = {"path": "/v1/chat/completions", "body": {**body, "x_client_id": "streams"}}
    assert httpx.post(f"{made.url}/v1/jobs", json=job, timeout=30).status_code == 429
    job["body"] = {**body, "x_client_id": "works", "x_cooldown": 500}
    taken = httpx.post(f"{made.url}/v1/jobs", json=job, timeout=30)
    assert taken.status_code == 202, taken.text
    assert chat(made, "works").status_code == 429
    done = eventually(lambda: job_of(made, taken), 20, "the job has run, though its client rests")
    assert done["status"] == "done"


def job_of(made: GatewayTestbed, taken: httpx.Response) -> dict[str, Any] | None:
    job = httpx.get(f"{made.url}/v1/jobs/{taken.json()['id']}", timeout=30).json()
    return job if job["status"] in ("done", "failed") else None


def test_of_a_client_only_so_many_requests_wait(made: GatewayTestbed) -> None:
    # no copy of this model is loaded: what is asked of it waits
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat, made, "few", model="org/other", x_timeout_s=12)
        eventually(lambda: clients(made)["few"]["waiting"] == 1, 10, "it waits")

        def refused_everywhere() -> bool:
            found = [chat(made, "few") for _ in range(16)]
            return all(one.status_code == 429 for one in found)

        eventually(refused_everywhere, 10, "each process has heard of it")
        refused = chat(made, "few")
        assert refused.json()["error"]["code"] == "client_queue_full"
        assert refused.headers["retry-after"] == "1"
        assert first.result(20).status_code == 504
    eventually(lambda: chat(made, "few").status_code == 200, 10, "none waits any more")


def test_a_profile_says_what_a_body_does_not(made: GatewayTestbed) -> None:
    runner = made.runners[0]
    since = len(runner.heard("submit"))
    assert chat(made, "night", model=None).json()["model"] == MODEL
    assert chat(made, "night", x_priority="urgent", x_stay_warm=50).status_code == 200
    assert chat(made, "night", service_tier="priority", model="").status_code == 200
    eventually(lambda: len(runner.heard("submit")) >= since + 3, 5, "all were asked")
    told = runner.heard("submit")[since:]
    assert [one["priority"] for one in told] == [20, 1, 5]
    missing = chat(made, "ann", model=None)
    assert missing.status_code == 400 and missing.json()["error"]["param"] == "model"


def test_a_wish_keeps_a_model_no_longer_than_its_client_may(made: GatewayTestbed) -> None:
    assert chat(made, "ann", x_stay_warm=500).status_code == 200
    # told at once, or after the wish before it: then by what the client's profile says
    eventually(lambda: wished(made), 5, "a wish is told")
    assert set(wished(made)) <= {MOST_S, 40.0, 50.0}


def wished(made: GatewayTestbed) -> list[float]:
    commands = made.do(lambda: list(made.holder.commands))
    return [one.keep_alive_s for one in commands if isinstance(one, KeepAlive)]


def test_profiles_are_taken_while_the_gateway_runs(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    with gateway_testbed(clients_file=str(file)) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        assert chat(made, "calm").status_code == chat(made, "calm").status_code == 200
        file.write_text("[clients.calm]\ncooldown_s = 3600\n[clients.new]\n")
        eventually(lambda: "new" in clients(made), 10, "it is taken")
        assert clients(made)["new"]["known_by"] is None, "it was never seen"
        assert [chat(made, "calm").status_code for _ in range(2)] == [200, 429]
        file.write_text("[clients.calm]\ncooldown = 3\n")

        def trouble() -> str:
            return httpx.get(f"{made.url}/clients").json()["trouble"]

        eventually(trouble, 10, "it is refused")
        assert "line 2" in trouble() and "did you mean cooldown_s?" in trouble()
        assert chat(made, "calm").status_code == 429, "the last valid version stays in force"


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.proof), 2])
def test_counts_survive_a_restart(processes: int) -> None:
    with gateway_testbed(processes=processes) as made:
        made.runner()
        eventually(lambda: ready(made), 10, "the instance is ready")
        for _ in range(5):
            assert chat(made, "ann").status_code == 200
        first = counted(made, "ann", (5, 0, 0, 35, 15))
        made.gateway.send_signal(signal.SIGTERM)
        made.gateway.wait(30)
        made.log.close()
        made.gateway = made.start_gateway(processes=1)
        eventually(lambda: ready(made), 10, "the instance is ready again")
        again = counted(made, "ann", (5, 0, 0, 35, 15))
        assert again["first_seen_at_s"] == first["first_seen_at_s"]
        assert chat(made, "ann").status_code == 200
        counted(made, "ann", (6, 0, 0, 42, 18))
        assert json.dumps(clients(made)).count("tokens=3") == 0, "no word of a prompt is kept"
