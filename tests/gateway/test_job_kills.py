"""Jobs whose processes are killed: what was acknowledged ends once, and tells of its runs."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import httpx
import psutil
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.job_kills import Kills, http_processes, persistent
from tests.harness.variants import mostly_proof

OPTIONS: dict[str, Any] = {"processes": 2, "jobs_running": 8, "jobs_per_client": 10_000}


def killed(times: int, seed: int) -> None:
    with gateway_testbed(**OPTIONS) as testbed:
        testbed.runner()
        kills = Kills(testbed, OPTIONS, seed)
        pause = threading.Event()
        for _ in range(times):
            for _ in range(kills.chance.randint(1, 4)):
                kills.submit()
            pause.wait(kills.chance.random() * 0.6)
            kills.kill()
        kills.submit()
        found = kills.check()
        assert found["done"] > times / 2, found


@pytest.mark.timeout(400)
def test_jobs_end_once_though_their_processes_are_killed() -> None:
    killed(5, seed=23)


@pytest.mark.proof
def test_jobs_end_once_though_their_processes_are_killed_two_hundred_times() -> None:
    killed(200, seed=7)


def submit(testbed: GatewayTestbed, orders: str, **more: Any) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": orders}], **more}
    asked = {"path": "/v1/chat/completions", "body": body}
    answer = httpx.post(f"{testbed.url}/v1/jobs", json=asked, timeout=10)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def job_of(testbed: GatewayTestbed, name: str) -> dict[str, Any]:
    return persistent(testbed, "GET", f"/v1/jobs/{name}").json()


def running(testbed: GatewayTestbed, name: str, attempt: int = 1) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        job = job_of(testbed, name)
        return job if job["progress"]["tokens"] > 2 and job["attempts"] == attempt else None

    return eventually(found, 40, f"{name} runs")


def test_a_job_is_begun_anew_and_after_three_cuts_it_has_failed() -> None:
    with gateway_testbed() as testbed:
        testbed.runner()
        name = submit(testbed, "tokens=100000 every_ms=20", stream=True)
        for attempt in (1, 2, 3):
            running(testbed, name, attempt)
            [process] = http_processes(testbed)
            os.kill(process, signal.SIGKILL)
        failed = eventually(
            lambda: (job := job_of(testbed, name))["status"] == "failed" and job, 30, "it failed"
        )
        assert (failed["error"]["code"], failed["attempts"]) == ("interrupted", 3)
        events = persistent(testbed, "GET", f"/v1/jobs/{name}/events").text
        assert events.count("event: job.restarted") == 2
        assert events.rstrip().split("\n\n")[-1].startswith("event: job.failed")
        numbers = [int(one[4:]) for one in events.splitlines() if one.startswith("id: ")]
        assert numbers == list(range(len(numbers)))


def test_a_response_that_a_reader_has_begun_is_not_made_anew_but_told_as_failed() -> None:
    with gateway_testbed() as testbed:
        testbed.runner()
        body = {"model": MODEL, "input": "tokens=100000 every_ms=20", "background": True}
        unread, read = (
            httpx.post(f"{testbed.url}/v1/responses", json=body, timeout=10).json()["id"]
            for _ in range(2)
        )
        path = f"/v1/responses/{read}?stream=true"
        with httpx.stream("GET", f"{testbed.url}{path}", timeout=30) as stream:
            told = 0
            for line in stream.iter_lines():
                told += line.startswith("data: ")
                if told > 6:
                    break
        [process] = http_processes(testbed)
        os.kill(process, signal.SIGKILL)
        failed = eventually(
            lambda: (
                (one := persistent(testbed, "GET", f"/v1/responses/{read}").json())["status"]
                == "failed"
                and one
            ),
            30,
            "it failed",
        )
        assert "not retried" in failed["error"]["message"]
        rest = persistent(testbed, "GET", f"{path}&starting_after={told - 1}").text
        assert rest.count("event: response.failed") == 1
        assert running(testbed, f"job_{unread.removeprefix('resp_')}", 2)["status"] == "running"


def test_jobs_go_back_to_the_queue_when_the_gateway_is_told_to_end() -> None:
    with gateway_testbed() as testbed:
        testbed.runner()
        name = submit(testbed, "tokens=40 every_ms=50")
        running(testbed, name)
        testbed.gateway.send_signal(signal.SIGTERM)
        testbed.gateway.wait(20)
        testbed.log.close()
        testbed.gateway = testbed.start_gateway()
        done = eventually(
            lambda: (job := job_of(testbed, name))["status"] == "done" and job, 40, "it is done"
        )
        assert done["attempts"] == 2
        assert len(done["result"]["choices"][0]["message"]["content"].split()) == 40
        warned = [one for one in testbed.log_lines() if "taking over" in one["message"]]
        assert not warned


@pytest.mark.parametrize("how", mostly_proof([signal.SIGQUIT, signal.SIGKILL], [signal.SIGKILL]))
def test_a_response_in_the_background_goes_back_to_the_queue_however_the_gateway_ends(
    how: signal.Signals,
) -> None:
    with gateway_testbed() as testbed:
        testbed.runner()
        body = {"model": MODEL, "input": "tokens=40 every_ms=50", "background": True}
        name = httpx.post(f"{testbed.url}/v1/responses", json=body, timeout=30).json()["id"]
        path = f"/v1/responses/{name}"
        eventually(
            lambda: persistent(testbed, "GET", path).json()["status"] == "in_progress",
            20,
            "it runs",
        )
        processes = [psutil.Process(pid) for pid in http_processes(testbed)]
        testbed.gateway.send_signal(how)
        testbed.gateway.wait(20)
        _, left = psutil.wait_procs(processes, 20)
        assert not left
        testbed.log.close()
        testbed.gateway = testbed.start_gateway()
        done = eventually(
            lambda: (
                (told := persistent(testbed, "GET", path).json())["status"] == "completed" and told
            ),
            40,
            "it is made",
        )
        assert len(done["output"][0]["content"][0]["text"].split()) == 40
