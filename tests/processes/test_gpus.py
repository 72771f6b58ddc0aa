"""A node with two GPUs that only its tools tell of: placed there, started there, and shown.

The tools are scripts. llama-server's script notes where it was to compute, and then computes on the
processor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conf.paths import LLAMA_PROGRAM
from tests.harness.llama_site import needs_program, tiny_gguf
from tests.harness.nodes import Node, answered, eventually, running_node

pytestmark = [pytest.mark.nodes, needs_program]
GGUF = "made/tiny-gguf"
SMI = """#!/bin/sh
case "$1" in *index*)
echo "0, GPU-a, 00000000:01:00.0, NVIDIA RTX 3090, 550.54.14, 24576, 500"
echo "1, GPU-b, 00000000:41:00.0, NVIDIA RTX 3090, 550.54.14, 24576, 20000";;
*) echo 24576;; esac
"""
SERVER = """#!/bin/sh
if [ "$1" = "--list-devices" ]; then
echo "Available devices:"
echo "  CUDA0: NVIDIA RTX 3090 (24135 MiB, 500 MiB free)"
echo "  CUDA1: NVIDIA RTX 3090 (24135 MiB, 20000 MiB free)"
exit 0; fi
echo "$CUDA_VISIBLE_DEVICES $*" > "{seen}"
exec "{python}" -P -m {module} "$@"
"""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    server = SERVER.format(seen=folder / "seen", python=sys.executable, module=LLAMA_PROGRAM)
    for name, text in (("nvidia-smi", SMI), ("llama-server", server)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def served(tools: Path) -> Iterator[Node]:
    path = f"{tools}:{os.environ['PATH']}"
    with running_node(PATH=path, SHOAL_PRELOAD="") as node:
        tiny_gguf(node.home / "data" / "models" / "made" / "tiny-gguf")
        yield node


def test_a_model_is_planned_for_a_gpu_started_there_and_shown(served: Node, tools: Path) -> None:
    def card() -> Any:
        cards = served.http.get("/state").json()["telemetry"]["cards"]
        return cards[0] if cards else {}

    there = answered(
        card, lambda card: "llamacpp-cuda" in card.get("backends", ()), "llama-server has GPUs"
    )
    assert [device["index"] for device in there["devices"]] == [0, 1]
    eventually(lambda: GGUF in served.shoal("ls").stdout, 30, "the model is listed")
    plan = served.http.post(
        "/place_instance", json={"model": GGUF, "dry_run": True, "context_tokens": 1024}
    ).json()["plan"]
    (rank,) = plan["ranks"]
    (share,) = rank["devices"]
    assert rank["backend"] == "llamacpp-cuda"
    assert share["index"] == 1, "nothing of GPU 0 may be used"
    assert rank["reserved_bytes"] - share["bytes_reserved"] == 256_000_000
    loaded = served.shoal("load", GGUF, "--context", "1024")
    assert loaded.returncode == 0, loaded.stderr
    assert served.chat("hi", model=GGUF, max_tokens=2).status_code == 200
    visible, *words = (tools / "seen").read_text().split()
    assert visible == "1"
    assert words[words.index("--device") + 1] == "CUDA0"
    assert int(words[words.index("--gpu-layers") + 1]) == share["layers"]
    shown = served.shoal("show", GGUF).stdout
    assert "on GPUs" in shown and "NVIDIA GPU 1" in shown
    listed = json.loads(served.shoal("nodes", "--json").stdout)
    assert [device["name"] for device in listed["nodes"][0]["devices"]] == ["NVIDIA RTX 3090"] * 2
    assert served.shoal("stop", GGUF).returncode == 0
