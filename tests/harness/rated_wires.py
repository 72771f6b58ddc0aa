"""Talks to the kernel: machines on one bridge, each a network namespace whose wire has a rate.

Every machine has a veth pair; its two ends are shaped (`tc tbf`), so that both directions have the
rate. This process has an address on the bridge, which is not shaped. Needs root on Linux.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator

from tests.harness.network_namespaces import NotPermitted

_BRIDGES = itertools.count()
OWN = 254


class RatedWires:
    """`count` machines, numbered from 0, whose wires carry `bits_per_s` each way."""

    def __init__(self, count: int, bits_per_s: float) -> None:
        unique = os.getpid() * 4 + next(_BRIDGES) % 4
        self._net = f"10.{192 + unique // 250 % 32}.{unique % 250}"
        self._prefix = f"rw{unique % 10**6}"
        self._bridge = f"{self._prefix}b"
        self._names = [f"{self._prefix}n{number}" for number in range(count)]
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{self._net}.{OWN}/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for number in range(count):
                self._join(number)
            self.rate(bits_per_s)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise NotPermitted(f"no rated wires here: {getattr(error, 'stderr', error)}") from error

    def host(self, number: int) -> str:
        """A machine's address."""
        return f"{self._net}.{number + 1}"

    def inside(self, number: int) -> tuple[str, ...]:
        """The words before a command that is to run on this machine."""
        return ("nsenter", f"--net=/run/netns/{self._names[number]}")

    def rate(self, bits_per_s: float) -> None:
        """Change the rate of all wires."""
        burst = max(int(bits_per_s / 8 / 250), 16_000)
        shape = ("root", "tbf", "rate", f"{bits_per_s:.0f}bit", "burst", str(burst))
        for name in self._names:
            for where in (("-n", name, "eth0"), (f"{name}e",)):
                *space, device = where
                _run("tc", *space, "qdisc", "replace", "dev", device, *shape, "latency", "50ms")

    def close(self) -> None:
        """Take the bridge and the namespaces away; what ran on them has ended before."""
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    def _join(self, number: int) -> None:
        name = self._names[number]
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"{name}e", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"{name}e", "master", self._bridge, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", name, "addr", "add", f"{self.host(number)}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, check=True, text=True)


@contextlib.contextmanager
def rated_wires(count: int, bits_per_s: float) -> Iterator[RatedWires]:
    """Wires for as long as the block lasts. Raises NotPermitted."""
    made = RatedWires(count, bits_per_s)
    try:
        yield made
    finally:
        made.close()
