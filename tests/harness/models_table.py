"""What is said of each thing in a models folder that is none, wherever its name is used.

The table is recorded in `tests/processes/models_folder.txt`, paths and the node's name replaced;
`RECORD_MODELS_FOLDER=1 pytest tests/processes/test_models_folder.py` writes it anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator

import httpx

from tests.harness.nodes import ROOT, Node

RECORDED = ROOT / "tests" / "processes" / "models_folder.txt"
TURNS = [{"role": "user", "content": "Hi."}]
DIALECTS: dict[str, tuple[str, dict[str, object]]] = {
    "chat completions": ("/v1/chat/completions", {"messages": TURNS}),
    "responses": ("/v1/responses", {"input": "Hi."}),
    "anthropic": ("/v1/messages", {"messages": TURNS, "max_tokens": 5}),
    "ollama chat": ("/api/chat", {"messages": TURNS}),
    "ollama show": ("/api/show", {}),
    "embeddings": ("/v1/embeddings", {"input": "Hi."}),
}


def table(node: Node, kinds: Collection[str], named: Callable[[str], str]) -> str:
    """Return what each place says of each kind, by kind; `named` is what is asked for."""
    listed = node.shoal("ls").stderr.splitlines()
    examined = json.loads(node.shoal("doctor", "--json").stdout)["checks"]
    told = typed(node, map(named, kinds))
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
            lines += [f"  {verb}: {line}" for line in told[f"{verb} {named(kind)}"]]
        lines += [f"  {dialect}: {said}" for dialect, said in _asked(node, named(kind))]
    return "\n".join(lines[1:]) + "\n"


TYPED = """
import json, sys
from typer.testing import CliRunner
from gateway.cli.app import app
home, names = sys.argv[1], sys.argv[2:]
said = {}
for name in names:
    for verb in ("show", "load"):
        done = CliRunner().invoke(app, [verb, name, "--home", home])
        said[f"{verb} {name}"] = [*done.stderr.splitlines(), f"ends with {done.exit_code}"]
print(json.dumps(said))
"""


def typed(node: Node, names: Iterable[str]) -> dict[str, list[str]]:
    """Return what `show` and `load` say of each name, by `VERB NAME`; all in one process."""
    words = [sys.executable, "-P", "-c", TYPED, str(node.home), *names]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "2000", "NO_COLOR": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=480, check=True)
    return json.loads(done.stdout)


def _asked(node: Node, name: str) -> Iterator[tuple[str, str]]:
    for dialect, (path, body) in DIALECTS.items():
        answer = node.http.post(path, json={"model": name, **body})
        yield dialect, f"{answer.status_code} {message(answer)}"


def message(answer: httpx.Response) -> str:
    """Return what an error of any dialect says."""
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]
