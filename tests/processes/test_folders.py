"""One node, and a folder of all that people put where models are: good ones, and those that are
broken, cut, of another format or another kind. Of each the command line, `doctor` and every
dialect say the same reason and the same way out, or it answers; of each name once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests.harness.embedding_folders import write_encoder
from tests.harness.families import MODELS, write_model
from tests.harness.lora import draw_adapter
from tests.harness.model_folders import KINDS, named
from tests.harness.models_table import (
    OF_VECTORS,
    ROUTES,
    Row,
    ask,
    kept,
    message,
    remarks,
    rows_of_no_models,
    told_by_dialects,
    typed,
)
from tests.harness.nodes import ROOT, Node, answered, eventually

pytestmark = [pytest.mark.proof, pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(900)]
TINY = ROOT / "conf" / "tiny"
MADE_FOR_IT = ("config.json", "model.safetensors")


def tiny(folder: Path) -> Path:
    """Make a copy of the bundled model."""
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("make", "__*"))
    return folder


def linked_folder(folder: Path) -> None:
    elsewhere = folder.parents[2] / "elsewhere"
    folder.symlink_to(tiny(elsewhere), target_is_directory=True)


def linked_files(folder: Path) -> None:
    elsewhere = tiny(folder.parents[2] / "blobs")
    folder.mkdir()
    for file in elsewhere.iterdir():
        (folder / file.name).symlink_to(file)


def sharded(folder: Path) -> None:
    tiny(folder)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    names: list[str] = sorted(weights)
    where: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        kept_here = {name: weights[name] for name in part}
        mx.save_safetensors(str(folder / file), kept_here)  # pyright: ignore[reportUnknownMemberType]
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def in_four_bits(folder: Path) -> None:
    vocabulary = json.loads((TINY / "config.json").read_text())["vocab_size"]
    packed = {"bits": 4, "group_size": 32}
    write_model(folder, {**MODELS["qwen3"], "vocab_size": vocabulary, "quantization": packed})
    for file in TINY.iterdir():
        if file.suffix in (".json", ".jinja") and file.name not in MADE_FOR_IT:
            shutil.copy(file, folder / file.name)


def with_adapter(folder: Path) -> None:
    draw_adapter(tiny(folder), folder / "adapters" / "one", seed=1)


def carded(text: str) -> Callable[[Path], None]:
    """Return what makes a copy of the bundled model with a card that says this."""

    def make(folder: Path) -> None:
        (tiny(folder) / "card.toml").write_text(text)

    return make


@dataclass(frozen=True)
class Good:
    """A model that is taken: what makes it, and the names that it answers to."""

    make: Callable[[Path], Any]
    asked: tuple[str, ...]
    folder: str = ""
    vectors: bool = False
    cached: bool = False


GOOD = {
    "a copy": Good(tiny, ("copy",), "copy"),
    "below an owner": Good(tiny, ("someone/owned", "owned"), "someone/owned"),
    "an odd name": Good(tiny, ("grosse-kopie",), "größe kopie"),
    "a folder that is a link": Good(linked_folder, ("link",), "link"),
    "files that are links": Good(linked_files, ("links",), "links"),
    "in shards": Good(sharded, ("sharded",), "sharded"),
    "in 4 bits": Good(in_four_bits, ("four-bits",), "four-bits"),
    "with an adapter": Good(with_adapter, ("adaptable", "adaptable:one"), "adaptable"),
    "a card with an alias": Good(carded("aliases = ['brisk']\n"), ("carded", "brisk"), "carded"),
    "in Hugging Face's cache": Good(tiny, ("them/cached",), cached=True),
    "an embedding model": Good(write_encoder, ("encoder",), "encoder", vectors=True),
    "a card that is refused": Good(
        carded("aliases = ['swift', 'rapid']\ncontext_token = 5\n"), ("misnoted",), "misnoted"
    ),
    "a card that is no TOML": Good(
        carded("aliases = ['torn']\nsystem = 'Be\n"), ("unreadable",), "unreadable"
    ),
}
OF_REFUSED_CARDS = {"swift": "misnoted", "rapid": "misnoted", "torn": "unreadable"}
BROKEN = {kind: make for kind, (make, _) in KINDS.items() if kind != "shoal-tiny"}
WAYS_IN = {"an odd name.gguf": "an-odd-name"}
"""How what has a name that no request can say is asked for."""


def place(node: Node, good: Good) -> None:
    if good.cached:
        snapshots = node.home / "hub" / "models--them--cached" / "snapshots"
        snapshots.mkdir(parents=True)
        good.make(snapshots / "abc")
        return
    folder = node.home / "data" / "models" / good.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    good.make(folder)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node(SHOAL_PRELOAD="")
    node.env["HF_HUB_CACHE"] = str(node.home / "hub")
    models = node.home / "data" / "models"
    models.mkdir(parents=True)
    for kind, make in BROKEN.items():
        (models / kind).parent.mkdir(parents=True, exist_ok=True)
        make(models / kind)
    for good in GOOD.values():
        place(node, good)
    try:
        node.up()
        yield node
    finally:
        node.close()


def settled(node: Node) -> dict[str, Any]:
    """Return what `shoal ls` says once all good models are among what it lists."""
    folders = {name for good in GOOD.values() for name in good.asked[:1]}
    return answered(
        lambda: json.loads(node.shoal("ls", "--json").stdout),
        lambda said: folders <= {one["model"] for one in said["models"]},
        "all that is good is listed",
        60,
    )


def test_what_is_no_model_has_one_reason_and_one_way_out_wherever_it_is_named(node: Node) -> None:
    settled(node)
    asked = {named(kind): WAYS_IN.get(kind, named(kind)) for kind in BROKEN}
    rows = rows_of_no_models(node, asked)
    assert len(rows) > 30
    kept(rows)


def test_names_of_a_refused_card_say_that_it_is_not_in_force_and_why(node: Node) -> None:
    said = {one["name"]: one for one in settled(node)["passed_over"] if one["taken"]}
    typed_words = typed(node, OF_REFUSED_CARDS)
    rows: list[Row] = []
    for alias, model in OF_REFUSED_CARDS.items():
        row = Row(f"{alias}, by {model}'s card", said[model]["why"], said[model]["remedy"])
        for verb in ("show", "load"):
            *words, end = typed_words[f"{verb} {alias}"]
            row.say(verb, end, " ".join(words))
            if end != "ends with 4" or "has no effect" not in " ".join(words):
                row.wrong.append(f"{verb} of {alias} {end}: {words}")
        ran = node.shoal("run", alias, "Hi.")
        row.say("run", f"ends with {ran.returncode}", ran.stdout + ran.stderr)
        told_by_dialects(node, row, alias)
        rows.append(row)
    kept(rows)
    card = node.home / "data" / "models" / "misnoted" / "card.toml"
    text = card.read_text()
    card.write_text("aliases = ['swift']\n")
    try:
        answered(
            lambda: ask(node, "chat completions", "swift"),
            lambda answer: answer.status_code == 200,
            "mended, its name is in force",
            60,
        )
    finally:
        card.write_text(text)
        node.shoal("stop", "misnoted")


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_one_is_listed_shown_loaded_and_answers_in_every_dialect(
    node: Node, kind: str
) -> None:
    good = GOOD[kind]
    model = good.asked[0]
    listed = {one["model"]: one for one in settled(node)["models"]}
    complaints = [line for line in remarks(node) if f"{listed[model]['path']}: " in line]
    rows: list[Row] = []
    for name in good.asked:
        row = Row(f"{kind}: {name}", cells={"ls": "listed", "doctor": f"{len(complaints)} lines"})
        for verb, said in typed(node, [name]).items():
            row.say(verb.partition(" ")[0], said[-1])
            if said[-1] != "ends with 0":
                row.wrong.append(f"{verb} of {kind}: {said}")
        for route in ROUTES:
            answer = ask(node, route, name)
            row.say(route, str(answer.status_code))
            is_right = (route in OF_VECTORS) == good.vectors
            if answer.status_code != (200 if is_right else 400):
                row.wrong.append(f"{route} of {name}: {answer.status_code} {answer.text}")
            elif not is_right and "does not support" not in message(answer):
                row.wrong.append(f"{route} of {name}: {answer.text}")
        rows.append(row)
    kept(rows)
    assert node.shoal("stop", model).returncode == 0
    eventually(lambda: not node.state()["instances"], 60, "it is unloaded")


def test_the_store_tells_of_what_is_good_and_of_nothing_else(node: Node) -> None:
    settled(node)
    folders = {good.asked[0]: good.folder for good in GOOD.values()}
    registered = {one["model"]: one for one in node.http.get("/store/registry").json()["models"]}
    assert set(registered) == {*folders, "shoal-tiny"}
    origins = {model: one["nodes"][0]["origin"] for model, one in registered.items()}
    assert (origins["copy"], origins["them/cached"]) == ("put", "cache")
    assert all(one["whole"] for found in registered.values() for one in found["nodes"])
    told = node.http.get("/store/models/someone/owned").json()
    folder = node.home / "data" / "models" / "someone" / "owned"
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert {one["path"]: one["size_bytes"] for one in told["files_here"]} == sizes
    assert {one["hash"] for one in told["files_here"]} == {""} and told["held"] == ""
    assert told["digest"] == registered["someone/owned"]["digest"]
    absent = node.http.get("/store/models/torch")
    assert absent.status_code == 404 and "pytorch_model.bin" in message(absent)
    health = node.http.get("/store/health").json()
    (mine,) = health["nodes"]
    assert mine["node"] == node.node_id() and mine["disk_free_bytes"] > 0
    assert mine["status"] == health["status"]
