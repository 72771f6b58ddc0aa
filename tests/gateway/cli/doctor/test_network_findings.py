"""What lies between a node and its peers, on real loopback sockets where there are any."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.links.cluster_key import ClusterKeys, KeyFiles
from bus.links.keyring import new_key, open_keyring, write_keys
from bus.links.transport import Link
from bus.membership.peer_table import same_id_words
from bus.process.logs import Log
from bus.wire.ids import NodeId
from bus.wire.messages.peers import PeerReading, PeersReading
from bus.wire.topology import NodeAddress
from conf.settings import load_settings
from gateway.cli.app import app
from gateway.cli.doctor.check import Finding
from gateway.cli.doctor.network_checks import (
    addresses_to_dial,
    dial,
    network_checks,
    own_addresses,
    refused_peers,
)
from gateway.cli.doctor.network_findings import (
    PeerLook,
    clock_check,
    door_check,
    key_check,
    mechanism,
    peer_check,
    reach_check,
    refused_check,
)
from gateway.cli.node.node_state import NodeState, parse_state
from tests.harness.node_server import NODE, state

HOME = NodeAddress(ip="127.0.0.1", medium="loopback")
WIRE = NodeAddress(ip="10.0.0.1", medium="thunderbolt")
AIR = NodeAddress(ip="192.168.1.5", medium="wifi")
CURVE = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\x00") + bytes(32)
NULL = CURVE.replace(b"CURVE", b"NULL\x00")


def told(check: Finding) -> tuple[str, str]:
    """Level, and all words. A remedy is there exactly when something is amiss."""
    assert bool(check.remedy) == (check.level != "ok")
    return check.level, f"{check.found} {check.remedy}"


@pytest.mark.parametrize(
    ("listen", "peers", "addresses", "level", "words"),
    [
        ("127.0.0.1", (), (HOME, WIRE), "ok", "other machines cannot reach this node"),
        ("127.0.0.1", ("127.0.0.1:1",), (HOME,), "ok", "other machines cannot"),
        (
            "127.0.0.1",
            ("studio.local:1",),
            (HOME, WIRE),
            "warn",
            ("which studio.local:1 cannot reach"),
        ),
        ("", (), (WIRE,), "ok", "other nodes cannot join"),
        ("0.0.0.0", (), (HOME, AIR, WIRE), "ok", "10.0.0.1 (thunderbolt), 192.168.1.5 (wifi)"),
        ("10.0.0.1", (), (HOME, WIRE), "ok", "listens at 10.0.0.1"),
        ("10.0.0.9", (), (HOME, WIRE), "error", "10.0.0.9 is not an address of this machine"),
        ("studio.local", (), (WIRE,), "ok", "listens at studio.local"),
        ("0.0.0.0", (), (HOME,), "warn", "only a loopback address"),
    ],
)
def test_where_a_node_can_be_reached_is_said(
    listen: str, peers: tuple[str, ...], addresses: Any, level: str, words: str
) -> None:
    found = told(reach_check(listen, peers, addresses))
    assert found[0] == level and words in found[1]


def test_a_key_is_needed_beyond_this_machine_alone() -> None:
    keys = ClusterKeys(new_key())
    assert told(key_check(None, "", beyond=False))[0] == "ok"
    assert told(key_check(None, "", beyond=True))[0] == "error"
    assert told(key_check(None, "mode 0644", beyond=False))[0] == "error"
    assert keys.current.fingerprint in told(key_check(keys, "", beyond=True))[1]
    assert told(key_check(keys.prepare(new_key()), "", beyond=True))[0] == "warn"


LOOK = PeerLook("10.0.0.2:24154", linked=False)


@pytest.mark.parametrize(
    ("look", "has_key", "macos", "level", "words"),
    [
        ({"linked": True}, True, False, "ok", "linked"),
        ({"greeting": CURVE}, True, False, "ok", "CURVE"),
        ({"greeting": NULL}, False, False, "ok", "NULL"),
        ({"greeting": CURVE, "address": "127.0.0.1:1"}, False, False, "ok", "CURVE"),
        (
            {"greeting": CURVE, "address": "127.0.0.1:1", "problem": "no answer"},
            False,
            False,
            "error",
            "this machine's key",
        ),
        ({"greeting": CURVE}, False, False, "error", "`shoal keys join` with that"),
        ({"greeting": NULL}, True, False, "error", "`shoal keys join` there"),
        ({"greeting": b"HTTP/1.1 400"}, True, False, "error", "not a shoal node"),
        ({"greeting": CURVE, "problem": "no answer"}, True, False, "error", "fingerprints"),
        ({"greeting": NULL, "problem": "no answer"}, False, False, "error", "does not answer"),
        ({"greeting": CURVE, "problem": "cluster 'x'"}, True, False, "error", "rejects this node"),
        ({"outcome": "closed"}, True, False, "error", "nothing listens"),
        ({"outcome": "unknown", "why": "no name"}, True, False, "error", "no such host"),
        ({"outcome": "silent", "why": "timed out"}, True, True, "error", "firewall"),
        ({"outcome": "unreachable", "why": "No route"}, True, False, "error", "firewall"),
        ({"outcome": "unreachable", "why": "No route"}, True, True, "error", "Local Network"),
    ],
)
def test_each_way_in_which_a_peer_is_missed_has_its_own_way_out(
    look: dict[str, Any], has_key: bool, macos: bool, level: str, words: str
) -> None:
    found = told(peer_check(dataclasses.replace(LOOK, **look), has_key=has_key, macos=macos))
    assert found[0] == level and words in found[1]


def peer(name: str, **more: Any) -> PeerReading:
    return PeerReading(node=NodeId(f"n-{name}"), name=name, status="linked", **more)


def test_a_clock_is_off_when_the_round_trip_does_not_explain_it() -> None:
    assert clock_check([peer("a")]) is None
    near = clock_check([peer("a", clock_offset_s=-0.9, round_trip_s=0.1)])
    assert near is not None and near.level == "ok"
    slow = clock_check([peer("a", clock_offset_s=1.4, round_trip_s=1.0)])
    assert slow is not None and slow.level == "ok"
    off = clock_check([peer("a", clock_offset_s=-61.0), peer("b", clock_offset_s=0.0)])
    assert off is not None
    assert told(off)[0] == "warn" and "a is 61.0 s behind" in off.found and "b is" not in off.found


def test_only_a_linked_peers_clock_counts() -> None:
    lost = peer("a", clock_offset_s=99.0).model_copy(update={"status": "silent"})
    assert clock_check([lost]) is None


@pytest.mark.parametrize(
    "greeting", [b"", b"\xff" * 9, b"HTTP/1.1 400 Bad Request\r\n" * 3, CURVE[:31]]
)
def test_what_is_no_greeting_names_no_mechanism(greeting: bytes) -> None:
    assert mechanism(greeting) is None


def quiet() -> Log:
    return Log(process="test", node="n", level="critical")


@pytest.fixture
def open_link() -> Iterator[Callable[[Path | None], str]]:
    """A ROUTER on loopback, with a cluster's key or without; gives its `host:port`."""
    links: list[Link] = []

    def bind(keys: Path | None) -> str:
        ring = None
        if keys is not None:
            files = KeyFiles(keys, keys.with_name("known"))
            ring = open_keyring(files, node=NodeId("n"), log=quiet())
        link = Link("router", security=None if ring is None else ring.door)
        links.append(link)
        return link.bind("tcp://127.0.0.1:*").removeprefix("tcp://")

    yield bind
    for link in links:
        link.close()


def test_a_node_says_by_its_greeting_whether_it_has_a_key(
    open_link: Callable[[Path | None], str], tmp_path: Path
) -> None:
    write_keys(tmp_path / "key", ClusterKeys(new_key()), replace=False)
    assert mechanism(dial(open_link(None)).greeting) == "NULL"
    assert mechanism(dial(open_link(tmp_path / "key")).greeting) == "CURVE"


def test_a_port_where_nobody_listens_and_a_name_that_is_none_are_told_apart() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert dial(f"127.0.0.1:{port}").outcome == "closed"
    assert dial("no-such-host.invalid:1").outcome == "unknown"


def test_somebody_else_at_the_port_is_no_node() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        look = dial(f"127.0.0.1:{server.getsockname()[1]}")
    assert look.outcome == "open" and mechanism(look.greeting) is None
    assert "not a shoal node" in peer_check(look, has_key=False, macos=False).found


def test_a_door_that_is_not_this_nodes_is_an_error_whatever_answers_there() -> None:
    assert told(door_check("127.0.0.1:24154", {}))[0] == "ok"
    level, words = told(door_check("127.0.0.1:24154", {"peers": "bus does not listen at 24154"}))
    assert level == "error" and "peers: bus does not listen" in words and "--base-port" in words


def test_this_machines_addresses_are_told_with_what_they_lie_on() -> None:
    assert NodeAddress(ip="127.0.0.1", medium="loopback", interface="lo") in [
        one.model_copy(update={"interface": "lo"}) for one in own_addresses()
    ]


def a_state(*peers: PeerReading, strangers: tuple[str, ...] = ()) -> NodeState:
    body = state([], [])
    reading = PeersReading(node=NODE, peers=peers, strangers=strangers)
    body["telemetry"]["peers"] = {NODE: reading.model_dump(mode="json")}
    return parse_state(body)


def test_what_is_dialled_is_looked_at_once() -> None:
    lost = peer("a", addresses=("a:1", "a:2")).model_copy(update={"status": "silent"})
    gone = peer("b", addresses=("b:1",)).model_copy(update={"status": "left"})
    reading = PeersReading(node=NODE, peers=(lost, gone), strangers=("s:1: no answer",))
    assert addresses_to_dial(("a:1", "c:1"), reading) == ["a:1", "c:1", "s:1"]
    assert addresses_to_dial(("c:1",), None) == ["c:1"]


def test_a_linked_node_whose_id_another_one_has_is_an_error() -> None:
    twin = peer("twin", why=same_id_words(NodeId("n-twin")))
    (twin_row,) = refused_peers(PeersReading(node=NODE, peers=(peer("mini"), twin)))
    finding = refused_check(twin_row)
    assert (finding.name, finding.level) == ("node twin", "error")
    assert "two nodes have the id n-twin" in finding.found


def checks(home: Path, found: NodeState | None) -> dict[str, Finding]:
    return {one.name: one for one in network_checks(load_settings(home=home), found)}


def configure(home: Path, *lines: str) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "shoal.toml").write_text("\n".join(lines) + "\n")


def test_a_linked_peer_is_not_dialled_and_a_stranger_is(
    tmp_path: Path, open_link: Callable[[Path | None], str]
) -> None:
    there = open_link(None)
    configure(tmp_path, "[cluster]", 'listen = ""', f'peers = ["127.0.0.1:9", "{there}"]')
    linked = peer("a", addresses=("127.0.0.1:9",), host="127.0.0.1")
    found = checks(tmp_path, a_state(linked, strangers=(f"{there}: no answer",)))
    assert found["peer 127.0.0.1:9"].found == "linked"
    assert found[f"peer {there}"].level == "error"
    assert "does not answer" in found[f"peer {there}"].found


def test_a_node_of_another_key_is_told_from_one_that_is_away(
    tmp_path: Path, open_link: Callable[[Path | None], str]
) -> None:
    theirs, home = tmp_path / "their-key", tmp_path / "home"
    write_keys(theirs, ClusterKeys(new_key()), replace=False)
    there = open_link(theirs)
    configure(home, "[cluster]", 'listen = ""', f'peers = ["{there}"]')
    strange = a_state(strangers=(f"{there}: no answer",))
    wanted = checks(home, strange)[f"peer {there}"]
    assert wanted.level == "error" and "this machine's key" in wanted.found
    mine = load_settings(home=home).key_files.key
    mine.parent.mkdir(parents=True)
    write_keys(mine, ClusterKeys(new_key()), replace=False)
    refused = checks(home, strange)[f"peer {there}"]
    assert refused.level == "error" and "rejects this node's cluster key" in refused.found
    mine.chmod(0o644)
    assert checks(home, strange)["cluster key"].level == "error"


def test_without_a_node_a_peers_port_is_tried_and_no_more_claimed(
    tmp_path: Path, open_link: Callable[[Path | None], str]
) -> None:
    there = open_link(None)
    configure(tmp_path, "[cluster]", 'listen = ""', f'peers = ["{there}"]')
    found = checks(tmp_path, None)[f"peer {there}"]
    assert found.level == "ok" and "whether it accepts this node" in found.found


def a_server_below_the_ephemeral_ports() -> socket.socket:
    for port in range(27_004, 32_000, 100):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise AssertionError("every port is taken")


def test_a_port_that_somebody_has_is_named_before_the_node_starts(tmp_path: Path) -> None:
    with a_server_below_the_ephemeral_ports() as server:
        port = server.getsockname()[1]
        configure(tmp_path, f"base_port = {port - 4}")
        found = checks(tmp_path, None)["cluster ports"]
    assert found.level == "error" and "peers" in found.found and str(port) in found.found


def test_the_doctor_says_all_of_it_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.doctor.checks.CHECKS", ())
    configure(tmp_path, "[cluster]", 'peers = ["studio.invalid:24154"]')
    result = CliRunner().invoke(app, ["doctor", "--json", "--home", str(tmp_path)])
    said = json.loads(result.stdout)
    levels = {one["name"]: one["level"] for one in said["checks"]}
    assert result.exit_code == 1 and said["well"] is False
    assert levels["cluster key"] == "error"
    assert levels["peer studio.invalid:24154"] == "error"
    assert levels["addresses"] == "warn"
    assert "sleep" in levels


def test_a_look_that_cannot_be_had_is_a_warning_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise OSError("no interfaces")

    monkeypatch.setattr("gateway.cli.doctor.checks.CHECKS", ())
    monkeypatch.setattr("gateway.cli.doctor.network_checks.own_addresses", broken)
    result = CliRunner().invoke(app, ["doctor", "--json", "--home", str(tmp_path)])
    said = {one["name"]: one for one in json.loads(result.stdout)["checks"]}
    assert said["network"]["level"] == "warn" and "no interfaces" in said["network"]["found"]
    assert "sleep" in said
