"""Weights between nodes that have the cluster's key; those that have not get nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.client import Speaker
from bus.links.cluster_key import ClusterKey, ClusterKeys, KeyFiles
from bus.links.keyring import NodeSecurity, new_key, open_keyring, write_keys
from bus.links.security import Security
from bus.process.logs import Log
from bus.wire.ids import Boot, ModelId, NodeId
from tests.worker.transfer.test_store import big_model, content
from tests.worker.transfer.test_thread import phase, until
from worker.transfer.downloader import Wanted
from worker.transfer.source import StoreAddress
from worker.transfer.thread import WeightsSettings, WeightsThread, link_maker

pytestmark = pytest.mark.slow

M = ModelId("m")
GIVER, GETTER = NodeId("nodea"), NodeId("nodeb")


class Town:
    """Nodes with a key each, or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.threads: list[WeightsThread] = []

    def node(self, name: NodeId, key: ClusterKey | None, *known: NodeId) -> WeightsThread:
        log = Log(node=name, process="worker", stream=io.StringIO())
        security = None if key is None else self.security(name, key, known, log)
        settings = WeightsSettings(
            self.folder / name, self.folder / f"{name}-hashes", ("tcp://127.0.0.1:*",)
        )
        speaker = Speaker(name, "worker", Boot("b"))
        made = WeightsThread(settings, speaker, log, link=link_maker(security))
        self.threads.append(made)
        return made

    def security(
        self, name: NodeId, key: ClusterKey, known: tuple[NodeId, ...], log: Log
    ) -> Security:
        home = self.folder / f"{name}-keys"
        files = KeyFiles(key=home / "key", met_nodes=home / "known")
        write_keys(files.key, ClusterKeys(key), replace=True)
        ring = open_keyring(files, node=name, log=log)
        assert ring is not None
        ring.introduce(known)
        return NodeSecurity(ring)

    def close(self) -> None:
        for one in self.threads:
            one.close()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path)
    yield made
    made.close()


def test_members_that_know_each_other_pass_weights_on(town: Town) -> None:
    key = new_key()
    folder = big_model(town.folder / "big", 16)
    giver, getter = town.node(GIVER, key, GETTER), town.node(GETTER, key, GIVER)
    giver.offers({M: folder})
    getter.want(Wanted(M, 1, [StoreAddress(GIVER, giver.addresses[0])]))
    until(lambda: phase(getter) == "done", "the model")
    assert content(town.folder / GETTER / "m") == content(folder)


@pytest.mark.parametrize("stranger", ["no key", "another key", "another name"])
def test_a_stranger_gets_nothing_and_hinders_nobody(town: Town, stranger: str) -> None:
    key = new_key()
    folder = big_model(town.folder / "big", 4)
    giver, getter = town.node(GIVER, key, GETTER), town.node(GETTER, key, GIVER)
    odd = NodeId("nodec")
    other = {"no key": None, "another key": new_key(), "another name": key}[stranger]
    outsider = town.node(odd, other, GIVER)
    giver.offers({M: folder})
    outsider.want(Wanted(M, 1, [StoreAddress(GIVER, giver.addresses[0])]))
    getter.want(Wanted(M, 1, [StoreAddress(GIVER, giver.addresses[0])]))
    until(lambda: phase(getter) == "done", "the model")
    assert phase(outsider) in ("", "asking")
    assert not (town.folder / odd / "m").exists()
