"""Hostfiles: what is refused, and that the examples say what a runner of such a group is told."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx._distributed_utils.common import Hostfile
from typer.testing import CliRunner

from bus.hardware.rdma_ports import rdma_ports
from bus.wire.ids import NodeId
from bus.wire.instances import RankSeat
from bus.wire.messages.control import GroupSpec
from gateway.cli.app import app
from gateway.cli.node.hostfile_format import (
    BadHostfile,
    cables,
    device_matrix,
    environment,
    pairs,
    parse_hostfile,
    port_problems,
    ring,
)
from gateway.cli.verbs.cluster import hostfile
from gateway.cli.verbs.cluster.hostfile import PORT
from runner.group.group_config import (
    jaccl_devices,
    jaccl_environment,
    ring_environment,
    ring_hostfile,
)
from tests.harness.thunderbolt_samples import devinfo

EXAMPLES = Path(__file__).resolve().parents[4] / "conf" / "hostfiles"


def example(name: str) -> str:
    return (EXAMPLES / name).read_text()


def group(name: str) -> GroupSpec:
    """The group that a hostfile stands for, as workers would have agreed on it."""
    hosts = parse_hostfile(example(name))
    seats = tuple(
        RankSeat(
            rank=rank,
            node=NodeId(one.ssh),
            first_layer=0,
            last_layer=1,
            ring=(f"{one.ips[0]}:{PORT + rank}",),
            rdma=tuple("".join(devices) for devices in one.rdma),
        )
        for rank, one in enumerate(hosts)
    )
    backend: Any = "jaccl" if hosts[0].rdma else "ring"
    return GroupSpec(
        sharding="tensor",
        backend=backend,
        ranks=seats,
        secret="00",
        coordinator=f"{hosts[0].ips[0]}:{PORT}",
    )


def test_the_ring_example_is_what_a_runner_of_that_group_is_told() -> None:
    hosts, spec = parse_hostfile(example("hosts-2-ring.json")), group("hosts-2-ring.json")
    assert json.loads(example("ring-2.json")) == json.loads(ring_hostfile(spec))
    assert json.loads(ring(hosts, PORT)) == json.loads(ring_hostfile(spec))
    for rank in range(2):
        assert environment(hosts, rank, "/x", PORT) == ring_environment(rank, "/x")


@pytest.mark.parametrize("size", [2, 4])
def test_the_jaccl_examples_are_what_a_runner_of_that_group_is_told(size: int) -> None:
    name = f"hosts-{size}-jaccl.json"
    hosts, spec = parse_hostfile(example(name)), group(name)
    assert json.loads(example(f"devices-{size}.json")) == json.loads(jaccl_devices(spec))
    assert json.loads(device_matrix(hosts)) == json.loads(jaccl_devices(spec))
    assert len(pairs(hosts)) == cables(size)
    for rank in range(size):
        told = jaccl_environment(rank, "/x", spec.coordinator)
        assert environment(hosts, rank, "/x", PORT) == told


def test_in_each_example_every_port_has_one_cable() -> None:
    for path in EXAMPLES.glob("hosts-*.json"):
        ends = [
            end
            for a, x, b, y in pairs(parse_hostfile(path.read_text()))
            for end in ((a, x), (b, y))
        ]
        assert len(ends) == len(set(ends)), path.name


@given(st.integers(1, 64))
def test_a_mesh_takes_a_cable_for_each_pair(size: int) -> None:
    names = [f"m{n}" for n in range(size)]
    row = [[None if i == j else f"rdma_en{j}" for j in range(size)] for i in range(size)]
    text = json.dumps(
        [
            {"ssh": n, "ips": [f"10.0.0.{i}"], "rdma": r}
            for i, (n, r) in enumerate(zip(names, row, strict=True))
        ]
    )
    assert len(pairs(parse_hostfile(text))) == cables(size) == sum(range(size))


def two(**more: Any) -> list[dict[str, Any]]:
    return [
        {"ssh": "a", "ips": ["10.0.0.1"], "rdma": [None, "rdma_en4"]},
        {"ssh": "b", "ips": [], "rdma": ["rdma_en4", None], **more},
    ]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ("{", "not JSON"),
        (json.dumps({}), 'a list "hosts"'),
        (json.dumps([]), "neither a list"),
        (json.dumps(["a"]), "rank 0 is not an object"),
        (json.dumps([{"ips": ["1.2.3.4"]}]), "rank 0 has no usable ssh name"),
        (json.dumps([{"ssh": "-oProxyCommand=x", "ips": ["1.2.3.4"]}]), "no usable ssh name"),
        (json.dumps([{"ssh": "a"}]), "rank 0 (a) has no address"),
        (json.dumps([{"ssh": "a", "ips": ["box"]}]), "'box' is not an IP address"),
        (json.dumps([{"ssh": "a", "ips": "10.0.0.1"}]), "ips is not a list"),
        (json.dumps([{"ssh": "a", "ips": ["10.0.0.1"], "user": "x"}]), "unknown field 'user'"),
        (json.dumps(two(ssh="a")), "ranks 0 and 1 are the same machine (a, a)"),
        (json.dumps(two(ssh="me@A.")), "ranks 0 and 1 are the same machine (a, me@A.)"),
        (json.dumps(two(ips=["10.0.0.1"])), "ranks 0 and 1 both have the address 10.0.0.1"),
        (json.dumps(two(rdma=[["rdma_en4", "rdma_en5"], None])), "lists 1 back"),
        (json.dumps(two(rdma=[["rdma_en4", "rdma_en4"], None])), "a device has one cable"),
        (json.dumps(two(rdma=[["rdma_en4", 3], None])), "only strings and null"),
        (json.dumps(two(rdma=["rdma_en4"])), "rank 1 (b) lists 1 devices for 2 ranks"),
        (json.dumps(two(rdma=["rdma_en4", "rdma_en5"])), "a device to itself"),
        (json.dumps(two(rdma=[None, None])), "rank 1 (b) lists no device to rank 0 (a)"),
        (json.dumps(two(rdma=[3, None])), "only strings and null"),
    ],
)
def test_what_is_wrong_is_named_with_its_rank(found: str, why: str) -> None:
    with pytest.raises(BadHostfile) as refused:
        parse_hostfile(found)
    assert why in str(refused.value)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("hosts-*.json")), ids=lambda one: one.name)
def test_mlxs_own_reader_finds_the_same_in_the_examples(path: Path) -> None:
    theirs = Hostfile.from_file(str(path)).hosts
    ours = parse_hostfile(path.read_text())
    matrix = [[(device and (device,)) or () for device in one.rdma] for one in theirs]
    assert [(one.ssh_hostname, tuple(one.ips)) for one in theirs] == [
        (one.ssh, one.ips) for one in ours
    ]
    assert matrix == [list(one.rdma) for one in ours]


def mesh(*rows: list[Any]) -> str:
    hosts = [
        {"ssh": f"m{rank}", "ips": [f"10.0.0.{rank + 1}"], "rdma": row}
        for rank, row in enumerate(rows)
    ]
    return json.dumps(hosts)


def test_a_device_leads_to_one_peer() -> None:
    text = mesh([None, "e1", "e1"], ["e1", None, "e2"], ["e1", "e2", None])
    with pytest.raises(BadHostfile, match=r"rank 0 \(m0\) lists e1 for rank 1 and for rank 2"):
        parse_hostfile(text)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_several_cables_between_two_machines_are_read_as_mlx_reads_them(tmp_path: Path) -> None:
    rows: list[list[Any]] = [[None, ["e1", "e2"]], [["e4", "e3"], None]]
    hosts = parse_hostfile(mesh(*rows))
    assert pairs(hosts) == [("m0", "e1", "m1", "e4"), ("m0", "e2", "m1", "e3")]
    assert json.loads(device_matrix(hosts)) == rows
    file = tmp_path / "hosts.json"
    file.write_text(mesh(*rows))
    assert [one.rdma for one in Hostfile.from_file(str(file)).hosts] == rows
    assert port_problems(hosts[0], rdma_ports(devinfo(("e1", "PORT_ACTIVE (4)")))) == [
        "m0: e2 is missing, not PORT_ACTIVE"
    ]


def test_machines_are_probed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"m{number}" for number in range(8)]
    met = threading.Barrier(len(names), timeout=10.0)

    def asked(*_: object) -> subprocess.CompletedProcess[str]:
        met.wait()
        return subprocess.CompletedProcess([], 1, "", "no route")

    monkeypatch.setattr(hostfile, "run_tool", asked)
    file = tmp_path / "hosts.json"
    hosts = [{"ssh": name, "ips": [f"10.0.0.{name[1:]}"]} for name in names]
    file.write_text(json.dumps(hosts))
    done = run(str(file), "--probe", "--json")
    told = json.loads(done.stdout)["problems"]
    assert [one.partition(":")[0] for one in told] == names, "in the order of the ranks"


def test_a_ring_counts_ports_up_over_all_addresses_as_mlx_launch_does() -> None:
    hosts = parse_hostfile(
        json.dumps(
            [{"ssh": "a", "ips": ["10.0.0.1", "10.1.0.1"]}, {"ssh": "b", "ips": ["10.0.0.2"]}]
        )
    )
    assert json.loads(ring(hosts, 5000)) == [["10.0.0.1:5000", "10.1.0.1:5001"], ["10.0.0.2:5002"]]


def test_mlx_launchs_object_is_read_as_its_list() -> None:
    wrapped = json.dumps({"backend": "jaccl", "envs": [], "hosts": two()})
    assert parse_hostfile(wrapped) == parse_hostfile(json.dumps(two()))


def test_a_ring_wants_an_ipv4_address_of_every_rank() -> None:
    for ips in ([], ["fd00::1"]):
        hosts = parse_hostfile(
            json.dumps([{"ssh": "a", "ips": ["10.0.0.1"]}, {"ssh": "b", "ips": ips}])
        )
        with pytest.raises(BadHostfile, match=r"rank 1 \(b\) has no IPv4"):
            ring(hosts, PORT)


def test_a_device_that_is_down_or_not_there_is_named_with_its_machine() -> None:
    host = parse_hostfile(json.dumps(two()))[0]
    assert port_problems(host, rdma_ports(devinfo(("rdma_en4", "PORT_ACTIVE (4)")))) == []
    down = rdma_ports(devinfo(("rdma_en4", "PORT_DOWN (1)")))
    assert port_problems(host, down) == ["a: rdma_en4 is PORT_DOWN, not PORT_ACTIVE"]
    assert port_problems(host, ()) == ["a: rdma_en4 is missing, not PORT_ACTIVE"]


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["hostfile", *words], env={"COLUMNS": "120"})


@pytest.mark.parametrize(
    ("name", "written"),
    [("hosts-2-ring.json", "ring-2.json"), ("hosts-4-jaccl.json", "devices-4.json")],
)
def test_the_verb_writes_what_mlx_reads(tmp_path: Path, name: str, written: str) -> None:
    done = run(str(EXAMPLES / name), "--emit", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0, done.output
    [path] = json.loads(done.stdout)["written"]
    assert json.loads(Path(path).read_text()) == json.loads(example(written))


def test_the_verb_tells_cables_and_refuses_in_words(tmp_path: Path) -> None:
    assert "6 cables" in run(str(EXAMPLES / "hosts-4-jaccl.json")).output
    assert "it needs no group" in run(str(EXAMPLES / "hosts-1.json")).output
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(two(rdma=[None, None])))
    refused = run(str(bad))
    assert refused.exit_code == 1 and "no device to rank 0" in refused.output
    assert run(str(tmp_path / "none.json")).exit_code == 1


def test_a_machine_that_ssh_does_not_reach_fails(tmp_path: Path) -> None:
    nowhere = tmp_path / "hosts.json"
    nowhere.write_text(json.dumps([{"ssh": "no-such-host.invalid", "ips": ["10.0.0.1"]}]))
    done = run(str(nowhere), "--probe")
    assert done.exit_code == 1 and "no-such-host.invalid" in done.output
