"""What is said of each thing in a models folder that is none, wherever its name is used.

The table is recorded in `models_folder.txt`, paths and the node's name replaced;
`RECORD_MODELS_FOLDER=1 pytest tests/inspection/test_models_folder.py` writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx
from typer.testing import CliRunner

from gateway.cli.app import app
from tests.harness.nodes import Node

RECORDED = Path(__file__).with_name("models_folder.txt")
TURNS = [{"role": "user", "content": "Hi."}]
DIALECTS: dict[str, tuple[str, dict[str, object]]] = {
    "chat completions": ("/v1/chat/completions", {"messages": TURNS}),
    "responses": ("/v1/responses", {"input": "Hi."}),
    "anthropic": ("/v1/messages", {"messages": TURNS, "max_tokens": 5}),
    "ollama chat": ("/api/chat", {"messages": TURNS}),
    "ollama show": ("/api/show", {}),
    "embeddings": ("/v1/embeddings", {"input": "Hi."}),
}


def table(node: Node, kinds: Iterable[str], named: Callable[[str], str]) -> str:
    """Return what each place says of each kind, by kind; `named` is what is asked for."""
    listed = node.shoal("ls").stderr.splitlines()
    examined = json.loads(node.shoal("doctor", "--json").stdout)["checks"]
    lines: list[str] = []
    for kind in sorted(kinds):
        folder = f"{node.home / 'data' / 'models' / named(kind)}"
        lines += ["", kind]
        lines += [f"  ls: {line}" for line in listed if f": {folder} on " in line]
        lines += [
            f"  doctor: {one['level']}: {one['found']}; {one['remedy']}".removesuffix("; ")
            for one in examined
            if one["found"].startswith(f"{folder}: ")
        ]
        for verb in ("show", "load"):
            lines += [f"  {verb}: {line}" for line in _typed(node, verb, named(kind))]
        lines += [f"  {dialect}: {said}" for dialect, said in _asked(node, named(kind))]
    return "\n".join(lines[1:]) + "\n"


def _typed(node: Node, verb: str, name: str) -> list[str]:
    """Return the lines that a verb of the command line says."""
    words = [verb, name, "--home", str(node.home)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "2000", "NO_COLOR": "1"})
    return [*done.stderr.splitlines(), f"ends with {done.exit_code}"]


def _asked(node: Node, name: str) -> Iterator[tuple[str, str]]:
    for dialect, (path, body) in DIALECTS.items():
        answer = node.http.post(path, json={"model": name, **body})
        yield dialect, f"{answer.status_code} {_message(answer)}"


def _message(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]
