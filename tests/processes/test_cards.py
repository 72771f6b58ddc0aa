"""A model's card over two nodes: written at one, in force at both; and a hub that is searched."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.hub import Faults, HubServer
from tests.harness.nodes import ROOT, Node, answered, eventually
from tests.harness.shared_nodes import Stores
from tests.harness.typed_lines import examples

pytestmark = pytest.mark.nodes
M = "org/mine"
EDITORS = ("EDITOR", "VISUAL", "TMPDIR")


@pytest.fixture(scope="module")
def hub(shared_stores: Stores) -> Iterator[HubServer]:
    found = shared_stores.hub
    found.listed = {
        "mlx-community/Qwen3-0.6B-4bit": {
            "tags": ["mlx", "safetensors"], "library_name": "mlx", "downloads": 70,
            "config": {"model_type": "qwen3"},
            "safetensors": {"parameters": {"U32": 80_000}, "total": 80_000},
        },
        "org/Qwen3-GGUF": {"tags": ["gguf", "safetensors"], "pipeline_tag": "text-to-image"},
    }  # fmt: skip
    yield found
    found.listed = {}


@pytest.fixture(scope="module")
def nodes(shared_stores: Stores, hub: HubServer) -> Iterator[tuple[Node, Node]]:
    first, second = shared_stores.nodes
    folders = [shared_stores.shelf(node) / M for node in (first, second)]
    for folder in folders:
        left_out = shutil.ignore_patterns("make", "*.py", "card.toml")
        shutil.copytree(ROOT / "conf" / "tiny", folder, ignore=left_out)
    for node in (first, second):
        eventually(lambda node=node: knows_both(node), 120, "both nodes have the model")
    yield first, second
    for folder in folders:
        shutil.rmtree(folder)
    for node in (first, second):
        for name in EDITORS:
            node.env.pop(name, None)


def knows_both(node: Node) -> bool:
    """Whether all HTTP processes of a node know that both nodes have the model: each connection is
    one's that was free."""
    for _ in range(12):
        found = httpx.get(f"{node.url}/models/card/{M}", timeout=30)
        if found.status_code != 200 or len(found.json()["nodes"]) != 2:
            return False
    return True


def file_of(node: Node) -> Path:
    return Path(node.env["SHOAL_MODEL_FOLDERS"]) / M / "card.toml"


def knows(node: Node, name: str) -> bool:
    """Whether a request by this name finds its model at the node's process that is free."""
    found = httpx.get(f"{node.url}/v1/models/{name}", timeout=30)
    assert found.status_code in (200, 404), found.text
    return found.status_code == 200


def in_force(nodes: tuple[Node, Node], *, has: str = "", lacks: str = "") -> None:
    """Wait until each node goes by the card: each of its HTTP processes hears in its own time."""
    for node in nodes:
        if has:
            eventually(lambda node=node: knows(node, has), 60, f"{has} is a name")
        if lacks:
            eventually(lambda node=node: not knows(node, lacks), 60, f"{lacks} is no name")


def editor(tmp_path: Path, text: str) -> dict[str, str]:
    """An environment whose editor writes this."""
    script = tmp_path / "editor.py"
    script.write_text(f"import sys\nopen(sys.argv[1], 'w').write({text!r})\n")
    return {"EDITOR": f"{sys.executable} {script}", "VISUAL": "", "TMPDIR": str(tmp_path)}


def test_a_card_that_is_edited_at_one_node_is_in_force_at_both(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    first, second = nodes
    made = first.shoal("card", "add", M, 'aliases=["swift"]', "temperature=0")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "first" in made.stdout and "second" in made.stdout
    assert file_of(first).read_text() == file_of(second).read_text()
    in_force(nodes, has="swift")
    first.env |= editor(tmp_path, 'aliases = ["brisk"]  # mine\nsystem = "Be kind."\n')
    edited = first.shoal("card", "edit", M)
    assert edited.returncode == 0, edited.stdout + edited.stderr
    assert file_of(first).read_bytes() == file_of(second).read_bytes()
    assert file_of(first).stat().st_mtime_ns == file_of(second).stat().st_mtime_ns
    in_force(nodes, has="brisk", lacks="swift")
    for node in nodes:
        shown = answered(
            lambda node=node: node.shoal("card", "show", "brisk").stdout,
            lambda said: "Be kind. (card.toml)" in said,
            "the settings are those of the card",
            60,
        )
        assert "on first" in shown and "on second" in shown
        assert "# mine" in node.shoal("card", "export", M).stdout


def test_a_typo_is_refused_and_changes_nothing_on_either_node(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    first, second = nodes
    assert first.shoal("card", "add", M, "--from", "/dev/null", "--replace").returncode == 0
    second.env |= editor(tmp_path, "pin = false\ntemprature = 1\n")
    refused = second.shoal("card", "edit", M)
    assert refused.returncode == 2, refused.stdout
    assert "line 2" in refused.stderr and "did you mean temperature?" in refused.stderr
    over_http = first.http.put(f"/models/card/{M}", content=b"num_ctx = 5\n")
    assert over_http.status_code == 400 and "context_tokens" in over_http.text
    assert file_of(first).read_bytes() == file_of(second).read_bytes() == b""


def test_a_card_is_taken_away_from_both_nodes(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    said = second.http.put(f"/models/card/{M}", json={"aliases": ["gone"]})
    assert said.status_code == 200 and said.json()["in_force"], said.text
    in_force(nodes, has="gone")
    gone = second.shoal("card", "rm", M, "--yes")
    assert gone.returncode == 0, gone.stderr
    assert not file_of(first).exists() and not file_of(second).exists()
    in_force(nodes, lacks="gone")
    assert first.shoal("card", "export", M).returncode == 4
    bundled = first.shoal("card", "add", "shoal-tiny", "pin=true")
    assert bundled.returncode == 5 and "are part of shoal" in bundled.stderr, bundled.stderr


@pytest.mark.parametrize("line", examples("card"))
def test_each_line_of_the_page_about_cards_runs_as_printed(
    nodes: tuple[Node, Node], tmp_path: Path, line: str
) -> None:
    first, _ = nodes
    first.http.delete(f"/models/card/{M}")
    if any(verb in line for verb in (" export", " rm", " edit")):
        assert first.http.put(f"/models/card/{M}", content=b"pin = false\n").status_code == 200
    first.env |= editor(tmp_path, 'system = "Be brief."\n')
    (tmp_path / "mine.toml").write_text("temperature = 0.5\n")
    words = shlex.split(line.replace("MODEL", M).replace("mine.toml", str(tmp_path / "mine.toml")))
    found = first.shoal(*words[1:])
    assert found.returncode == 0, found.stdout + found.stderr
    assert M in found.stdout or "pin" in found.stdout


@pytest.mark.proof
def test_a_hub_is_searched_and_what_is_here_is_told(
    nodes: tuple[Node, Node], hub: HubServer
) -> None:
    first, _ = nodes
    hub.faults = Faults()
    found = first.shoal("search", "qwen3")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "mlx-community/Qwen3-0.6B-4bit" in found.stdout and "320.0 kB" in found.stdout
    assert "org/Qwen3-GGUF" not in found.stdout and "1 more match does not run here" in found.stderr
    hub.listed[M] = {"tags": ["mlx"], "downloads": 1}
    told = json.loads(first.shoal("search", "mine", "--author", "org", "--json").stdout)
    assert [(one["model"], one["here"]) for one in told["models"]] == [(M, ["first", "second"])]
    hub.faults = Faults(search_status=429, retry_after="30")
    busy = first.http.get("/models/search?query=qwen3")
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "30"), busy.text
    typed = first.shoal("search", "qwen3")
    assert typed.returncode == 5 and "limits the rate" in typed.stderr


@pytest.mark.parametrize("line", examples("search"))
def test_each_line_of_the_page_about_searching_runs_as_printed(
    nodes: tuple[Node, Node], hub: HubServer, line: str
) -> None:
    hub.faults = Faults()
    found = nodes[0].shoal(*shlex.split(line)[1:])
    assert found.returncode == 0 and "Qwen3" in found.stdout, found.stdout + found.stderr
