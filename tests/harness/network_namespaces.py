"""Talks to the kernel: machines on one wire, each a network namespace; cut, slowed and healed.

Every machine has a TUN device, and a thread of this process is the switch between them: it reads
whole IP packets and hands them on after `delay_s`, unless the two are cut from each other. What
is cut is lost in silence, as with a pulled cable. This process itself has an address there too,
which is never cut, so that a test goes on seeing everybody. Needs root on Linux.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator

TUN_FILE = "/dev/net/tun"
TUN_SET = 0x400454CA
TUN_PLAIN = 0x0001 | 0x1000
MTU = 9000
OWN = 254
"""This process's number on the wire."""
_WIRES = itertools.count()


class NotPermitted(RuntimeError):
    """Namespaces or TUN devices cannot be made here; the text says why."""


class NetworkNamespaces:
    """`count` machines, numbered from 0. `cut`, `heal` and `delay_s` take effect at once."""

    def __init__(self, count: int) -> None:
        unique = os.getpid() * 4 + next(_WIRES) % 4
        self.delay_s = 0.0
        self.carried = 0
        self._net = f"10.{64 + unique // 250 % 64}.{unique % 250}"
        self._prefix = f"sh{unique % 10**7}"
        self._names = [f"{self._prefix}n{number}" for number in range(count)]
        self._cut: set[tuple[int, int]] = set()
        self._files: dict[int, int] = {}
        self._stop = threading.Event()
        self._due: list[tuple[float, int, int, bytes]] = []
        try:
            for number in range(count):
                self._join(number)
            self._plug(OWN, f"{self._prefix}own", None)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = getattr(error, "stderr", None) or str(error)
            raise NotPermitted(f"no network namespaces here: {said}") from error
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def host(self, number: int) -> str:
        """A machine's address."""
        return f"{self._net}.{number + 1}"

    def inside(self, number: int) -> tuple[str, ...]:
        """The words before a command that is to run on this machine."""
        return ("nsenter", f"--net=/run/netns/{self._names[number]}")

    def cut(self, some: Iterable[int], others: Iterable[int]) -> float:
        """Nothing passes between these and those any more; returns when that began."""
        theirs = list(others)
        pairs = {(a, b) for a in some for b in theirs}
        self._cut = self._cut | pairs | {(b, a) for a, b in pairs}
        return time.monotonic()

    def heal(self) -> float:
        """Everything passes again; returns since when."""
        self._cut = set()
        return time.monotonic()

    def close(self) -> None:
        """Take the wire and the namespaces away; what ran on them has ended before."""
        self._stop.set()
        thread: threading.Thread | None = getattr(self, "_thread", None)
        if thread is not None:
            thread.join(5.0)
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    # --- inside ---

    def _join(self, number: int) -> None:
        name = self._names[number]
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        self._plug(number, f"{self._prefix}t{number}", name)

    def _plug(self, number: int, device: str, namespace: str | None) -> None:
        file = os.open(TUN_FILE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._files[number] = file
        fcntl.ioctl(file, TUN_SET, struct.pack("16sH", device.encode(), TUN_PLAIN))
        there = () if namespace is None else ("-n", namespace)
        if namespace is not None:
            _ip("link", "set", device, "netns", namespace)
        address = self.host(number) if number != OWN else f"{self._net}.{OWN}"
        _ip(*there, "addr", "add", f"{address}/24", "dev", device)
        _ip(*there, "link", "set", device, "mtu", str(MTU), "up")

    def _carry(self) -> None:
        owners = {file: number for number, file in self._files.items()}
        poller = select.poll()
        for file in owners:
            poller.register(file, select.POLLIN)
        while not self._stop.is_set():
            wait_s = self._due[0][0] - time.monotonic() if self._due else 0.2
            for file, _ in poller.poll(max(0.0, 1000.0 * wait_s)):
                self._read(file, owners[file])
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                _, _, to, packet = heapq.heappop(self._due)
                self._give(to, packet)

    def _read(self, file: int, sender: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(file, MTU + 100)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:
                continue
            last = packet[19]
            to = last if last == OWN else last - 1
            if to not in self._files or (sender, to) in self._cut:
                continue
            self.carried += 1
            if self.delay_s and OWN not in (sender, to):
                due_at = time.monotonic() + self.delay_s
                heapq.heappush(self._due, (due_at, self.carried, to, packet))
            else:
                self._give(to, packet)

    def _give(self, to: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # a full device drops, as a wire does
            os.write(self._files[to], packet)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True, text=True)


@contextlib.contextmanager
def wires(count: int) -> Iterator[NetworkNamespaces]:
    """A wire for as long as the block lasts. Raises NotPermitted."""
    made = NetworkNamespaces(count)
    try:
        yield made
    finally:
        made.close()
