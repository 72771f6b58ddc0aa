"""One node, and a folder of GGUF files as people have them. Each model answers in every dialect.
Of each other file `ls`, `show`, `load`, `doctor` and every dialect say the same reason, and what to
do; no answer is a 500, and no file ends a process of the node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.gguf_kinds import GOOD, NO_MODEL, UNLOADABLE
from tests.harness.llama_site import needs_program
from tests.harness.models_table import (
    OF_VECTORS,
    ROUTES,
    Row,
    ask,
    kept,
    message,
    remarks,
    rows_of_no_models,
    typed,
)
from tests.harness.nodes import SERVICES, Node, answered, eventually

pytestmark = [
    pytest.mark.proof,
    pytest.mark.nodes,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_program,
]
LISTED = {**GOOD, **UNLOADABLE}
REFUSED = {"no-template": "this model has no chat template; send a raw prompt"}
"""What a model says of chats, by name."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node(SHOAL_PRELOAD="")
    models = node.home / "data" / "models"
    models.mkdir(parents=True)
    for name, kind in {**LISTED, **NO_MODEL}.items():
        kind.make(models / name)
    try:
        node.up()
        answered(
            lambda: json.loads(node.shoal("ls", "--json").stdout),
            lambda said: {*LISTED} <= {one["model"] for one in said["models"]},
            "all models are listed",
            60,
        )
        yield node
    finally:
        node.close()


@pytest.fixture(scope="module", autouse=True)
def unharmed(node: Node) -> Iterator[None]:
    """No service of the node ends, and none logs a traceback."""
    before = {name: node.pid(name) for name in SERVICES}
    yield
    assert {name: node.pid(name) for name in SERVICES} == before
    for name in SERVICES:
        lines = [line for line in node.log_lines(name) if "Traceback" in str(line)]
        assert not lines, lines[:2]


def test_what_is_no_model_has_one_reason_and_one_remedy_wherever_it_is_named(node: Node) -> None:
    rows = rows_of_no_models(node, {name: name for name in NO_MODEL})
    for row in rows:
        kind = NO_MODEL[row.thing]
        if kind.words not in f"{row.why}; {row.remedy}" or kind.remedy not in row.remedy:
            row.wrong.append(f"{row.thing}: {row.why}; {row.remedy}")
    kept(rows)


@pytest.mark.parametrize("name", GOOD)
def test_a_model_is_listed_shown_loaded_and_answers_in_every_dialect(node: Node, name: str) -> None:
    row = Row(f"GGUF {name}", cells={"ls": "listed"})
    folder = str(node.home / "data" / "models" / name)
    lines = [line for line in remarks(node) if f"{folder}: " in line]
    row.cells["doctor"] = f"{len(lines)} lines"
    words = GOOD[name].words
    if bool(lines) != bool(words) or words not in " ".join(lines):
        row.wrong.append(f"doctor of {name}: {lines}")
    for verb, said in typed(node, [name]).items():
        row.say(verb.partition(" ")[0], said[-1])
        if said[-1] != "ends with 0":
            row.wrong.append(f"{verb} of {name}: {said}")
    for route in ROUTES:
        answer = ask(node, route, name)
        row.say(route, str(answer.status_code))
        refused = "does not support" if route in OF_VECTORS else REFUSED.get(name, "")
        if answer.status_code != (400 if refused else 200):
            row.wrong.append(f"{route} of {name}: {answer.status_code} {answer.text}")
        elif refused and refused not in message(answer):
            row.wrong.append(f"{route} of {name}: {answer.text}")
    raw = node.http.post("/v1/completions", json={"model": name, "prompt": "Hi", "max_tokens": 4})
    row.say("completions", str(raw.status_code))
    if raw.status_code != 200:
        row.wrong.append(f"completions of {name}: {raw.status_code} {raw.text}")
    assert node.shoal("stop", name).returncode == 0
    eventually(lambda: not node.state()["instances"], 60, "it is unloaded")
    kept([row])


def streamed(node: Node, name: str) -> tuple[int, str]:
    """Return the status and the text of a streamed request."""
    body: dict[str, Any] = {"model": name, "stream": True, **ROUTES["chat completions"][1]}
    path = f"{node.url}/v1/chat/completions"
    with httpx.stream("POST", path, json=body, timeout=120) as answer:
        return answer.status_code, answer.read().decode()


@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_model_that_cannot_be_loaded_says_why_in_every_dialect(node: Node, name: str) -> None:
    row = Row(f"GGUF {name}", UNLOADABLE[name].words, cells={"ls": "listed"})
    (shown, loaded) = typed(node, [name]).values()
    row.cells["show"] = shown[-1]
    row.say("load", loaded[-1], " ".join(loaded))
    if shown[-1] != "ends with 0" or loaded[-1] == "ends with 0" or "Traceback" in str(loaded):
        row.wrong.append(f"show and load of {name}: {shown}, {loaded}")
    for route in ROUTES:
        answer = ask(node, route, name)
        if route in OF_VECTORS:
            row.cells[route] = str(answer.status_code)
            is_right = answer.status_code == 400 and "does not support" in message(answer)
        else:
            row.say(route, str(answer.status_code), message(answer))
            is_right = answer.status_code in (400, 503)
        if not is_right:
            row.wrong.append(f"{route} of {name}: {answer.status_code} {answer.text}")
    status, text = streamed(node, name)
    row.say("stream", str(status), text)
    ran = node.shoal("run", name, "Hi.")
    row.say("run", f"ends with {ran.returncode}", ran.stdout + ran.stderr)
    lines = [line for line in remarks(node) if name in line]
    row.say("doctor", f"{len(lines)} lines", " ".join(lines))
    kept([row])
    node.shoal("stop", name)
