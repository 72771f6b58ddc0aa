"""Models that the official Ollama client makes of others: made, asked in every dialect, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from openai import OpenAI

from tests.harness.nodes import everywhere

QUESTION = "List the integers from 1 to 30"
SYSTEM = "You are helpful."


@pytest.fixture(scope="module")
def own(node_url: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=node_url, timeout=90) as made:
        yield made


@pytest.fixture
def brief(own: ollama.Client, model: str, node_url: str) -> Iterator[str]:
    """A model that says four tokens, made of the bundled one."""
    made = own.create(
        "brief:v1", from_=model, system=SYSTEM, parameters={"num_predict": 4, "temperature": 0},
        messages=[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
    )  # fmt: skip
    assert made.status == "success"
    known(node_url, "brief:v1")
    yield "brief:v1"
    own.delete("brief:v1")


def known(url: str, name: str) -> None:
    """Wait until each HTTP process of the gateway knows a name."""

    def listed() -> set[str]:
        data = httpx.get(f"{url}/v1/models", timeout=30).json()["data"]
        return {one["id"] for one in data}

    everywhere(listed, lambda names: name in names, f"{name} is listed")


def names(own: ollama.Client) -> set[str]:
    return {one.model or "" for one in own.list().models}


def test_a_copy_answers_as_the_model_does_until_it_is_deleted(
    own: ollama.Client, model: str
) -> None:
    assert own.copy(model, "second").status == "success"
    assert "second" in names(own)
    fields: dict[str, Any] = {"prompt": QUESTION, "think": False, "options": {"temperature": 0}}
    answer = own.generate(model="second:latest", **fields)
    assert answer.model == "second:latest"
    assert answer.response == own.generate(model=model, **fields).response
    assert own.show("second").template == own.show(model).template
    assert own.delete("second").status == "success"
    assert "second" not in names(own)
    with pytest.raises(ollama.ResponseError) as gone:
        own.generate(model="second", **fields)
    assert gone.value.status_code == 404


def test_what_is_made_is_shown_and_its_defaults_hold_in_every_dialect(
    own: ollama.Client, client: OpenAI, brief: str, node_url: str, model: str
) -> None:
    shown = own.show(brief)
    assert shown.details is not None and shown.details.parent_model == model
    assert "num_predict 4" in (shown.parameters or "")
    assert f'SYSTEM """{SYSTEM}"""' in (shown.modelfile or "")
    plain: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]}
    assert own.chat(model=brief, think=False, **plain).eval_count == 4
    longer = own.chat(model=brief, think=False, options={"num_predict": 6}, **plain)
    assert longer.eval_count == 6
    assert brief in {one.id for one in client.models.list().data}
    assert client.models.retrieve(brief).id == brief
    talked = client.chat.completions.create(model=brief, reasoning_effort="none", **plain)
    assert talked.usage is not None
    assert (talked.model, talked.usage.completion_tokens) == (brief, 4)
    message = httpx.post(
        f"{node_url}/v1/messages", json={"model": brief, "max_tokens": 5, **plain}, timeout=90
    ).json()
    assert (message["model"], message["usage"]["output_tokens"]) == (brief, 5)
    asked = {"model": brief, "messages": plain["messages"]}
    text = httpx.post(f"{node_url}/apply-template", json=asked, timeout=90).json()["prompt"]
    assert text.index(SYSTEM) < text.index("Hello") < text.index("Hi") < text.index(QUESTION)
    other = [{"role": "system", "content": "Be rude."}, *plain["messages"]]
    asked = {"model": brief, "messages": other}
    text = httpx.post(f"{node_url}/apply-template", json=asked, timeout=90).json()["prompt"]
    assert SYSTEM not in text and text.index("Be rude.") < text.index("Hello")


def test_a_model_is_made_of_a_made_one_and_of_a_modelfile(
    own: ollama.Client, brief: str, node_url: str, model: str
) -> None:
    file = f'# mine\nFROM {brief}\nPARAMETER stop "7"\nSYSTEM """Be\nbrief."""\n'
    lines = httpx.post(
        f"{node_url}/api/create", json={"name": "briefer", "modelfile": file}, timeout=90
    ).text.splitlines()
    assert lines[-1] == '{"status":"success"}'
    known(node_url, "briefer")
    try:
        shown = own.show("briefer")
        assert shown.details is not None and shown.details.parent_model == brief
        assert (shown.modelfile or "").startswith(f"FROM {model}\n")
        assert "Be\nbrief." in (shown.modelfile or "")
        assert "num_predict 4" in (shown.parameters or "")
        assert 'stop "7"' in (shown.parameters or "")
    finally:
        own.delete("briefer")


@pytest.mark.proof
def test_a_context_goes_on_where_its_answer_ended(own: ollama.Client, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "think": False, "options": {"temperature": 0}}
    first = own.generate(prompt=QUESTION, **fields)
    assert first.context and first.prompt_eval_count and first.eval_count
    assert len(first.context) == first.prompt_eval_count + first.eval_count
    [*_, streamed] = own.generate(prompt=QUESTION, stream=True, **fields)
    assert streamed.context == first.context
    again = own.generate(prompt="Hello", context=first.context, **fields)
    assert again.context is not None
    assert list(again.context)[: len(first.context)] == list(first.context)
    alone = own.generate(prompt="Hello", **fields)
    assert again.prompt_eval_count == len(first.context) + (alone.prompt_eval_count or 0)
    raw = own.generate(model=model, prompt="Once", raw=True, options={"num_predict": 2})
    assert raw.context is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"context": [2_000_000_000]}, "token ids must be in"),
        pytest.param({"context": [-1]}, "context", marks=pytest.mark.proof),
        pytest.param({"context": [1], "raw": True}, "context", marks=pytest.mark.proof),
    ],
)
def test_a_context_that_cannot_be_is_refused_by_name(
    node_url: str, model: str, fields: dict[str, Any], named: str
) -> None:
    body = {"model": model, "prompt": "Hello", **fields}
    answer = httpx.post(f"{node_url}/api/generate", json=body, timeout=30)
    assert (answer.status_code, named in answer.json()["error"]) == (400, True), answer.text
    assert "context" in answer.json()["error"]


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"model": "shoal-tiny", "from": "shoal-tiny"}, 409, "already names the model"),
        ({"model": "x", "from": "nothing-here"}, 404, "nothing-here"),
        *(
            pytest.param(*more, marks=pytest.mark.proof)
            for more in (
                ({"model": "x y", "from": "shoal-tiny"}, 400, "x y"),
                (
                    {"model": "x", "from": "shoal-tiny", "template": "{{ .Prompt }}"},
                    400,
                    "own chat template",
                ),
                (
                    {"model": "x", "modelfile": "FROM shoal-tiny\nTEMPLATE {{ .Prompt }}"},
                    400,
                    "own chat template",
                ),
                ({"model": "x", "from": "shoal-tiny", "adapters": {"a": "b"}}, 400, "adapters"),
                ({"model": "x", "from": "shoal-tiny", "parameters": {"top_kk": 1}}, 400, "top_kk"),
                ({"model": "x", "from": "shoal-tiny", "system": "y" * 70_000}, 400, "system"),
                ({"model": "x", "modelfile": "FROM shoal-tiny\nADAPTER ./a"}, 400, "adapter"),
                ({"model": "x"}, 400, "from"),
            )
        ),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(
    node_url: str, fields: dict[str, Any], status: int, named: str
) -> None:
    answer = httpx.post(f"{node_url}/api/create", json=fields, timeout=30)
    assert (answer.status_code, named in answer.json()["error"]) == (status, True), answer.text
