"""Tasks over HTTP: who answers and why, with a synthetic runner and providers of both kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.providers import TEXT, Provider
from tests.harness.tasked_gateway import (
    COLD,
    KEY,
    TaskedGateway,
    chat,
    frames_of,
    message,
    tasked_gateway,
    who,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskedGateway]:
    with tasked_gateway(tmp_path_factory.mktemp("config"), processes=2) as found:
        yield found


@pytest.fixture
def made(site: TaskedGateway) -> GatewayTestbed:
    return site.made


@pytest.fixture
def openai(site: TaskedGateway) -> Provider:
    site.openai.heard.clear()
    return site.openai


@pytest.mark.parametrize("stream", [False, True])
def test_a_loaded_primary_answers(made: GatewayTestbed, openai: Provider, stream: bool) -> None:
    answer = chat(made, "chat", stream=stream)
    assert who(answer) == ("chat", MODEL, "primary")
    first = json.loads(frames_of(answer)[0][6:]) if stream else answer.json()
    assert first["model"] == MODEL and not openai.heard


@pytest.mark.parametrize("name", ["Chat", "chat:latest"])
def test_a_task_is_found_by_every_api(made: GatewayTestbed, name: str) -> None:
    answer = httpx.post(f"{made.url}/api/chat", json={"model": name, "messages": [
        {"role": "user", "content": "tokens=3"}]}, timeout=30)  # fmt: skip
    assert who(answer) == ("chat", MODEL, "primary")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1]["done"] and lines[0]["model"] == MODEL
    assert who(message(made, name)) == ("chat", MODEL, "primary")
    asked = {"model": name, "prompt": "tokens=3"}
    answer = httpx.post(f"{made.url}/v1/completions", json=asked, timeout=30)
    assert who(answer)[1] == MODEL and answer.status_code == 200
    asked = {"model": name, "input": "tokens=3"}
    answer = httpx.post(f"{made.url}/v1/responses", json=asked, timeout=30)
    assert who(answer)[1] == MODEL and answer.json()["model"] == MODEL


def test_a_loaded_model_answers_before_a_primary_that_is_not(made: GatewayTestbed) -> None:
    assert who(chat(made, "warm")) == ("warm", MODEL, f"{MODEL} is loaded, and {COLD} is not")


def test_a_pinned_primary_is_waited_for_within_the_budget(made: GatewayTestbed) -> None:
    answer = chat(made, "pinned")
    assert who(answer) == ("pinned", MODEL, f"{COLD} did not answer (deadline_exceeded)")


@pytest.mark.parametrize("stream", [False, True])
def test_a_load_beyond_the_budget_lets_the_next_answer(
    made: GatewayTestbed, openai: Provider, stream: bool
) -> None:
    answer = chat(made, "patient", stream=stream)
    assert who(answer) == ("patient", "cloud:says", f"{COLD} did not answer (deadline_exceeded)")
    assert openai.heard[0].body["model"] == "says"
    text = "".join(TEXT)
    assert stream or answer.json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("orders", "code"),
    [
        ("refuse=queue_full", "queue_full"),
        ("refuse=context_length", "context_length_exceeded"),
        ("tokens=0 fail=runner_lost", "runner_lost"),
    ],
)
def test_a_model_that_fails_before_its_first_token_lets_the_next_answer(
    made: GatewayTestbed, orders: str, code: str, stream: bool
) -> None:
    answer = chat(made, "chat", orders, stream=stream)
    assert who(answer) == ("chat", "cloud:says", f"{MODEL} did not answer ({code})")


def test_what_failed_after_its_first_token_has_answered(
    made: GatewayTestbed, openai: Provider
) -> None:
    answer = chat(made, "chat", "tokens=3 every_ms=20 fail=runner_lost", stream=True)
    assert who(answer)[1] == MODEL and "runner_lost" in answer.text and not openai.heard


def test_what_a_client_allows_is_for_all_candidates_together(made: GatewayTestbed) -> None:
    answer = chat(made, "silence", x_timeout_s=0.4)
    assert answer.status_code == 504
    message = answer.json()["error"]["message"]
    assert "cloud:silent: " in message and "shoal-tiny: " not in message, message


@pytest.mark.parametrize("task", ["weak", "slow"])
def test_a_provider_that_does_not_answer_lets_the_next_answer(
    made: GatewayTestbed, task: str
) -> None:
    answer = chat(made, task)
    assert answer.status_code == 200 and who(answer)[:2] == (task, MODEL)
    assert who(answer)[2] == {
        "weak": "cloud:dies-at-once did not answer (provider_broke_off)",
        "slow": "cloud:silent did not answer (deadline_exceeded)",
    }[task]  # fmt: skip


def test_a_candidate_of_another_dialect_answers_in_the_client_s(made: GatewayTestbed) -> None:
    answer = message(made, "messages")
    assert who(answer)[:2] == ("messages", "cloud:says")
    assert answer.json()["content"] == [{"type": "text", "text": "".join(TEXT)}]
    assert who(chat(made, "messages"))[1] == "cloud:says"


def test_where_no_candidate_answers_all_are_named(made: GatewayTestbed) -> None:
    answer = chat(made, "lost")
    assert answer.status_code == 502
    error = answer.json()["error"]
    assert error["code"] == "provider_unauthorized"
    for words in ("task 'lost'", "no-such: ", "down:m: ", "keyless:m: ", "SHOAL_TEST_NO_SUCH_KEY"):
        assert words in error["message"]
    assert who(answer) == ("lost", None, None)


def test_a_fault_of_the_request_is_not_tried_elsewhere(
    made: GatewayTestbed, openai: Provider
) -> None:
    answer = chat(made, "chat", temperature="hot")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "temperature"
    assert chat(made, "far", x_priority="whenever").status_code == 400
    assert not openai.heard


def test_a_job_is_answered_by_a_task_too(made: GatewayTestbed) -> None:
    for name, by in (("chat", MODEL), ("far", "says")):
        asked = {"model": name, "messages": [{"role": "user", "content": "tokens=2"}]}
        new = {"path": "/v1/chat/completions", "body": asked}
        job = httpx.post(f"{made.url}/v1/jobs", json=new)
        assert job.status_code == 202, job.text

        def ended(job: httpx.Response = job) -> dict[str, Any] | None:
            told = httpx.get(f"{made.url}/v1/jobs/{job.json()['id']}").json()
            return told if told["status"] in ("done", "failed") else None

        told = eventually(ended, 15, "the job ends")
        assert told["status"] == "done" and by in json.dumps(told["result"])


def test_an_answer_in_the_background_is_made_by_a_task(made: GatewayTestbed) -> None:
    asked = {"model": "chat", "input": "tokens=2", "background": True}
    begun = httpx.post(f"{made.url}/v1/responses", json=asked).json()
    assert begun["status"] in ("queued", "in_progress"), begun

    def done() -> dict[str, Any] | None:
        told = httpx.get(f"{made.url}/v1/responses/{begun['id']}").json()
        return told if told["status"] == "completed" else None

    assert eventually(done, 15, "the answer is made")["model"] == MODEL


# --- the guard, the file, and what is listed --------------------------------------------------


def in_force(made: GatewayTestbed, allowed: bool) -> bool:
    """Whether either process says so; each hears of it in its own time."""
    found = [httpx.get(f"{made.url}/api/v1/config").json() for _ in range(12)]
    return all(one == {"allowCloudFallback": allowed} for one in found)


def test_the_guard_leaves_providers_out_but_for_a_primary(
    made: GatewayTestbed, openai: Provider
) -> None:
    config = f"{made.url}/api/v1/config"
    assert in_force(made, True)
    try:
        answer = httpx.put(config, json={"allowCloudFallback": False})
        assert answer.json() == {"allowCloudFallback": False}
        eventually(lambda: in_force(made, False), 10, "both processes know")
        left = chat(made, "patient")
        assert left.status_code == 504 and not openai.heard
        assert "cloud:says: skipped (allowCloudFallback is false)" in left.text
        assert who(chat(made, "far")) == ("far", "cloud:says", "primary")
        assert chat(made, "cloud:says").status_code == 200
    finally:
        httpx.put(config, json={"allowCloudFallback": True})
    eventually(lambda: in_force(made, True), 10, "both processes know")
    wrong = httpx.put(config, json={"allowCloudFallbak": False})
    assert wrong.status_code == 400 and "did you mean 'allowCloudFallback'" in wrong.text


def listed(made: GatewayTestbed, path: str, **headers: str) -> set[str]:
    told = httpx.get(f"{made.url}{path}", headers=headers).json()
    rows = told.get("data") or told.get("models")
    return {one.get("id") or one.get("name") for one in rows}


def test_tasks_and_providers_models_are_listed_in_every_api(made: GatewayTestbed) -> None:
    openai = listed(made, "/v1/models")
    assert {"chat", "far", MODEL, "cloud:says", "cloud:silent", "claude:says"} <= openai
    anthropic = listed(made, "/v1/models?limit=100", **{"anthropic-version": "2023-06-01"})
    assert {"chat", "claude:says", "cloud:says"} <= anthropic
    ollama = listed(made, "/api/tags")
    assert {"chat", MODEL, "cloud:says", "claude:says"} <= ollama
    told = httpx.get(f"{made.url}/v1/models/chat").json()
    assert (told["id"], told["loaded"]) == ("chat", True)
    assert httpx.get(f"{made.url}/v1/models/cloud:says").json()["id"] == "cloud:says"
    assert httpx.post(f"{made.url}/api/show", json={"model": "chat"}).status_code == 200


def test_the_list_of_tasks_says_which_candidate_is_loaded(made: GatewayTestbed) -> None:
    told = httpx.get(f"{made.url}/tasks").json()
    warm = next(one for one in told["tasks"] if one["name"] == "warm")
    known = [(one["name"], one["provider"], one["loaded"]) for one in warm["candidates"]]
    assert known == [(COLD, None, False), ("cloud:says", "cloud", False), (MODEL, None, True)]
    keys = {one["name"]: one["has_key"] for one in told["providers"]}
    assert keys == {"cloud": True, "claude": True, "keyless": False, "down": True}
    assert told["allowCloudFallback"] is True and told["trouble"] == "" and KEY not in str(told)


def test_the_file_is_taken_while_the_gateway_runs_and_a_broken_one_is_not(
    made: GatewayTestbed, site: TaskedGateway
) -> None:
    file, text = site.file, site.text

    def told() -> list[dict[str, Any]]:
        return [httpx.get(f"{made.url}/tasks").json() for _ in range(12)]

    try:
        file.write_text(f'{text}\n[tasks.added]\ncandidates = ["shoal-tiny"]\n')
        eventually(
            lambda: all("added" in {t["name"] for t in one["tasks"]} for one in told()),
            15,
            "both processes have taken it",
        )
        assert who(chat(made, "added"))[0] == "added"
        file.write_text(f'{text}\n[tasks.added]\ncandidate = ["shoal-tiny"]\n')
        trouble = eventually(lambda: told()[0]["trouble"], 15, "what is wrong is told")
        assert "unknown key tasks.added.candidate; did you mean candidates?" in trouble
        eventually(lambda: all(one["trouble"] for one in told()), 15, "by both")
        assert who(chat(made, "added")) == ("added", MODEL, "primary"), "the last good one counts"
        lines = [one["message"] for one in made.log_lines() if one["level"] == "warning"]
        assert sum("tasks.added.candidate" in line for line in lines) == 1, "told once, by one"
    finally:
        file.write_text(text)
    eventually(lambda: not any(one["trouble"] for one in told()), 15, "it is mended")
    eventually(
        lambda: not any("added" in str(one["tasks"]) for one in told()), 15, "the task is gone"
    )
    assert chat(made, "added").status_code == 404


def test_a_file_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    with gateway_testbed(tasks_file=str(tmp_path / "none.toml")) as found:
        told = httpx.get(f"{found.url}/tasks").json()
        assert (told["tasks"], told["providers"], told["trouble"]) == ([], [], "")
        assert chat(found, "cloud:says").status_code == 404
