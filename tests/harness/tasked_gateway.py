"""A gateway with a `tasks.toml`, a synthetic runner, and providers of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.gateway_testbed import GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import ready
from tests.harness.ports import free_port
from tests.harness.providers import Provider, provider

KEY = "sk-of-the-provider-5b1e"
OTHER_KEY = "sk-of-the-client-90aa"
COLD = "org/other"
"""A model that is on a disk, and that nothing loads."""
FILE = """
[providers.cloud]
kind = "openai"
base_url = "{openai}/v1"
key_env = "SHOAL_TEST_CLOUD_KEY"
models = ["says"]

[providers.claude]
kind = "anthropic"
base_url = "{anthropic}"
key_env = "SHOAL_TEST_CLOUD_KEY"
models = ["says"]

[providers.keyless]
kind = "openai"
base_url = "{openai}/v1"
key_env = "SHOAL_TEST_NO_SUCH_KEY"

[providers.down]
kind = "openai"
base_url = "http://127.0.0.1:{free}/v1"

[tasks.chat]
candidates = ["shoal-tiny", "cloud:says"]

[tasks.warm]
candidates = ["org/other", "cloud:says", "shoal-tiny"]

[tasks.pinned]
candidates = ["org/other", "shoal-tiny"]
budget_s = 0.3
pin_primary = true

[tasks.patient]
candidates = ["org/other", "cloud:says"]
budget_s = 1.0

[tasks.far]
candidates = ["cloud:says", "shoal-tiny"]

[tasks.lost]
candidates = ["no-such", "down:m", "keyless:m"]

[tasks.slow]
candidates = ["cloud:silent", "shoal-tiny"]
budget_s = 0.3

[tasks.silence]
candidates = ["cloud:silent", "shoal-tiny"]

[tasks.weak]
candidates = ["cloud:dies-at-once", "shoal-tiny"]

[tasks.messages]
candidates = ["no-such", "cloud:says", "claude:says"]
"""


@dataclass(frozen=True)
class TaskedGateway:
    """The gateway, its providers, and its file with the text that it has at first."""

    made: GatewayTestbed
    openai: Provider
    anthropic: Provider
    file: Path
    text: str


@contextmanager
def tasked_gateway(folder: Path, *, more: str = "", **options: Any) -> Iterator[TaskedGateway]:
    """Start it all, with `more` at the end of the file and the key in the gateway's environment;
    all of it is gone afterwards."""
    file = folder / "tasks.toml"
    with provider() as openai, provider() as anthropic, pytest.MonkeyPatch.context() as patch:
        text = FILE.format(openai=openai.url, anthropic=anthropic.url, free=free_port()) + more
        file.write_text(text)
        patch.setenv("SHOAL_TEST_CLOUD_KEY", KEY)
        with gateway_testbed(tasks_file=str(file), **options) as made:
            made.runner()
            eventually(lambda: ready(made), 10, "the instance is ready")
            yield TaskedGateway(made, openai, anthropic, file, text)


def chat(made: GatewayTestbed, model: str, orders: str = "tokens=3", **more: Any) -> httpx.Response:
    asked = {"model": model, "messages": [{"role": "user", "content": orders}], **more}
    headers = {"Authorization": f"Bearer {OTHER_KEY}"}
    url = f"{made.url}/v1/chat/completions"
    return httpx.post(url, json=asked, headers=headers, timeout=30)


def message(made: GatewayTestbed, model: str, **more: Any) -> httpx.Response:
    turns = [{"role": "user", "content": "tokens=3"}]
    asked = {"model": model, "max_tokens": 50, "messages": turns, **more}
    headers = {"x-api-key": OTHER_KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "b1"}
    return httpx.post(f"{made.url}/v1/messages", json=asked, headers=headers, timeout=30)


def who(answer: httpx.Response) -> tuple[str | None, str | None, str | None]:
    """(task, who answered, why) by an answer's headers."""
    names = ("x-shoal-task", "x-shoal-answered-by", "x-shoal-why")
    task, by, why = (answer.headers.get(name) for name in names)
    return task, by, why


def frames_of(answer: httpx.Response) -> list[bytes]:
    return [frame + b"\n\n" for frame in answer.content.split(b"\n\n") if frame]
