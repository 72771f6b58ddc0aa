"""Clients of a real node that ask again as soon as they were answered, and models to ask for."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.harness.llama_site import tiny_gguf
from tests.harness.nodes import ROOT, Node, eventually


def tiny_models(folder: Path, names: Iterable[str], context_tokens: int = 0) -> str:
    """Copy the bundled model once for each name, with a longer context where one is given; return
    the folder as settings name it."""
    left_out = shutil.ignore_patterns("make", "*.py", "__pycache__")
    for name in names:
        made = folder / name
        shutil.copytree(ROOT / "conf" / "tiny", made, ignore=left_out)
        if context_tokens:
            file = made / "config.json"
            changed = {**json.loads(file.read_text()), "max_position_embeddings": context_tokens}
            file.write_text(json.dumps(changed))
            card = made / "card.toml"
            lines = card.read_text().splitlines(keepends=True)
            card.write_text("".join(one for one in lines if not one.startswith("context_tokens")))
    return str(folder)


def models_of_engines(folder: Path, engines: Mapping[str, str]) -> str:
    """Make the bundled model once for each name, for its engine ("mlx" or "gguf"), each with a
    card; return the folder as settings name it."""
    for name, engine in engines.items():
        if engine == "mlx":
            tiny_models(folder, [name])
        else:
            (folder / name).mkdir(parents=True)
            tiny_gguf(folder / name)
            (folder / name / "card.toml").write_text("")
    return str(folder)


def ask(node: Node, model: str, seconds: float = 120.0, **fields: Any) -> httpx.Response:
    """Ask for eight tokens, or for what the fields say."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    body |= {"ignore_eos": True, **fields}
    return httpx.post(f"{node.url}/v1/chat/completions", json=body, timeout=seconds)


def held(node: Node) -> dict[str, dict[str, Any]]:
    """The copies that there are, by model."""
    return {one["model"]: one for one in node.state()["instances"].values()}


def loads(node: Node) -> set[str]:
    """The ids of the copies that there are."""
    return set(node.state()["instances"])


class Loop(threading.Thread):
    """A client that asks again as soon as it was answered."""

    def __init__(self, node: Node, model: str, **fields: Any) -> None:
        super().__init__(daemon=True)
        self.node, self.model, self.fields = node, model, fields
        self.over = threading.Event()
        self.answers: list[httpx.Response] = []

    def run(self) -> None:
        while not self.over.is_set():
            self.answers.append(ask(self.node, self.model, **self.fields))


@contextmanager
def looping(node: Node, model: str, **fields: Any) -> Iterator[Loop]:
    """Have a client ask for as long as the block lasts; all that it asked is answered."""
    loop = Loop(node, model, **fields)
    loop.start()
    try:
        eventually(lambda: loop.answers, 90, f"{model} is answered")
        yield loop
    finally:
        loop.over.set()
        loop.join(120)
    assert all(one.status_code == 200 for one in loop.answers), "nothing is killed"
