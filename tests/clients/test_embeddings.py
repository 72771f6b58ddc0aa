"""Embeddings of a running node, by the official clients: loaded on demand, unloaded, killed."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest
from openai import OpenAI

from conf.settings import load_settings
from tests.harness.embedding_folders import write_encoder
from tests.harness.minilm import NotFetched, minilm_folder
from tests.harness.missing import missing
from tests.harness.nodes import Node, eventually, everywhere

NAME = "tiny-embedder"
LIMIT = 256
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": LIMIT,
}


def write_slow_encoder(folder: Path) -> Path:
    """Write a model with random weights that takes long enough to be killed while it computes. Its
    tokens are bytes, one special one before them and one behind."""
    write_encoder(folder, **SHAPE)
    for name, changes in (
        ("1_Pooling/config.json", {"word_embedding_dimension": SHAPE["hidden_size"]}),
        ("tokenizer_config.json", {"model_max_length": LIMIT}),
    ):
        said = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**said, **changes}))
    return folder


def place(node: Node, name: str, folder: Path) -> None:
    """Put a model where the node's models are, and wait until the node has seen it."""
    home = load_settings(home=node.home).paths.models / name
    shutil.copytree(folder, home)

    def listed() -> list[dict[str, Any]]:
        return httpx.get(f"{node.url}/v1/models", timeout=30).json()["data"]

    def is_there(found: list[dict[str, Any]]) -> bool:
        return any(one["id"] == name and "embedding" in one["capabilities"] for one in found)

    everywhere(listed, is_there, f"the node lists {name}", 60)


def take_away(node: Node, name: str) -> None:
    """Unload a model of the tests, and remove it from the node's disk."""
    for copy in instances(node, name):
        node.http.delete(f"/instance/{copy['instance']}")
    eventually(lambda: not instances(node, name), 60, f"{name} is unloaded")
    shutil.rmtree(load_settings(home=node.home).paths.models / name)


@pytest.fixture(scope="module")
def embedder(node: Node | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedding model on the node's disk."""
    if node is None:
        pytest.skip("the node is another's: a model cannot be put on its disk")
    place(node, NAME, write_slow_encoder(tmp_path_factory.mktemp("models") / NAME))
    yield NAME
    take_away(node, NAME)


@pytest.fixture(scope="module")
def speaker(node_url: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=node_url, timeout=90) as made:
        yield made


def instances(node: Node | None, model: str) -> list[Any]:
    """The copies of a model that the state has."""
    assert node is not None
    return [one for one in node.state()["instances"].values() if one["model"] == model]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))


def numbers(client: OpenAI, **fields: Any) -> list[list[float]]:
    """The vectors that the client gives its callers, in their order."""
    answer = client.embeddings.create(**fields)
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return [one.embedding for one in answer.data]


def test_the_first_question_loads_the_model_and_all_ways_to_ask_agree(
    client: OpenAI, speaker: ollama.Client, embedder: str, node: Node | None
) -> None:
    assert instances(node, embedder) == []
    text, other = "Fish swim in shoals.", "Grüße 🐟"
    answer = client.embeddings.create(model=embedder, input=text, encoding_format="float")
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 2 + len(text)
    (vector,) = (one.embedding for one in answer.data)
    assert len(vector) == SHAPE["hidden_size"]
    assert math.isclose(sum(number * number for number in vector), 1.0, abs_tol=1e-4)
    eventually(
        lambda: [one["status"] for one in instances(node, embedder)] == ["ready"],
        20,
        "each process of the gateway knows that it is ready",
    )

    both = numbers(client, model=embedder, input=[text, other])  # as base64 on the way
    assert cosine(both[0], vector) > 0.99999
    assert cosine(both[1], vector) < 0.999
    told = speaker.embed(model=embedder, input=[text, other])
    older = speaker.embeddings(model=embedder, prompt=other)
    for ours, theirs in zip(both, told.embeddings, strict=True):
        assert cosine(ours, theirs) > 0.99999
    assert cosine(both[1], older.embedding) > 0.99999
    assert told.prompt_eval_count == 4 + len(text) + len(other.encode())
    assert told.total_duration is not None and told.total_duration > 0


def test_token_ids_are_read_as_their_text_is(
    client: OpenAI, embedder: str, node: Node | None
) -> None:
    words = ["abc", "x"]
    by_text = numbers(client, model=embedder, input=words)
    ids = [tokens_of(node, word) for word in words]
    for shape in (ids, *([one] for one in ids)):
        by_ids = numbers(client, model=embedder, input=shape)
        wanted = by_text if len(shape) == 2 else [by_text[ids.index(shape[0])]]
        assert all(cosine(a, b) > 0.99999 for a, b in zip(by_ids, wanted, strict=True))
    flat = numbers(client, model=embedder, input=ids[0])
    assert cosine(flat[0], by_text[0]) > 0.99999


def tokens_of(node: Node | None, text: str) -> list[int]:
    """The token ids of a text, by the model's own tokenizer."""
    from tokenizers import Tokenizer

    assert node is not None
    folder = load_settings(home=node.home).paths.models / NAME
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_what_is_too_long_is_refused_in_openai_s_words_or_cut_and_said(
    client: OpenAI, speaker: ollama.Client, embedder: str
) -> None:
    long = "a" * 300
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=embedder, input=["short", long])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input[1]")
    assert f"maximum context length is {LIMIT} tokens" in refused.value.message
    told = client.embeddings.with_raw_response.create(
        model=embedder, input=["short", long], extra_body={"truncate_prompt_tokens": -1}
    )
    assert told.headers["x-shoal-truncated"] == "1"
    cut = told.parse().data[1].embedding
    kept = numbers(client, model=embedder, input="a" * (LIMIT - 2))[0]
    assert cosine(cut, kept) > 0.99999
    assert cosine(speaker.embed(model=embedder, input=long).embeddings[0], kept) > 0.99999
    with pytest.raises(ollama.ResponseError) as strict:
        speaker.embed(model=embedder, input=long, truncate=False)
    assert strict.value.status_code == 400


def test_other_dimensions_than_the_model_s_are_refused(client: OpenAI, embedder: str) -> None:
    assert len(numbers(client, model=embedder, input="a", dimensions=64)[0]) == 64
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=embedder, input="a", dimensions=32)
    assert refused.value.param == "dimensions"
    assert "64 numbers, which cannot be changed" in refused.value.message


def test_a_model_is_asked_only_for_what_it_makes(
    client: OpenAI, embedder: str, model: str, node: Node | None
) -> None:
    with pytest.raises(openai.BadRequestError, match="does not support embeddings"):
        client.embeddings.create(model=model, input="a")
    messages: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.BadRequestError, match="it is an embedding model"):
        client.chat.completions.create(model=embedder, messages=messages)
    assert node is not None
    refused = node.http.post(
        "/place_instance", json={"model": embedder, "min_nodes": 2, "sharding": "pipeline"}
    )
    assert refused.status_code == 400, refused.text


def test_many_inputs_do_not_hold_up_one(client: OpenAI, embedder: str, node_url: str) -> None:
    many = ["b" * 200] * 2048
    ended = threading.Event()

    def ask_for_many() -> None:
        with httpx.Client(timeout=300) as http:
            body = {"model": embedder, "input": many, "x_client_id": "many"}
            http.post(f"{node_url}/v1/embeddings", json=body)
        ended.set()

    asking = threading.Thread(target=ask_for_many)
    asking.start()
    wait_until_begun(node_url, "many")
    for number in range(3):
        numbers(client, model=embedder, input=f"one {number}")
    assert not ended.is_set(), "the one was answered while the many were computed"
    (mine,) = (one for one in open_at(node_url) if one["client"] == "many")
    stopped = httpx.post(f"{node_url}/v1/cancel/{mine['request']}", timeout=30)
    assert stopped.status_code == 200
    asking.join(60)
    assert ended.is_set()


def open_at(url: str) -> list[dict[str, Any]]:
    return httpx.get(f"{url}/queue", timeout=30).json()["requests"]


def wait_until_begun(url: str, client_id: str) -> None:
    def has_begun() -> bool:
        mine = [one for one in open_at(url) if one["client"] == client_id]
        return bool(mine) and not mine[0]["waiting"]

    eventually(has_begun, 60, "the first vectors have come")


def test_a_killed_runner_is_said_and_the_next_question_is_answered(
    client: OpenAI, embedder: str, node: Node | None
) -> None:
    assert node is not None
    before = numbers(client, model=embedder, input="still the same")[0]
    failures: list[openai.APIStatusError] = []

    def ask_for_many() -> None:
        try:
            client.embeddings.create(model=embedder, input=["c" * 200] * 2048, user="doomed")
        except openai.APIStatusError as error:
            failures.append(error)

    asking = threading.Thread(target=ask_for_many)
    asking.start()
    wait_until_begun(node.url, "doomed")
    (copy,) = instances(node, embedder)
    os.kill(copy["ready"][0]["pid"], signal.SIGKILL)
    asking.join(60)
    assert [(one.status_code, one.code) for one in failures] == [(503, "runner_lost")]
    after = numbers(client, model=embedder, input="still the same")[0]
    assert cosine(before, after) > 0.99999


def test_a_model_is_unloaded_when_asked_and_loaded_again(
    speaker: ollama.Client, embedder: str, node: Node | None
) -> None:
    assert any(one.model == embedder for one in speaker.ps().models)
    speaker.embed(model=embedder, input=[], keep_alive=0)
    eventually(lambda: not instances(node, embedder), 60, "the model is unloaded")
    assert speaker.embed(model=embedder, input="again").embeddings


@pytest.mark.proof
def test_a_real_model_knows_what_is_alike(client: OpenAI, node: Node | None) -> None:
    try:
        folder = minilm_folder()
    except NotFetched as problem:
        missing(problem)
    assert node is not None
    place(node, "minilm", folder)
    fish, shoal, tax = numbers(
        client,
        model="minilm",
        input=["Fish swim together.", "A shoal is a group of fish.", "Taxes are due in May."],
    )
    take_away(node, "minilm")
    assert cosine(fish, shoal) > 0.5 > 0.3 > cosine(fish, tax)
