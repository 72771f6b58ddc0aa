"""What was acknowledged stays, and what a disk lost is said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.nodes import Node, answered, eventually, running_node

pytestmark = pytest.mark.proof

RENAMED = 12


@pytest.fixture(scope="module")
def lone() -> Iterator[Node]:
    """Start a node of its own, whose journal may be spoilt."""
    with running_node() as made:
        yield made


def rename(node: Node, name: str) -> None:
    """Have one more event in the journal."""
    answer = node.http.post(f"/node/{node.node_id()}/rename", json={"name": name})
    assert answer.status_code == 200, answer.text


def name_of(node: Node) -> str:
    """Return what the node is called in the cluster's state."""
    return node.state()["nodes"].get(node.node_id(), {}).get("name", "")


def places(data: bytes) -> dict[str, int]:
    """Return bytes of the journal to flip a bit of: in an event that others follow, in the length
    of one, in the last event."""
    found = [match.start() for match in re.finditer(rb"\x81\xa5event", data)]
    return {"within": found[-6] + 20, "length": found[-6] - 8, "last": found[-1] + 20}


@pytest.mark.parametrize("place", ["within", "length", "last"])
def test_a_flipped_bit_in_the_journal_is_named_and_its_file_kept(lone: Node, place: str) -> None:
    names = [f"{place}-{number}" for number in range(RENAMED)]
    for name in names:
        rename(lone, name)
    lone.down()
    journal = lone.home / "state" / "journal"
    spoilt = bytearray((journal / "events.log").read_bytes())
    spoilt[places(bytes(spoilt))[place]] ^= 0x10
    (journal / "events.log").write_bytes(spoilt)
    lone.up()
    kept = [path for path in files_of(journal) if path.read_bytes() == spoilt]
    assert kept, f"no file of {[path.name for path in files_of(journal)]} is the damaged one"
    critical = [line for line in lone.log_lines("master") if line["level"] == "critical"]
    assert critical and re.fullmatch(r"\d+ .*", critical[-1]["lost"]), critical

    def said() -> bool:
        return f"events {critical[-1]['lost']} are lost" in lone.shoal("status").stdout

    eventually(said, 30, "status names the events that are lost")
    known = answered(lambda: name_of(lone), bool, "what is left of the log is read")
    assert known in names, "nothing is invented"
    rename(lone, f"after-{place}")
    eventually(lambda: name_of(lone) == f"after-{place}", 30, "the state has the new name")
    for path in kept:
        path.unlink()


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder."""
    return sorted(path for path in folder.iterdir() if path.is_file())
