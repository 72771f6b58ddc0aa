"""Links over TCP with keys: who gets in, who does not, and that the others do not notice."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.links.cluster_key import ClusterKey, ClusterKeys, KeyFiles
from bus.links.keyring import (
    DOOR_MAX_BYTES,
    Keyring,
    new_key,
    open_keyring,
    write_keys,
)
from bus.links.reactor import RENEW_S, AsyncioReactor
from bus.links.transport import Change, Frames, Link
from bus.process.logs import Log
from bus.wire.errors import Exposed
from bus.wire.ids import NodeId
from tests.harness.secure_site import ANY, Site

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

A, B, C = NodeId("na"), NodeId("nb"), NodeId("nc")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    assert not [one for one in threading.enumerate() if one.name == "authenticator"]


KEY = ClusterKey(b"k" * 32)
OTHER = ClusterKey(b"o" * 32)
NEXT = ClusterKey(b"n" * 32)


def test_a_known_node_gets_in_and_its_key_proves_its_name(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY), B), site.keyring(B, ClusterKeys(KEY))
    link, address, heard = site.serve(server.node)
    dealer, answers = site.call(client.node, address, peer=A, identity="whoever")
    assert dealer.send(b"hello", b"x" * 100_000)
    assert site.until(lambda: bool(heard))
    peer, frames = heard[0]
    assert peer == B and frames == [b"whoever", b"hello", b"x" * 100_000]
    assert link.send(b"whoever", b"welcome")
    assert site.until(lambda: answers == [[b"welcome"]])
    assert site.said.getvalue() == ""


def test_publishers_and_subscribers_have_keys_too(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY), B), site.keyring(B, ClusterKeys(KEY))
    board, address, subscribed = site.serve(server.node, "xpub")
    sub, heard = site.call(client.node, address, peer=A, kind="sub")
    sub.subscribe("event")
    assert site.until(lambda: bool(subscribed))
    assert subscribed == [(B, [b"\x01event"])]
    board.send(b"event.x", b"1")
    assert site.until(lambda: heard == [[b"event.x", b"1"]])


def test_members_meet_at_the_door_without_names(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY)), site.keyring(B, ClusterKeys(KEY))
    _, address, heard = site.serve(server.door)
    dealer, _ = site.call(client.door, address, identity="b")
    dealer.send(b"hello")
    assert site.until(lambda: heard == [(None, [b"b", b"hello"])])


def test_nothing_long_comes_through_the_door(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY)), site.keyring(B, ClusterKeys(KEY))
    _, address, heard = site.serve(server.door)
    dealer, _ = site.call(client.door, address, identity="b")
    dealer.send(bytes(DOOR_MAX_BYTES + 1))
    site.for_seconds(0.3)

    def arrived() -> bool:
        dealer.send(b"short")
        return bool(heard)

    assert site.until(arrived)
    assert {frames[1] for _, frames in heard} == {b"short"}


def test_a_node_that_is_not_known_yet_gets_in_when_it_is_introduced(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY)), site.keyring(B, ClusterKeys(KEY))
    _, address, heard = site.serve(server.node)
    dealer, _ = site.call(client.node, address, peer=A, identity="b")
    dealer.send(b"hello")
    assert not site.until(lambda: bool(heard), 1.0)
    assert "refuses this node" in site.said.getvalue()
    server.introduce([B])

    def arrived() -> bool:
        dealer.send(b"hello")
        return bool(heard)

    assert site.until(arrived)
    assert {peer for peer, _ in heard} == {B}


def test_another_node_at_the_address_is_not_taken_for_the_one_that_was_meant(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY), B), site.keyring(B, ClusterKeys(KEY))
    _, address, heard = site.serve(server.node)
    dealer, _ = site.call(client.node, address, peer=C, identity="b")
    dealer.send(b"for c alone")
    assert not site.until(lambda: bool(heard), 1.0)


STRANGERS = ["wrong key", "no key", "door key", "wrong key at the door", "no key at the door"]


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_refused_logged_once_and_disturbs_nobody(site: Site, who: str) -> None:
    server, friend = site.keyring(A, ClusterKeys(KEY), B), site.keyring(B, ClusterKeys(KEY))
    at_door = "at the door" in who
    _, address, heard = site.serve(server.door if at_door else server.node)
    good, _ = site.call(friend.door if at_door else friend.node, address, peer=A, identity="good")
    ring = site.keyring(C, ClusterKeys(OTHER if "wrong" in who else KEY))
    security = None if "no key" in who else ring.door if "door" in who else ring.node
    site.for_seconds(0.2)
    before = site.said.getvalue()
    for _ in range(4):
        stranger, told = site.call(security, address, peer=A, identity="bad")
        stranger.send(b"let me in")
        site.for_seconds(0.3)
        good.send(b"still here")
        assert told == []
        site.drop(stranger)
    expected = [(None if at_door else B, [b"good", b"still here"])] * 4
    assert site.until(lambda: heard == expected)
    lines = site.said.getvalue().removeprefix(before).splitlines()
    assert len([line for line in lines if '"node": "na"' in line]) == 1, lines
    assert KEY.text not in site.said.getvalue() and OTHER.text not in site.said.getvalue()


def test_a_node_with_a_key_does_not_talk_to_one_without(site: Site) -> None:
    client = site.keyring(B, ClusterKeys(KEY))
    _, address, heard = site.serve(None)
    dealer, _ = site.call(client.node, address, peer=A)
    dealer.send(b"secret")
    assert not site.until(lambda: bool(heard), 1.0)
    assert "refused a connection" in site.said.getvalue()


def test_a_client_that_met_a_plain_node_comes_back_when_that_has_the_key(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY), B), site.keyring(B, ClusterKeys(KEY))
    plain, address, _ = site.serve(None)
    dealer, _ = site.call(client.node, address, peer=A, identity="b")
    assert site.until(lambda: "refused a connection" in site.said.getvalue())
    site.drop(plain)
    site.for_seconds(0.2)
    _, _, heard = site.serve(server.node, address=address)

    def arrived() -> bool:
        dealer.send(b"hello")
        return bool(heard)

    assert site.until(arrived)


def test_loopback_without_a_key_stays_plain(site: Site) -> None:
    _, address, heard = site.serve(None)
    dealer, _ = site.call(None, address, identity="p")
    dealer.send(b"hello")
    assert site.until(lambda: heard == [(None, [b"p", b"hello"])])


def machine_ring(folder: Path) -> Keyring:
    files = KeyFiles(folder / "cluster-key", folder / "known", folder / "own" / "machine-key")
    ring = open_keyring(files, node=A, log=Log(node=A, process="test", stream=io.StringIO()))
    assert ring is not None
    return ring


@pytest.mark.parametrize("with_machine_key", [False, True])
@pytest.mark.parametrize("host", ["*", "0.0.0.0", "192.168.1.5", "eth0", "[::]"])
def test_beyond_loopback_a_cluster_key_is_required(
    host: str, with_machine_key: bool, tmp_path: Path
) -> None:
    link = Link("router", security=machine_ring(tmp_path).node if with_machine_key else None)
    for use in (link.bind, link.connect):
        with pytest.raises(Exposed, match=r"shoal keys init.*shoal keys join"):
            use(f"tcp://{host}:1")
    link.close()


def test_on_loopback_the_machine_key_is_enough_and_nothing_less_is(
    site: Site, tmp_path: Path
) -> None:
    link, address, heard = site.serve(machine_ring(tmp_path).node)
    other = tmp_path / "other"
    plain, _ = site.call(None, address, identity="plain")
    strange, _ = site.call(machine_ring(other).node, address, identity="strange", peer=A)
    member, _ = site.call(site.keyring(B, ClusterKeys(KEY)).node, address, peer=A, identity="far")
    friend, said = site.call(machine_ring(tmp_path).node, address, peer=B, identity="friend")
    for one in (plain, strange, member, friend):
        one.send(b"hello")
    assert site.until(lambda: bool(heard))
    link.send(b"friend", b"welcome")
    assert site.until(lambda: said == [[b"welcome"]])
    site.for_seconds(1.0)
    assert heard == [(None, [b"friend", b"hello"])]


def test_one_link_serves_others_with_keys_and_its_own_node_without(
    site: Site, tmp_path: Path
) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY), B), site.keyring(B, ClusterKeys(KEY))
    link, address, heard = site.serve(server.node)
    local = link.bind(f"ipc://{tmp_path}/s")
    near, _ = site.call(None, local, identity="near")
    far, _ = site.call(client.node, address, peer=A, identity="far")
    mixed, _ = site.call(client.node, address, peer=A, identity="mixed")
    mixed.connect(local)
    near.send(b"1")
    far.send(b"2")
    assert site.until(lambda: len(heard) == 2)
    assert sorted(heard, key=str) == [(B, [b"far", b"2"]), (None, [b"near", b"1"])]


ROTATION = (
    ClusterKeys(KEY),
    ClusterKeys(KEY, coming=NEXT),
    ClusterKeys(NEXT, past=KEY),
    ClusterKeys(NEXT),
)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("order", [1, -1], ids=["client behind", "client ahead"])
def test_nodes_one_step_apart_in_a_rotation_reach_each_other(
    site: Site, step: int, order: int
) -> None:
    mine, theirs = ROTATION[step : step + 2][::order]
    server, client = site.keyring(A, theirs, B), site.keyring(B, mine)
    for security, place in ((server.node, client.node), (server.door, client.door)):
        _, address, heard = site.serve(security)
        dealer, _ = site.call(place, address, peer=A, identity="b")

        def arrived(dealer: Link = dealer, heard: list[Any] = heard) -> bool:
            dealer.send(b"hello")
            return bool(heard)

        assert site.until(arrived)


def test_a_rotation_reaches_running_links_and_everyone_comes_back(site: Site) -> None:
    rings = [site.keyring(A, ROTATION[0], B), site.keyring(B, ROTATION[0], A)]
    link, address, heard = site.serve(rings[0].node)
    steady, _ = site.call(rings[1].node, address, peer=A, identity="steady")
    for keys in ROTATION[1:]:
        for ring in rings:
            write_keys(ring.file, keys, replace=True)
            assert site.until(link.renew)
            fresh, _ = site.call(rings[1].node, address, peer=A, identity="fresh")
            heard.clear()

            def arrived(fresh: Link = fresh) -> bool:
                steady.send(b"on")
                fresh.send(b"new")
                return {frames[0] for _, frames in heard} >= {b"steady", b"fresh"}

            assert site.until(arrived), site.said.getvalue()
            site.drop(fresh)
    assert all(peer == B for peer, _ in heard)
    site.drop(steady)
    late, _ = site.call(site.keyring(C, ROTATION[0]).node, address, peer=A, identity="late")
    late.send(b"with the old key")
    assert not site.until(lambda: any(frames[0] == b"late" for _, frames in heard), 1.0)


def test_a_busy_link_keeps_its_key_and_its_connections(site: Site) -> None:
    server, client = site.keyring(A, ROTATION[1], B), site.keyring(B, ROTATION[1])
    link, address, heard = site.serve(server.node)
    link.is_busy = lambda: True
    dealer, _ = site.call(client.node, address, peer=A, identity="b")
    dealer.send(b"1")
    assert site.until(lambda: len(heard) == 1)
    write_keys(server.file, ROTATION[2], replace=True)
    assert link.renew()
    site.for_seconds(RENEW_S + 0.2)
    dealer.send(b"2")
    assert site.until(lambda: [frames[1] for _, frames in heard] == [b"1", b"2"])
    link.is_busy = lambda: False
    site.for_seconds(RENEW_S + 0.2)
    newest, _ = site.call(site.keyring(B, ROTATION[3]).node, address, peer=A, identity="n")
    newest.send(b"3")
    assert site.until(lambda: heard[-1] == (B, [b"n", b"3"]))


def test_the_authenticator_lives_from_the_first_link_that_serves_to_the_last(site: Site) -> None:
    ring = site.keyring(A, ClusterKeys(KEY), B)

    def threads() -> int:
        return sum(one.name == "authenticator" for one in threading.enumerate())

    for _ in range(3):
        assert threads() == 0
        first, _, _ = site.serve(ring.node)
        second, _, _ = site.serve(ring.door)
        third, _, _ = site.serve(ring.node)
        assert threads() == 1
        for link in (first, second):
            site.drop(link)
            assert threads() == 1
        client, _ = site.call(ring.node, "tcp://127.0.0.1:9", peer=A)
        site.drop(third)
        assert threads() == 0
        site.drop(client)


def test_an_asyncio_loop_has_secure_links_too(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY), B), site.keyring(B, ROTATION[2])
    heard: list[tuple[NodeId | None, Frames]] = []
    changes: list[Change] = []

    async def talk() -> None:
        reactor = AsyncioReactor(asyncio.get_running_loop())
        router, dealer = Link("router", security=server.node), Link("dealer", security=client.node)
        reactor.watch_from(router, lambda peer, frames: heard.append((peer, frames)))
        reactor.watch(dealer, lambda frames: None)
        reactor.watch_changes(dealer, changes.append)
        dealer.connect(router.bind(ANY), peer=A)
        end = reactor.now() + 5.0
        while not heard and reactor.now() < end:
            dealer.send(b"hello")
            await asyncio.sleep(0.01)
        for link in (router, dealer):
            reactor.unwatch(link)
            link.close()

    asyncio.run(talk())
    assert heard[0][0] == B and heard[0][1][1] == b"hello"
    assert changes[0] == "connected"


def test_a_link_that_is_watched_late_has_missed_no_change(site: Site) -> None:
    server, client = site.keyring(A, ClusterKeys(KEY), B), site.keyring(B, ClusterKeys(KEY))
    link, address, heard = site.serve(server.node)
    dealer, changes = Link("dealer", security=client.node), list[Change]()
    dealer.connect(address, peer=A)
    dealer.send(b"hello")
    assert site.until(lambda: bool(heard))
    site.reactor.watch_changes(dealer, changes.append)
    site.drop(link)
    assert site.until(lambda: changes == ["connected", "lost"]), changes
    site.reactor.hang_up(dealer)


PROGRAM = """
import sys
from pathlib import Path
from bus.wire.ids import NodeId
from bus.links.cluster_key import KeyFiles
from bus.links.keyring import open_keyring
from bus.process.logs import Log
from bus.links.transport import Link

home = Path(sys.argv[1])
log = Log(node="na", process="test")
ring = open_keyring(KeyFiles(home / "key", home / "known"), node=NodeId("na"), log=log)
link = Link("router", security=ring.node)
print(link.bind("tcp://127.0.0.1:*").partition(":")[0])
if len(sys.argv) > 2:
    raise RuntimeError("a defect")
"""


@pytest.mark.parametrize("more", [[], ["fail"]], ids=["at its end", "by a defect"])
def test_a_process_with_open_links_ends_by_itself(
    site: Site, tmp_path: Path, more: list[str]
) -> None:
    ring = site.keyring(A, ClusterKeys(KEY))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ring.file.parent), *more],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout == "tcp\n" and done.returncode == len(more)
    assert ("a defect" in done.stderr) == bool(more) and KEY.text not in done.stderr


def test_a_new_key_is_of_chance() -> None:
    assert len({new_key().secret for _ in range(100)}) == 100
