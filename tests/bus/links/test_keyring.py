"""Keys on the disk: private, whole, followed while they change."""

from __future__ import annotations

import io
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bus.links.cluster_key import ClusterKeys, KeyFiles, node_secret
from bus.links.curve import public_key
from bus.links.keyring import (
    Keyring,
    machine_keys,
    new_key,
    open_keyring,
    read_keys,
    write_keys,
)
from bus.process.logs import Log
from bus.wire.errors import BadKey
from bus.wire.ids import InstanceId, NodeId

ME, PEER, LATE = NodeId("n1"), NodeId("n2"), NodeId("n3")


def opened(folder: Path, node: NodeId = ME, into: io.StringIO | None = None) -> Keyring | None:
    log = Log(node=node, process="test", stream=into if into is not None else io.StringIO())
    known = folder / f"known-{node}"
    return open_keyring(KeyFiles(folder / "cluster-key", known), node=node, log=log)


def made(folder: Path, node: NodeId = ME, into: io.StringIO | None = None) -> Keyring:
    write_keys(folder / "cluster-key", ClusterKeys(new_key()), replace=True)
    ring = opened(folder, node, into)
    assert ring is not None
    return ring


def test_a_node_without_a_key_has_no_keyring(tmp_path: Path) -> None:
    assert opened(tmp_path) is None


def test_a_key_file_is_private_and_written_once(tmp_path: Path) -> None:
    file = tmp_path / "state" / "cluster-key"
    first = ClusterKeys(new_key())
    before = os.umask(0)
    try:
        write_keys(file, first, replace=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(BadKey, match="already exists"):
        write_keys(file, ClusterKeys(new_key()), replace=False)
    assert read_keys(file) == first
    assert [one.name for one in file.parent.iterdir()] == ["cluster-key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    ring = made(tmp_path)
    ring.file.chmod(mode)
    with pytest.raises(BadKey, match="chmod 600") as refused:
        opened(tmp_path)
    assert ring.keys.current.text not in str(refused.value)


def test_what_is_no_key_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "cluster-key"
    for junk in (b"hello", b"\xff\xfe\x00"):
        file.write_bytes(junk)
        file.chmod(0o600)
        with pytest.raises(BadKey, match="cluster-key"):
            opened(tmp_path)


def test_a_rotation_reaches_a_running_process(tmp_path: Path) -> None:
    said = io.StringIO()
    ring = made(tmp_path, into=said)
    old, new = ring.keys.current, new_key()
    write_keys(ring.file, ring.keys.prepare(new), replace=True)
    assert ring.cluster_ids == (old.fingerprint, new.fingerprint)
    assert ring.node.serving() == node_secret(old, ME)
    write_keys(ring.file, ring.keys.switch(), replace=True)
    assert ring.node.serving() == node_secret(new, ME)
    assert len(ring.node.reaching(PEER)) == 2
    write_keys(ring.file, ring.keys.finish(), replace=True)
    assert ring.cluster_ids == (new.fingerprint,)
    text = said.getvalue()
    assert text.count("keys changed") == 3 and new.fingerprint in text
    assert old.text not in text and new.text not in text


def test_a_key_file_that_goes_bad_changes_nothing_and_is_said_once(tmp_path: Path) -> None:
    said = io.StringIO()
    ring = made(tmp_path, into=said)
    before = ring.keys
    ring.file.write_text("nonsense")
    assert ring.keys == before and ring.keys == before
    ring.file.unlink()
    assert ring.keys == before and ring.keys == before
    assert said.getvalue().count("cannot read the keys again; keeping the previous ones") == 2


def test_a_node_is_admitted_by_name_once_it_was_introduced_anywhere_here(tmp_path: Path) -> None:
    bus = made(tmp_path)
    gateway = opened(tmp_path)
    assert gateway is not None
    key = public_key(node_secret(bus.keys.current, PEER))
    assert gateway.node.admit(key) is None
    bus.introduce([PEER])
    assert gateway.node.admit(key) == PEER
    assert gateway.node.admit(public_key(node_secret(bus.keys.current, LATE))) is None
    assert gateway.node.admit(public_key(node_secret(bus.keys.current, ME))) == ME
    assert gateway.node.admit(public_key(node_secret(new_key(), PEER))) is None
    bus.forget(PEER)
    assert gateway.node.admit(key) is None and gateway.known_nodes == {ME}


def test_during_a_rotation_a_node_is_admitted_under_both_keys(tmp_path: Path) -> None:
    ring = made(tmp_path)
    ring.introduce([PEER])
    old, new = ring.keys.current, new_key()
    write_keys(ring.file, ring.keys.prepare(new), replace=True)
    for key in (old, new):
        assert ring.node.admit(public_key(node_secret(key, PEER))) == PEER
    write_keys(ring.file, ring.keys.switch().finish(), replace=True)
    assert ring.node.admit(public_key(node_secret(old, PEER))) is None
    assert ring.node.admit(public_key(node_secret(new, PEER))) == PEER


def test_no_name_that_is_none_gets_into_the_list(tmp_path: Path) -> None:
    ring = made(tmp_path)
    for name in ("", "a b", "../x", "n" * 65, "n\n2"):
        with pytest.raises(BadKey):
            ring.introduce([NodeId(name)])
    with pytest.raises(BadKey, match="1024"):
        ring.introduce([NodeId(f"n{count}") for count in range(2000)])
    assert ring.known_nodes == {ME}


def test_a_refusal_is_logged_once_for_each_address_and_reason(tmp_path: Path) -> None:
    said = io.StringIO()
    ring = made(tmp_path, into=said)
    for _ in range(50):
        ring.node.refused("tcp://10.0.0.9:1", "a wrong key")
        ring.door.refused("tcp://10.0.0.9:2", "a wrong key")
    assert said.getvalue().count("refused a connection") == 2
    assert ring.keys.current.text not in said.getvalue()


def test_a_rings_secret_is_the_same_at_every_node(tmp_path: Path) -> None:
    ring = made(tmp_path)
    other = opened(tmp_path, PEER)
    assert other is not None
    instance = InstanceId("inst-1")
    assert ring.ring_secret(instance, 3) == other.ring_secret(instance, 3)
    assert len(ring.ring_secret(instance, 3)) == 64


def machine(home: Path, folder: Path, into: io.StringIO | None = None) -> Keyring:
    log = Log(node=ME, process="test", stream=into if into is not None else io.StringIO())
    files = KeyFiles(home / "cluster-key", home / "known", folder / "machine-key")
    ring = open_keyring(files, node=ME, log=log)
    assert ring is not None
    return ring


def test_nodes_without_a_cluster_key_share_the_machine_key(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    one, other = machine(tmp_path / "a", shared), machine(tmp_path / "b", shared)
    assert one.is_local and one.keys == other.keys
    assert stat.S_IMODE(one.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700
    assert other.node.admit(public_key(one.node.serving())) == ""
    assert one.node.max_bytes > one.door.max_bytes
    one.introduce([PEER])
    assert not one.known_file.exists()


def test_a_cluster_key_goes_before_the_machine_key(tmp_path: Path) -> None:
    made(tmp_path)
    ring = machine(tmp_path, tmp_path / "shared")
    assert not ring.is_local and not (tmp_path / "shared").exists()


def test_the_machine_key_is_made_once_whoever_comes_first(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(machine_keys, [tmp_path / "shared" / "machine-key"] * 32))
    assert len({keys.current.text for keys in found}) == 1


def test_a_machine_key_that_was_swept_away_is_put_back(tmp_path: Path) -> None:
    said = io.StringIO()
    ring = machine(tmp_path, tmp_path / "shared", said)
    kept = ring.keys
    ring.file.unlink()
    assert ring.keys == kept and read_keys(ring.file) == kept
    assert machine(tmp_path, tmp_path / "shared").keys == kept
    assert "error" not in said.getvalue()


def test_a_folder_that_others_reach_keeps_no_machine_key(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    with pytest.raises(BadKey, match="chmod 700"):
        machine_keys(folder / "machine-key")
    (tmp_path / "real").mkdir(mode=0o700)
    folder.rmdir()
    folder.symlink_to(tmp_path / "real")
    with pytest.raises(BadKey, match="not private to this user"):
        machine_keys(folder / "machine-key")
    folder.unlink()
    key = machine(tmp_path, folder).file
    key.chmod(0o644)
    with pytest.raises(BadKey, match="other users can read"):
        machine_keys(key)


def test_a_link_that_leads_nowhere_in_place_of_the_machines_key_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o700)
    (folder / "machine-key").symlink_to(tmp_path / "gone")
    with pytest.raises(BadKey, match="machine-key"):
        machine_keys(folder / "machine-key")
