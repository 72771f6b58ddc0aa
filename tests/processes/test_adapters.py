"""A real node answers for a model's adapters by name, in the dialects of OpenAI and Ollama."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.lora import PROMPT, SAYS, trained_model
from tests.harness.nodes import Node, answered, eventually, everywhere

pytestmark = [pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def node(shared_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node, models = shared_node, shared_node.home / "data" / "models"
    model = trained_model(tmp_path_factory.mktemp("trained") / "parrot")
    broken = model / "adapters" / "broken"
    broken.mkdir()
    for file in (model / "adapters" / "pirate").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    config = json.loads((broken / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps({**config, "fine_tune_type": "dora"}))
    shutil.copytree(model, models / "parrot")
    names = {"parrot", *(f"parrot:{name}" for name in SAYS)}
    everywhere(lambda: listed(node), lambda found: names <= found, "each HTTP process knows them")
    yield node
    for name in listed(node) & {"captain", "mate"}:
        node.http.request("DELETE", "/api/delete", json={"model": name})
    node.shoal("stop", "parrot")
    shutil.rmtree(models / "parrot")


def listed(node: Node) -> set[str]:
    """What an HTTP process of the node, whichever takes the connection, lists."""
    return {one["id"] for one in httpx.get(f"{node.url}/v1/models", timeout=30).json()["data"]}


def openai(node: Node, model: str, **fields: Any) -> Any:
    answer = node.chat(PROMPT, model=model, max_tokens=32, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ollama(node: Node, model: str) -> Any:
    body = {
        "model": model, "stream": False, "options": {"temperature": 0, "num_predict": 32},
        "messages": [{"role": "user", "content": PROMPT}],
    }  # fmt: skip
    answer = node.http.post("/api/chat", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_both_dialects_say_what_each_adapter_says_and_what_the_model_says(node: Node) -> None:
    base = openai(node, "parrot")["choices"][0]["message"]["content"]
    for name, text in SAYS.items():
        answer = openai(node, f"parrot:{name}")
        assert text in answer["choices"][0]["message"]["content"] and text not in (base or "")
        assert answer["model"] == f"parrot:{name}"
        assert text in ollama(node, f"parrot:{name}")["message"]["content"]
    assert openai(node, "parrot")["choices"][0]["message"]["content"] == base


def test_rows_of_all_of_them_at_once_say_the_same(node: Node) -> None:
    names = ["parrot", *(f"parrot:{name}" for name in SAYS)] * 4
    streams = [node.stream(PROMPT, model=name, max_tokens=32) for name in names]
    said: dict[str, set[str]] = {}
    for name, stream in zip(names, streams, strict=True):
        stream.wait(60)
        said.setdefault(name, set()).add(stream.text)
    assert all(len(texts) == 1 for texts in said.values()), said
    for name, text in SAYS.items():
        assert text in said[f"parrot:{name}"].copy().pop()


def test_a_prompt_that_one_adapter_has_read_is_read_anew_for_another(node: Node) -> None:
    story = "Tell a story about a fish and a boat. " * 20

    def cached(model: str) -> int:
        answer = node.chat(story, model=model, max_tokens=2)
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    for model in ("parrot:pirate", "parrot:formal", "parrot"):
        assert cached(model) == 0, model
        assert cached(model) > 100, model


def test_they_are_listed_wherever_models_are(node: Node) -> None:
    names = {f"parrot:{name}" for name in SAYS}
    found = listed(node)
    assert names < found and "parrot:broken" not in found
    tags = {one["name"]: one["digest"] for one in node.http.get("/api/tags").json()["models"]}
    own = [digest for name, digest in tags.items() if name.startswith("parrot")]
    assert len(own) == len(set(own)) == 3
    assert node.http.get("/v1/models/parrot:pirate").json()["id"] == "parrot:pirate"
    assert node.http.post("/api/show", json={"model": "parrot:pirate"}).status_code == 200
    done = node.shoal("ls")
    assert "parrot:pirate" in done.stdout and "rank 8" in done.stdout
    assert "parrot:broken" not in done.stdout and "dora" in done.stderr
    shown = node.shoal("show", "parrot:pirate")
    assert "pirate (rank 8)" in shown.stdout


def test_what_is_not_there_or_cannot_be_applied_is_a_404_that_says_why(node: Node) -> None:
    for model, word in {"parrot:strange": "formal, pirate", "parrot:broken": "dora"}.items():
        answer = node.chat(PROMPT, model=model)
        assert answer.status_code == 404, answer.text
        error = answer.json()["error"]
        assert error["code"] == "model_not_found" and word in error["message"], error
        told = node.http.post("/api/chat", json={"model": model, "messages": []})
        assert told.status_code == 404 and word in told.json()["error"]


def test_one_is_not_deleted_as_if_it_were_its_model(node: Node) -> None:
    answer = node.http.request("DELETE", "/api/delete", json={"model": "parrot:pirate"})
    assert answer.status_code == 409 and "adapters/pirate" in answer.text
    assert node.shoal("rm", "parrot:pirate", "--yes").returncode
    assert (node.home / "data" / "models" / "parrot" / "config.json").exists()


def test_a_model_made_with_an_adapter_answers_with_it(node: Node) -> None:
    for name, body in {
        "captain": {"from": "parrot", "modelfile": "FROM parrot\nADAPTER pirate"},
        "mate": {"from": "parrot:pirate", "system": ""},
    }.items():
        made = node.http.post("/api/create", json={"model": name, "stream": False, **body})
        assert made.status_code == 200, made.text
        answer = openai(node, name)["choices"][0]["message"]["content"]
        assert SAYS["pirate"] in answer, name
    bad = {"model": "x", "modelfile": "FROM parrot\nADAPTER nobody", "stream": False}
    answer = node.http.post("/api/create", json=bad)
    assert answer.status_code == 404 and "formal, pirate" in answer.text


@pytest.mark.proof
def test_one_that_comes_while_the_model_is_loaded_is_refused_until_it_is_loaded_anew(
    node: Node,
) -> None:
    openai(node, "parrot")
    folder = node.home / "data" / "models" / "parrot" / "adapters"
    late = folder / "late"
    late.mkdir()
    for file in Path(folder / "formal").iterdir():
        (late / file.name).write_bytes(file.read_bytes())
    eventually(lambda: "parrot:late" in node.shoal("ls").stdout, 40, "it is listed")
    answer = answered(
        lambda: node.chat(PROMPT, model="parrot:late"),
        lambda answer: answer.status_code != 404,
        "each process of the gateway knows it",
    )
    assert answer.status_code == 400 and "reload it" in answer.text
    assert node.shoal("stop", "parrot").returncode == 0
    said = answered(
        lambda: node.chat(PROMPT, model="parrot:late", max_tokens=32),
        lambda answer: answer.status_code == 200,
        "it is loaded anew",
    )
    assert SAYS["formal"] in said.json()["choices"][0]["message"]["content"]


@pytest.mark.proof
def test_a_card_says_which_are_loaded_and_which_answers_for_the_models_name(node: Node) -> None:
    chosen, other = list(SAYS)[:2]
    text = f'adapters = ["{chosen}"]\nadapter = "{chosen}"\n'
    assert node.shoal("stop", "parrot").returncode == 0
    put = node.http.put("/models/card/parrot", content=text.encode(), timeout=60)
    assert put.status_code == 200, put.text
    try:
        answered(
            lambda: openai(node, "parrot")["choices"][0]["message"]["content"] or "",
            lambda said: SAYS[chosen] in said,
            "the card's adapter answers",
            120,
        )
        answered(
            lambda: ollama(node, "parrot")["message"]["content"],
            lambda said: SAYS[chosen] in said,
            "it answers in each dialect",
        )
        answered(
            lambda: node.chat(PROMPT, model=f"parrot:{other}", max_tokens=4),
            lambda said: said.status_code == 404 and chosen in said.text,
            "what the card leaves out is not there",
        )
    finally:
        node.http.delete("/models/card/parrot", timeout=60)
