"""A model folder's chat template is a stranger's code and hurts nobody."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.harness.nodes import TREE, WITH_SPARE, Node, eventually, everywhere

TINY = TREE / "conf" / "tiny"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
HUGE = "{{ 'a' * 900000000 }}"
HUGE_BYTES = 600 << 20
"""Less than that template takes where nothing stops it."""
WITHIN_S = 5.0
"""What is promised; elsewhere than in `make prove` three times as long is waited."""
PROVING = bool(os.environ.get("SHOAL_PROVE"))
MOST_S = WITHIN_S if PROVING else 3 * WITHIN_S


def _model(models: Path, name: str, template: str, *, for_tools: bool = False) -> None:
    folder = models / name
    folder.mkdir(parents=True)
    for file in (*FILES, "tokenizer_config.json"):
        shutil.copy(TINY / file, folder / file)
    if for_tools:
        path = folder / "tokenizer_config.json"
        named = [
            {"name": "default", "template": (TINY / "chat_template.jinja").read_text()},
            {"name": "tool_use", "template": template},
        ]
        settings = {"chat_template": named, "tool_parser_type": "json_tools"}
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    else:
        (folder / "chat_template.jinja").write_text(template)


def _when_asked(template: str) -> str:
    honest = (TINY / "chat_template.jinja").read_text()
    return "{% if messages[-1].content == 'Now.' %}" + template + "{% endif %}" + honest


@pytest.fixture(scope="module")
def hostile() -> Iterator[Node]:
    """Start a node with model folders beside its own model that cannot be loaded, and a spare
    runner as users have it."""
    node = Node(**WITH_SPARE)
    models = node.home / "data" / "models"
    _model(models, "endless", ENDLESS)
    _model(models, "huge", HUGE)
    try:
        node.up()
        eventually(node.ready, 60, "ready")
        yield node
    finally:
        node.close()


@pytest.fixture(scope="module")
def later(node: Node) -> Iterator[Node]:
    """The shared node, with models that are hostile only to one of their requests."""
    models, names = node.home / "data" / "models", ("endless-later", "huge-later", "endless-tools")
    _model(models, names[0], _when_asked(ENDLESS))
    _model(models, names[1], _when_asked(HUGE))
    _model(models, names[2], ENDLESS, for_tools=True)
    everywhere(
        lambda: httpx.get(f"{node.url}/v1/models", timeout=30).json()["data"],
        lambda found: set(names) <= {one["id"] for one in found},
        "each HTTP process lists them",
    )
    yield node
    for name in names:
        node.shoal("stop", name)
        shutil.rmtree(models / name)


def _ask(node: Node, model: str, text: str, seconds: float, **fields: object) -> httpx.Response:
    body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": text}]}
    began = time.monotonic()
    try:
        url = node.url + "/v1/chat/completions"
        answer = httpx.post(url, json=body | fields, timeout=seconds)
    except httpx.TimeoutException:
        raise AssertionError(f"{model}: no answer within {seconds:g} s") from None
    print(f"{model}: {answer.status_code} after {time.monotonic() - began:.2f} s: {answer.text}")
    return answer


def _has_spare(node: Node) -> bool:
    """Return whether a runner without a model waits, with its libraries imported."""
    loaded = {rank["pid"] for one in node.state()["instances"].values() for rank in one["ready"]}
    runners = {pid for name, pid in node.processes().items() if name.startswith("runner:")}
    return any(psutil.Process(pid).cpu_percent(0.5) < 20.0 for pid in runners - loaded)


def _resident(node: Node) -> int:
    found = 0
    for process in psutil.Process(node.pid("bus")).parent().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += process.memory_info().rss
    return found


class Peak:
    """The most memory that a node's processes had together while the block lasted."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before = self.most = _resident(node)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        print(f"memory of the node: {self.before >> 20} MiB, then {self.most >> 20} MiB")

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, _resident(self._node))


@pytest.mark.proof
@pytest.mark.parametrize("model", ["endless", "huge"])
def test_a_template_that_takes_too_much_fails_the_load_with_the_reason(
    hostile: Node, model: str
) -> None:
    stream = hostile.stream("Tell me a long story.", max_tokens=400, ignore_eos=True).flowing()
    eventually(lambda: _has_spare(hostile), 60, "a spare runner")
    with Peak(hostile) as peak:
        answer = _ask(hostile, model, "Hello", MOST_S)
    assert answer.status_code >= 400, answer.text
    assert "chat template" in answer.text, answer.text
    assert peak.most - peak.before < HUGE_BYTES
    stream.wait(60)
    assert stream.error is None and stream.broken is None
    assert hostile.chat("Hello", max_tokens=2).status_code == 200


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        pytest.param("endless-later", {}, marks=pytest.mark.proof),
        ("huge-later", {}),
        pytest.param(
            "endless-tools",
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
            marks=pytest.mark.proof,
        ),
    ],
)
def test_a_template_that_takes_too_much_fails_that_request_alone(
    later: Node, model: str, fields: dict[str, object]
) -> None:
    assert _ask(later, model, "Hello", 60).status_code == 200
    stream = later.stream("Tell me a long story.", max_tokens=400, ignore_eos=True).flowing()
    with Peak(later) as peak:
        answer = _ask(later, model, "Now.", MOST_S, **fields)
        again = _ask(later, model, "Hello", MOST_S)
    assert answer.status_code == 400, answer.text
    assert "chat template was stopped" in answer.text, answer.text
    assert again.status_code == 200, again.text
    assert peak.most - peak.before < HUGE_BYTES
    stream.wait(60)
    assert stream.error is None and stream.broken is None
    assert later.chat("Hello", max_tokens=2).status_code == 200
