"""What is said of each thing in a models folder that is none, wherever its name is used.

The table is recorded in `tests/processes/models_folder.txt`, paths and the node's name replaced;
`RECORD_MODELS_FOLDER=1 pytest tests/processes/test_models_folder.py` writes it anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.harness.folder_results import keep
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
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: DIALECTS[name] for name in DIALECTS if name != "ollama show"},
    "ollama embed": ("/api/embed", {"input": "Hi."}),
}
OF_VECTORS = ("embeddings", "ollama embed")
SHORT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"max_tokens": 4},
    "/v1/responses": {"max_output_tokens": 16},
    "/api/chat": {"stream": False, "options": {"num_predict": 4}},
}
"""What bounds an answer, by path."""


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


@dataclass
class Row:
    """What each says of one thing; `why` and `remedy` are what all have to say of a broken one."""

    thing: str
    why: str = ""
    remedy: str = ""
    cells: dict[str, str] = field(default_factory=dict[str, str])
    wrong: list[str] = field(default_factory=list[str])

    def say(self, where: str, cell: str, text: str = "") -> None:
        """Note what was said at a place, and whether the reason and the way out are in it."""
        plain = " ".join(text.split())
        for words in filter(None, (self.why, self.remedy)):
            if " ".join(words.split()) not in plain:
                self.wrong.append(f"{where} of {self.thing}: {words!r} is not in {plain!r}")
        self.cells[where] = cell


def kept(rows: Sequence[Row]) -> None:
    """Keep the rows for `make prove-table`; fail with what was wrong in any."""
    keep([{"thing": row.thing, "reason": row.why, **row.cells} for row in rows])
    wrong = [said for row in rows for said in row.wrong]
    assert not wrong, "\n".join(wrong)


def ask(node: Node, route: str, name: str) -> httpx.Response:
    path, body = ROUTES[route]
    return node.http.post(path, json={"model": name, **body, **SHORT.get(path, {})}, timeout=120)


def told_by_dialects(node: Node, row: Row, name: str, status: int = 404) -> None:
    """Note what each dialect says of what is no model."""
    for route in ROUTES:
        answer = ask(node, route, name)
        row.say(route, str(answer.status_code), message(answer))
        if answer.status_code != status:
            row.wrong.append(f"{route} of {row.thing}: {answer.status_code} {answer.text}")


def remarks(node: Node) -> list[str]:
    """Return each line in which `doctor` speaks of something on the disk."""
    checks = json.loads(node.shoal("doctor", "--json").stdout)["checks"]
    return [f"{one['level']}: {one['found']}; {one['remedy']}" for one in checks]


def rows_of_no_models(node: Node, asked: Mapping[str, str]) -> list[Row]:
    """Return a row of what each place says of entries of the models folder that are no model.
    `asked` maps an entry to the name by which it is asked for. All have to say the same."""
    models = node.home / "data" / "models"
    listing: Any = json.loads(node.shoal("ls", "--json").stdout)
    said = {one["path"]: one for one in listing["passed_over"] if not one["taken"]}
    listed = node.shoal("ls").stderr.splitlines()
    examined = remarks(node)
    typed_words = typed(node, asked.values())
    rows: list[Row] = []
    for entry, name in asked.items():
        folder = str(models / entry)
        row = Row(entry, said[folder]["why"], said[folder]["remedy"])
        lines = [line for line in listed if f": {folder} on " in line]
        row.say("ls", f"{len(lines)} line", " ".join(lines))
        lines = [line for line in examined if f"{folder}: " in line]
        row.say("doctor", " ".join(line.partition(":")[0] for line in lines), " ".join(lines))
        for verb in ("show", "load"):
            *words, end = typed_words[f"{verb} {name}"]
            row.say(verb, end, " ".join(words))
            if end != "ends with 4":
                row.wrong.append(f"{verb} of {entry} {end}: {words}")
        told_by_dialects(node, row, name)
        rows.append(row)
    return rows
