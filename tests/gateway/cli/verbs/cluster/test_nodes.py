"""`shoal nodes` and the arguments of `shoal lab`, as they are typed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.wire.accelerators import AcceleratorReading, HardwareReading
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.messages.readings import LinkReading, MeasuredLink
from bus.wire.topology import NodeAddress
from gateway.cli.app import app
from gateway.cli.node.measured_links import in_a_line, links_of
from gateway.cli.node.node_state import parse_state
from gateway.cli.verbs.node.lab import is_formed
from tests.harness.node_server import NODE, card, serving, state


def cluster_state() -> dict[str, Any]:
    """One node, linked with one peer, having lost another, and dialling a stranger."""
    found = state([card("shoal-tiny", Path("/elsewhere"), bundled=True)], [])
    peers = (
        PeerReading(
            node=NodeId("n-mini"), name="mini", status="linked", host="10.0.0.2", found_by="mdns"
        ),
        PeerReading(node=NodeId("n-old"), name="old", status="silent", silent_s=90.0),
    )
    reading = PeersReading(node=NODE, peers=peers, strangers=("10.0.0.9:24154: no answer",))
    found["telemetry"]["peers"] = {NODE: reading.model_dump(mode="json")}
    ways = tuple(
        MeasuredLink(
            peer=NodeId("n-mini"), host=host, latency_s=us * 1e-6, bytes_per_s=rate, at_least=more
        )
        for host, us, rate, more in (("10.0.0.2", 130, 0.1e9, False), ("10.0.1.2", 40, 0.4e9, True))
    )
    links = LinkReading(node=NODE, links=ways, measured_at_s=0.0)
    found["telemetry"]["links"] = {NODE: links.model_dump(mode="json")}
    mine = found["telemetry"]["cards"][0]
    address = NodeAddress(ip="10.0.0.2", medium="ethernet").model_dump(mode="json")
    there = {"node": "n-mini", "name": "mini", "models": [], "ips": [address]}
    found["telemetry"]["cards"].append({**mine, **there})
    return found


def sensed_state() -> dict[str, Any]:
    """The same, of which one node tells of an accelerator, and the peer of none."""
    found = cluster_state()
    card = AcceleratorReading(
        vendor="apple",
        device="AGX",
        name="Apple M4",
        utilisation_ratio=0.21,
        gtt_used_bytes=351_000_000,
    )
    readings = (
        HardwareReading(node=NODE, accelerators=(card,), cpu_power_w=9.0, measured_at_s=0.0),
        HardwareReading(node=NodeId("n-mini"), measured_at_s=0.0),
    )
    found["telemetry"]["hardware"] = {one.node: one.model_dump(mode="json") for one in readings}
    return found


def run(*words: str, status: int = 200) -> tuple[int, str, list[tuple[str, str, Any]]]:
    asked: list[tuple[str, str, Any]] = []

    def answer(method: str, path: str, body: dict[str, Any]) -> Any:
        asked.append((method, path, body))
        if path == "/state":
            return 200, sensed_state()
        return status, {"term": 1, "index": 7, "durability": "local"}

    with serving(answer) as url:
        result = CliRunner().invoke(app, [*words, "--url", url], env={"COLUMNS": "200"})
    return result.exit_code, result.output, asked


def test_nodes_shows_who_is_linked_who_is_not_and_who_was_dialled_in_vain() -> None:
    code, output, _ = run("nodes")
    assert code == 0
    assert "this node" in output
    assert "10.0.0.2" in output
    assert "silent for 1 min" in output or "silent for 90 s" in output
    assert "no node of this cluster answers at 10.0.0.9:24154" in output
    head, *lines = output.splitlines()
    (mini,) = (line for line in lines if line.startswith("mini"))
    under = {
        "link": "linked ", "measured": "130 us, 100.0 MB/s", "discovered by": "mdns ",
    }  # fmt: skip
    for column, said in under.items():
        assert mini[head.index(column) :].startswith(said)
    holder = next(line for line in lines if "leader" in line)
    assert holder[head.index("term") :].startswith("leader ")
    assert holder[head.index("health") :].startswith("ok ")


def test_nodes_in_json_names_links_and_holder() -> None:
    code, output, _ = run("nodes", "--json")
    assert code == 0
    said = json.loads(output)
    links = {one["name"]: one["link"] for one in said["nodes"]}
    assert links == {"desk": "this node", "mini": "linked", "old": "silent"}
    mini = next(one for one in said["nodes"] if one["name"] == "mini")
    assert mini["found_by"] == "mdns"
    assert [(one["host"], one["at_least"]) for one in mini["measured"]] == [
        ("10.0.0.2", False),
        ("10.0.1.2", True),
    ]
    assert said["holder"] == NODE
    hardware = {one["name"]: one["hardware"] for one in said["nodes"]}
    assert hardware["desk"]["accelerators"][0]["utilisation_ratio"] == 0.21
    assert (hardware["mini"]["accelerators"], hardware["old"]) == ([], None)


def test_nodes_shows_what_accelerators_tell_and_what_is_unknown() -> None:
    _, output, _ = run("nodes")
    head, *lines = output.splitlines()
    under = {"desk": "21% busy, 351.0 MB ", "mini": "unknown ", "old": "unknown "}
    for name, said in under.items():
        (line,) = (line for line in lines if line.startswith(name))
        assert line[head.index("accelerators") :].startswith(said)


def test_status_tells_the_hardware_of_the_node_asked_in_one_line() -> None:
    code, output, _ = run("status")
    assert code == 0
    told = "Apple M4: 21% busy, 351.0 MB, power, temperature unknown; processor: 9 W"
    assert f"hardware: {told}" in output.splitlines()
    code, output, _ = run("status", "--json")
    assert json.loads(output)["hardware"]["cpu_power_w"] == 9.0


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (("rename", "mini", "studio"), "/node/mini/rename", {"name": "studio"}),
        (("drain", "mini", "--drain", "5"), "/node/mini/drain", {"drain_s": 5.0}),
        (("undrain", "mini"), "/node/mini/undrain", {}),
        (("forget", "a b"), "/node/a%20b/forget", {}),
        (("remember", "mini"), "/node/mini/remember", {}),
    ],
)
def test_each_change_is_one_question(words: tuple[str, ...], path: str, body: Any) -> None:
    code, _, asked = run("nodes", *words)
    assert code == 0
    assert asked == [("POST", path, body)]


@pytest.mark.parametrize(
    "words", [("restart", "mini"), ("rename", "mini"), ("drain",), ("forget", "mini", "extra")]
)
def test_a_wrong_change_asks_nothing_and_says_how(words: tuple[str, ...]) -> None:
    code, output, asked = run("nodes", *words)
    assert code == 2
    assert asked == []
    assert "takes NODE" in output or "unknown action" in output


@pytest.mark.parametrize("words", [("1",), ("17",), ("three",), ("3", "--base-port", "32600")])
def test_a_lab_of_the_wrong_size_or_place_is_refused(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, ["lab", *words, "--home", str(tmp_path)])
    assert result.exit_code == 1
    assert not (tmp_path / "data" / "lab").exists()


def test_without_a_lab_down_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["lab", "down", "--home", str(tmp_path)])
    assert result.exit_code == 0
    assert "no lab is running" in result.output


def test_a_cluster_has_formed_when_all_know_one_holder_and_each_other() -> None:
    one = parse_state(cluster_state())
    assert not is_formed([one, None])
    assert not is_formed([one, one]), "the state knows too few nodes"


def test_status_tells_each_link_with_its_kind_and_how_old_what_was_measured_is() -> None:
    code, output, _ = run("status")
    assert code == 0
    (mini,) = (line for line in output.splitlines() if line.startswith("link to mini"))
    assert re.fullmatch(
        r"link to mini: Ethernet, 10\.0\.0\.2; 130 us \(\d+ d ago\), 100\.0 MB/s \(\d+ d ago\)",
        mini,
    ), mini
    assert "link to old: silent for 90 s" in output
    links = {one["name"]: one for one in json.loads(run("status", "--json")[1])["links"]}
    assert (links["mini"]["kind"], links["mini"]["latency_s"]) == ("ethernet", 130e-6)
    assert links["mini"]["latency_age_s"] > 1e9 < links["mini"]["age_s"], "told in 1970"
    assert (links["old"]["status"], links["old"]["latency_s"]) == ("silent", None)


def test_a_link_is_told_with_its_age_or_with_why_it_was_not_measured() -> None:
    found = cluster_state()
    links = found["telemetry"]["links"][NODE]
    links["measured_at_s"] = 1000.0
    for one in links["links"]:
        one |= {"age_s": 30.0, "latency_age_s": 3.0}
    (told, _) = links_of(parse_state(found), 1005.0)
    assert in_a_line(told) == (
        "link to mini: Ethernet, 10.0.0.2; 130 us (8 s ago), 100.0 MB/s (35 s ago)"
    )
    links |= {"links": [], "latency_every_s": 10.0}
    links["resting"] = [{"peer": "n-mini", "why": "busy_there"}]
    (told, _) = links_of(parse_state(found), 1005.0)
    assert in_a_line(told).endswith("; not measured (not while that node is busy)")
