"""A task on a real node: the bundled model answers, then a provider where it cannot; the file
changes meanwhile, the guard survives a restart, and the key is nowhere."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from conf.settings import load_settings
from tests.harness.nodes import MODEL, Node, answered, everywhere
from tests.harness.providers import TEXT, Provider, provider
from tests.harness.shared_nodes import PROVIDERS_KEY, unload_all

pytestmark = pytest.mark.nodes
KEY = PROVIDERS_KEY
FILE = """
[providers.cloud]
kind = "openai"
base_url = "{url}/v1"
key_env = "SHOAL_TEST_PLANTED"

[tasks.chat]
candidates = ["shoal-tiny", "cloud:says"]
budget_s = 120

[tasks.far]
candidates = ["no-such-model", "cloud:says"]

[tasks.quick]
candidates = ["shoal-tiny"]
spill_to = "cloud:says"
spill_after_s = 0.02
"""


@pytest.fixture(scope="module")
def cloud() -> Iterator[Provider]:
    with provider() as server:
        yield server


@pytest.fixture(scope="module")
def node(shared_empty: Node, cloud: Provider) -> Iterator[Node]:
    yield shared_empty
    load_settings(home=shared_empty.home).paths.tasks_file.unlink()
    unload_all(shared_empty)


def write(node: Node, text: str) -> Path:
    file = load_settings(home=node.home).paths.tasks_file
    file.write_text(text)
    return file


def ask(node: Node, model: str, **more: Any) -> httpx.Response:
    turns = [{"role": "user", "content": "hello"}]
    asked = {"model": model, "messages": turns, "max_tokens": 5, **more}
    return httpx.post(f"{node.url}/v1/chat/completions", json=asked, timeout=120)


def by(answer: httpx.Response) -> str | None:
    return answer.headers.get("x-shoal-answered-by")


def known(node: Node, task: str) -> None:
    """Wait until each HTTP process has taken a file that has this task."""
    everywhere(
        lambda: httpx.get(f"{node.url}/v1/models").json()["data"],
        lambda found: task in {one["id"] for one in found},
        f"{task} is known",
    )


def test_the_bundled_model_answers_and_a_provider_where_no_model_can(
    node: Node, cloud: Provider
) -> None:
    # the node may have begun anew for the file before
    early = answered(lambda: ask(node, "chat"), lambda one: one.status_code != 503, "it serves")
    assert early.status_code == 404, "no file is there yet"
    write(node, FILE.format(url=cloud.url))
    known(node, "chat")
    near = ask(node, "chat")
    assert (near.status_code, by(near), near.json()["model"]) == (200, MODEL, MODEL), near.text
    far = ask(node, "far")
    assert by(far) == "cloud:says", far.text
    assert far.json()["choices"][0]["message"]["content"] == "".join(TEXT)
    why = far.headers["x-shoal-why"]
    assert why == "no-such-model did not answer (model_not_found)"
    assert cloud.heard[-1].headers["authorization"] == f"Bearer {KEY}"
    told = json.loads(node.shoal("tasks", "--json").stdout)
    chat = next(one for one in told["tasks"] if one["name"] == "chat")
    assert [one["loaded"] for one in chat["candidates"]] == [True, False]


def test_a_request_spills_over_while_its_model_loads(node: Node, cloud: Provider) -> None:
    write(node, FILE.format(url=cloud.url))
    known(node, "quick")
    unload_all(node)
    message = {"model": "quick", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    answer = httpx.post(f"{node.url}/v1/messages", json=message, timeout=120)
    assert by(answer) == "cloud:says" and "".join(TEXT) in answer.text, answer.text
    assert not node.http.get("/queue").json()["requests"]
    assert by(ask(node, "chat")) == MODEL, "the load that the request began goes on"


def test_a_broken_file_is_told_by_the_doctor_and_changes_nothing(
    node: Node, cloud: Provider
) -> None:
    text = FILE.format(url=cloud.url)
    write(node, text)
    known(node, "chat")
    write(node, text.replace("budget_s", "budgets"))
    everywhere(
        lambda: httpx.get(f"{node.url}/tasks").json()["trouble"],
        lambda trouble: "did you mean budget_s?" in trouble,
        "what is wrong is told",
    )
    assert by(ask(node, "chat")) == MODEL
    checks = json.loads(node.shoal("doctor", "--json").stdout)["checks"]
    (found,) = (one for one in checks if one["name"] == "tasks")
    assert found["level"] == "error" and "line 9" in found["found"]
    write(node, text)
    everywhere(
        lambda: httpx.get(f"{node.url}/tasks").json()["trouble"], lambda one: one == "", "mended"
    )


def test_the_key_is_in_no_log_and_in_no_capture(node: Node, cloud: Provider) -> None:
    write(node, FILE.format(url=cloud.url))
    known(node, "far")
    assert ask(node, "cloud:unknown-key").status_code == 502
    answered(lambda: ask(node, "far"), lambda one: one.status_code == 200, "it is asked")
    assert KEY not in node.logs()
    answer = node.http.post("/v1/diagnostics/capture", json={}, timeout=180)
    assert answer.status_code == 200, answer.text
    with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as tar:
        files = [file.read() for one in tar if (file := tar.extractfile(one)) is not None]
    assert len(files) > 5 and not any(KEY.encode() in one for one in files)


@pytest.mark.proof
def test_the_guard_survives_a_restart(node: Node, cloud: Provider) -> None:
    write(node, FILE.format(url=cloud.url))
    known(node, "far")

    def guard() -> bool:
        return httpx.get(f"{node.url}/api/v1/config").json()["allowCloudFallback"]

    said = node.shoal("tasks", "--no-cloud-fallback")
    assert said.returncode == 0 and "may not answer" in said.stdout, said.stderr
    everywhere(guard, lambda allowed: allowed is False, "each process knows")
    left_out = ask(node, "far")
    assert left_out.status_code == 404 and "allowCloudFallback" in left_out.text
    assert by(ask(node, "cloud:says")) == "cloud:says", "who asks for it by name gets it"
    node.down()
    node.up()
    known(node, "far")
    everywhere(guard, lambda allowed: allowed is False, "it is as it was")
    assert node.shoal("tasks", "--cloud-fallback").returncode == 0
    everywhere(guard, bool, "it is back")
    assert by(ask(node, "far")) == "cloud:says"
