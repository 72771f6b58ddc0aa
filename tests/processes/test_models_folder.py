"""What lies in the models folder and is no model, or not wholly, says so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from bus.wire.messages.weights import PIECE_BYTES
from tests.harness import models_table
from tests.harness.model_folders import CONFIG, KINDS, config, files, linked, named, only
from tests.harness.nodes import Node, answered, eventually

ODD_NAMES = {"a blank": "a-blank", "größe": "grosse", "two words": "two-words-", "模型": "model"}
"""Folders of good models that no request could name, and how the id begins that each gets."""
HARMLESS = ("stray.txt",)


CACHED: dict[str, Callable[[Path], Any]] = {
    "them/good": files(),
    "them/gguf": only(**{"x.gguf": b"GGUF"}),
    "them/whisper": files(**{"config.json": '{"model_type": "whisper"}'}),
    "them/half": linked,
    "them/words": only(**{"tokenizer.json": "{}"}),
}
"""What lies in the Hugging Face cache: of what has no weights nothing is said."""


@pytest.fixture(scope="module")
def littered() -> Iterator[Node]:
    """Start a node whose models folder holds every kind of what is none, and one good model."""
    node = Node(SHOAL_PRELOAD="")
    models = node.home / "data" / "models"
    models.mkdir(parents=True)
    for kind, (make, _) in KINDS.items():
        (models / kind).parent.mkdir(parents=True, exist_ok=True)
        make(models / kind)
    for name in (*ODD_NAMES, "two-words", "good"):
        files()(models / name)
    files(**{"config.json": config(quantization={"bits": 4, "group_size": 64})})(models / "q4")
    hub = node.home / "hub"
    node.env["HF_HUB_CACHE"] = str(hub)
    for repository, make in CACHED.items():
        snapshot = hub / f"models--{repository.replace('/', '--')}" / "snapshots" / "abc"
        snapshot.parent.mkdir(parents=True)
        make(snapshot)
    files(**{"card.toml": "context_token = 5\nsummary = 'small'\n"})(models / "noted")
    files(**{"card.toml": "context_tokens = 'long'"})(models / "bad-card")
    try:
        node.up()
        yield node
    finally:
        node.close()


def unsaid(text: str, *, folder: Path) -> list[str]:
    """Return the kinds that no line of a text names together with what is said of them."""
    lines = text.splitlines()
    return [
        kind
        for kind, (_, words) in KINDS.items()
        if not any(str(folder / named(kind)) in line and words in line for line in lines)
    ]


def test_ls_says_what_it_saw_and_did_not_take(littered: Node) -> None:
    models = littered.home / "data" / "models"
    said = littered.shoal("ls")
    assert said.returncode == 0 and "good" in said.stdout
    assert not unsaid(said.stdout + said.stderr, folder=models)
    document = json.loads(littered.shoal("ls", "--json").stdout)
    paths = {one["path"] for one in document["passed_over"] if not one["taken"]}
    mine = {path for path in paths if Path(path).is_relative_to(models)}
    assert mine == {str(models / named(kind)) for kind in KINDS}
    cached = [one["name"] for one in document["passed_over"] if one["path"] not in mine]
    assert {"them/gguf", "them/whisper", "them/half"} <= set(cached)
    assert "them/words" not in cached
    models_listed = {one["model"]: one for one in document["models"]}
    assert models_listed["them/good"]["origin"] == "cache"
    assert models_listed["shoal-tiny"]["origin"] == "bundled"
    assert models_listed["good"]["origin"] == "put"


def test_a_name_that_no_request_can_say_gets_an_id_that_is_told(littered: Node) -> None:
    listed = littered.shoal("ls")
    models = {one["folder_name"]: one["model"] for one in _document(littered)["models"]}
    for name, begin in ODD_NAMES.items():
        assert models[name].startswith(begin), models
        (line,) = (line for line in listed.stderr.splitlines() if f"'{name}'" in line)
        assert "has another name" in line and f"listed as {models[name]}" in line
        assert littered.http.get(f"/v1/models/{models[name]}").status_code == 200
    answer = littered.chat("Hi.", model="größe")
    assert answer.status_code == 400 and "has the name 'grosse'" in answer.text


def _document(node: Node) -> Any:
    return json.loads(node.shoal("ls", "--json").stdout)


def test_what_everything_says_of_each_is_as_it_is_recorded(littered: Node) -> None:
    models = littered.home / "data" / "models"
    node = littered.state()["nodes"][littered.node_id()]["name"]
    text = models_table.table(littered, KINDS.keys() - {"shoal-tiny"}, named)
    plain = text.replace(str(models), "<models>").replace(f" on {node}", " on <node>")
    plain = plain.replace(f"mlx-lm {metadata.version('mlx-lm')}", "mlx-lm <version>")
    if os.environ.get("RECORD_MODELS_FOLDER"):
        models_table.RECORDED.write_text(plain)
    assert plain == models_table.RECORDED.read_text(), "see RECORD_MODELS_FOLDER=1"


def test_doctor_says_why_each_is_not_taken_and_the_way_out(littered: Node) -> None:
    said = json.loads(littered.shoal("doctor", "--json").stdout)
    told = "\n".join(f"{one['found']}; {one['remedy']}" for one in said["checks"])
    assert not unsaid(told, folder=littered.home / "data" / "models")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "shoal-tiny"])
def test_the_404_says_why_what_lies_there_is_no_model(littered: Node, kind: str) -> None:
    answer = littered.chat("Hi.", model=named(kind))
    said = answer.json()["error"]["message"]
    if kind == "an odd name.gguf":
        assert answer.status_code == 400 and "has the name 'an-odd-name.gguf'" in said
        said = littered.chat("Hi.", model="an-odd-name").json()["error"]["message"]
        assert KINDS[kind][1] in said
        return
    assert answer.status_code == 404, answer.text
    assert KINDS[kind][1] in said and "is not a model" in said


def test_a_file_is_known_by_its_name_without_the_ending(littered: Node) -> None:
    said = littered.chat("Hi.", model="loose").json()["error"]["message"]
    assert "loose.gguf is in llama.cpp's GGUF format" in said, said


def test_the_log_says_each_once(littered: Node) -> None:
    models = littered.home / "data" / "models"

    def told() -> list[str]:
        """Return a line for each thing that the worker's log tells of."""
        lines = littered.log_lines("worker")
        return [
            f"{one['path']}: {one['why']}; {one['remedy']}"
            for one in lines
            if "remedy" in one and "path" in one
        ]

    lines = "\n".join(told())
    assert not set(unsaid(lines, folder=models)) - set(HARMLESS)
    shutil.rmtree(models / "empty")
    gone = str(models / "empty")
    eventually(lambda: gone not in littered.shoal("ls").stderr, 60, "the disk is looked at again")
    here = [line for line in told() if line.startswith(str(models))]
    count = len(KINDS) - len(HARMLESS) + len(ODD_NAMES) + 2
    assert len(here) == len(set(here)) == count, "those taken but for a part too"


def test_keys_of_a_card_file_that_are_not_known_are_said(littered: Node) -> None:
    folder = littered.home / "data" / "models" / "noted"
    listed, examined = littered.shoal("ls"), littered.shoal("doctor")
    for said in (listed.stdout + listed.stderr, examined.stdout):
        lines = [line for line in said.splitlines() if str(folder) in line]
        assert any("no key 'context_token'" in line for line in lines), said
        assert "did you mean context_tokens?" in said
    assert "noted" in listed.stdout, "it is a model all the same"


def test_a_model_with_an_adapter_beside_its_weights_is_refused(littered: Node) -> None:
    assert littered.shoal("show", "adapted", "--json").returncode
    listed = littered.shoal("ls")
    folder = littered.home / "data" / "models" / "adapted"
    lines = [line for line in listed.stderr.splitlines() if str(folder) in line]
    assert lines and "adapters.safetensors" in lines[0] and "adapters/NAME" in lines[0]


def test_what_is_mended_is_taken_without_a_restart(littered: Node) -> None:
    folder = littered.home / "data" / "models" / "no-config"
    (folder / "config.json").write_text(json.dumps(CONFIG))
    answered(
        lambda: littered.shoal("ls"),
        lambda answer: "no-config" in answer.stdout and str(folder) not in answer.stderr,
        "the mended folder is a model, and nothing is said of it any more",
    )


def test_what_came_of_a_pull_is_told_with_the_way_on_and_goes_by_its_name(littered: Node) -> None:
    folder = littered.home / "data" / "models" / ".pulling" / "owner--begun@c0ffee"
    for name in ("files", "have"):
        (folder / name).mkdir(parents=True)
    with open(folder / "files" / "config.json", "wb") as made:
        made.truncate(3 * PIECE_BYTES)
    (folder / "have" / "0").write_bytes(b"\1\0\0\0")
    (folder / "pull.json").write_text('{"model": "owner/begun"}')
    words = f"the download is incomplete: 1.0 of {3 * PIECE_BYTES / 1e6:.1f} MB"
    eventually(lambda: words in littered.shoal("ls").stderr, 30, "it is told")

    def is_told(text: str) -> bool:
        return words in " ".join(text.split()) and "`shoal pull owner/begun`" in text

    for line in (("show", "owner/begun"), ("load", "owner/begun")):
        typed = answered(
            lambda line=line: littered.shoal(*line), lambda one: is_told(one.stderr), f"{line} says"
        )
        assert typed.returncode
    answer = answered(
        lambda: littered.chat("Hi.", model="owner/begun"),
        lambda answer: is_told(answer.json()["error"]["message"]),
        "the answer to a request says so",
    )
    assert answer.status_code == 404
    eventually(lambda: is_told(littered.shoal("doctor").stdout), 30, "doctor says so")
    eventually(
        lambda: "deleted owner/begun" in littered.shoal("rm", "owner/begun").stdout,
        30,
        "it is deleted",
    )
    assert not folder.exists()
    eventually(lambda: words not in littered.shoal("ls").stderr, 30, "it is told no more")
    eventually(
        lambda: "no model " in littered.shoal("rm", "owner/begun").stderr,
        30,
        "each process of the gateway knows that it is gone",
    )
