"""Anything at all is sent to sockets that serve with keys: friends go on, strangers stay out.

SHOAL_PROVE=1 does it for a minute. The figures are printed.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bus.links.cluster_key import ClusterKey, ClusterKeys
from bus.links.transport import Link
from bus.process.clock import now
from bus.wire.ids import NodeId
from tests.harness.secure_site import Site

pytestmark = pytest.mark.slow

SECONDS = 60.0 if os.environ.get("SHOAL_PROVE") else 4.0
SEED = int(os.environ.get("SHOAL_TEST_SEED", "7"))
A, B = NodeId("na"), NodeId("nb")
KEYS = ClusterKeys(ClusterKey(b"k" * 32))
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
MIB = 1 << 20


def greeting(mechanism: bytes, *, minor: int = 1) -> bytes:
    """ZMTP 3's 64 bytes."""
    return SIGNATURE + bytes([3, minor]) + mechanism.ljust(20, b"\0") + bytes(32)


def command(name: bytes, body: bytes) -> bytes:
    data = bytes([len(name)]) + name + body
    if len(data) < 256:
        return b"\x04" + bytes([len(data)]) + data
    return b"\x06" + struct.pack(">Q", len(data)) + data


class Recorder:
    """Passes one connection on and keeps what the client said, changed by `change` on the way."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.said = bytearray()
        self.change: Callable[[bytes], bytes] = lambda data: data
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self.target)
                self._open += [near, far]
                for source, drain, is_client in ((near, far, True), (far, near, False)):
                    thread = threading.Thread(
                        target=self._pass, args=(source, drain, is_client), daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, drain: socket.socket, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_client:
                    self.said += data
                    data = self.change(data)
                drain.sendall(data)
        for one in (source, drain):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)
        for one in self._open:
            one.close()


class Attacker(threading.Thread):
    """Says one wrong thing after another to the ports until told to stop."""

    def __init__(self, ports: list[int], recorded: bytes, chance: random.Random) -> None:
        super().__init__(name="attacker", daemon=True)
        self.ports = ports
        self.recorded = recorded
        self.chance = chance
        self.ended = threading.Event()
        self.done: Counter[str] = Counter()
        self._silent: list[socket.socket] = []

    def run(self) -> None:
        kinds = [
            self.noise,
            self.plain_peer,
            self.wrong_hello,
            self.oversized,
            self.huge_handshake,
            self.replay,
            self.cut_replay,
            self.flipped_replay,
            self.silence,
            self.old_version,
        ]
        while not self.ended.is_set():
            kind = self.chance.choice(kinds)
            self.done[kind.__name__] += 1
            with contextlib.suppress(OSError):
                kind()
        for one in self._silent:
            one.close()

    def _say(self, *parts: bytes) -> None:
        port = self.chance.choice(self.ports)
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as peer:
            if self.chance.random() < 0.3:  # leave with a reset instead of a farewell
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.settimeout(0.05)
            for part in parts:
                peer.sendall(part)
                if self.chance.random() < 0.5:
                    with contextlib.suppress(TimeoutError):
                        peer.recv(4096)

    def noise(self) -> None:
        self._say(self.chance.randbytes(self.chance.randrange(2000)))

    def plain_peer(self) -> None:
        ready = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        self._say(greeting(b"NULL"), command(b"READY", ready), b"\x00\x05hello")

    def wrong_hello(self) -> None:
        size = self.chance.choice([0, 10, 194, 194, 194, 3000])
        self._say(greeting(b"CURVE"), command(b"HELLO", self.chance.randbytes(size)))

    def oversized(self) -> None:
        flags = self.chance.choice([b"\x02", b"\x06", b"\x03"])
        size = self.chance.choice([97 * MIB, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
        self._say(greeting(b"CURVE"), flags + struct.pack(">Q", size) + bytes(1000))

    def huge_handshake(self) -> None:
        self._say(greeting(b"CURVE"), b"\x06" + struct.pack(">Q", 90 * MIB), bytes(MIB), bytes(MIB))

    def replay(self) -> None:
        self._say(self.recorded)

    def cut_replay(self) -> None:
        at = self.chance.randrange(len(self.recorded))
        self._say(self.recorded[:at], self.chance.randbytes(50))

    def flipped_replay(self) -> None:
        changed = bytearray(self.recorded)
        for _ in range(self.chance.randrange(1, 6)):
            changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        self._say(bytes(changed[:64]), bytes(changed[64:]))

    def silence(self) -> None:
        port = self.chance.choice(self.ports)
        self._silent.append(socket.create_connection(("127.0.0.1", port), timeout=1.0))
        if len(self._silent) > 50:
            self._silent.pop(0).close()

    def old_version(self) -> None:
        version = bytes([self.chance.randrange(256), self.chance.randrange(256)])
        self._say(SIGNATURE + version + self.chance.randbytes(52), self.chance.randbytes(300))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_a_recorded_conversation_cannot_be_said_again(site: Site) -> None:
    server, client = site.keyring(A, KEYS, B), site.keyring(B, KEYS)
    _, address, heard = site.serve(server.node)
    recorder = Recorder(("127.0.0.1", port_of(address)))
    dealer, _ = site.call(client.node, recorder.address, peer=A, identity="b")
    dealer.send(b"pay me once")
    assert site.until(lambda: len(heard) == 1)
    site.drop(dealer)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port_of(address))) as peer:
            peer.sendall(bytes(recorder.said))
            site.for_seconds(0.2)
    assert len(heard) == 1
    recorder.close()


def test_a_changed_bit_on_the_way_is_never_heard(site: Site) -> None:
    chance = random.Random(SEED)
    server, client = site.keyring(A, KEYS, B), site.keyring(B, KEYS)
    _, address, heard = site.serve(server.node)
    recorder = Recorder(("127.0.0.1", port_of(address)))
    dealer, _ = site.call(client.node, recorder.address, peer=A, identity="b")
    dealer.send(b"start")
    assert site.until(lambda: bool(heard))
    flips = 0

    def flip(data: bytes) -> bytes:
        nonlocal flips
        flips += 1
        if flips % 3:
            return data
        changed = bytearray(data)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)

    recorder.change = flip
    for count in range(60):
        dealer.send(b"message %d" % count, b"x" * 1000)
        site.until(lambda: False, 0.02)
    recorder.change = lambda data: data

    def arrived() -> bool:
        dealer.send(b"end")
        return heard[-1][1][1:] == [b"end"]

    assert site.until(arrived, 15.0)
    sent = {b"start", b"end"} | {b"message %d" % count for count in range(60)}
    assert flips > 20
    assert all(peer == B and frames[1] in sent for peer, frames in heard)
    site.drop(dealer)
    recorder.close()


def test_garbage_disturbs_nobody(site: Site) -> None:
    server, client = site.keyring(A, KEYS, B), site.keyring(B, KEYS)
    router, address, heard = site.serve(server.node)
    _, door, at_door = site.serve(server.door)
    board, plane, _ = site.serve(server.node, "xpub")
    recorder = Recorder(("127.0.0.1", port_of(address)))
    first, _ = site.call(client.node, recorder.address, peer=A, identity="first")
    first.send(b"hello")
    assert site.until(lambda: bool(heard))
    site.drop(first)
    friend, answers = site.call(client.node, address, peer=A, identity="friend")
    reader, news = site.call(client.node, plane, peer=A, kind="sub")
    reader.subscribe("")
    process = psutil.Process()
    attackers = [
        Attacker(
            [port_of(one) for one in (address, door, plane)],
            bytes(recorder.said),
            random.Random(SEED + number),
        )
        for number in range(2)
    ]
    figures = _exchange(site, (router, friend, heard, answers), board, news, attackers)
    recorder.close()
    assert {peer for peer, _ in heard} == {B} and at_door == []
    refusals = [line for line in site.said.getvalue().splitlines() if "refused" in line]
    assert len(refusals) == len({line.split('"address"')[1] for line in refusals}) <= 6
    assert site.until(lambda: process.num_fds() <= figures["files"] + 8, 15.0)
    done = sum((one.done for one in attackers), Counter())
    assert len(done) == 10 and sum(done.values()) > 20 * SECONDS
    print(f"\n{dict(done)}, figures {figures}, refusals logged {len(refusals)}, seed {SEED}")
    assert figures["grown_mib"] < 200


def _exchange(
    site: Site,
    pair: tuple[Link, Link, list[tuple[NodeId | None, list[bytes]]], list[list[bytes]]],
    board: Link,
    news: list[list[bytes]],
    attackers: list[Attacker],
) -> dict[str, float]:
    """Have friends talk while the attackers do: each question is heard and answered."""
    router, friend, heard, answers = pair
    process = psutil.Process()
    figures = {"rounds": 0, "worst_s": 0.0, "files": process.num_fds()}
    before = process.memory_info().rss
    most = before
    for one in attackers:
        one.start()
    end = now() + SECONDS
    while now() < end:
        asked_at, question = now(), b"%d" % figures["rounds"]
        friend.send(question)
        assert site.until(lambda q=question: bool(heard) and heard[-1][1][1] == q, 20.0)
        router.send(b"friend", question)
        board.send(question)
        assert site.until(lambda q=question: bool(answers) and answers[-1] == [q], 20.0)
        figures["rounds"] += 1
        figures["worst_s"] = max(figures["worst_s"], round(now() - asked_at, 3))
        most = max(most, process.memory_info().rss)
        site.until(lambda: False, 0.02)
    for one in attackers:
        one.ended.set()
        one.join(10.0)
    assert site.until(lambda: bool(news) and news[-1] == [b"%d" % (figures["rounds"] - 1)], 20.0)
    assert [int(one[0]) for one in answers] == list(range(len(answers)))
    figures["grown_mib"] = (most - before) // MIB
    return figures
