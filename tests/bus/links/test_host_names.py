"""Host names are looked up beside the loops: one whose name server is silent holds nobody up."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import pytest

from bus.links import host_names, transport
from bus.links import reactor as reactor_module
from bus.links.host_names import HostNames, has_name, resolve
from bus.links.reactor import PollReactor
from bus.links.transport import Link


@dataclass
class NameServer:
    """A resolver whose answers the test sets, and which may be silent."""

    answers: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    silent: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list[str])

    def resolve(self, host: str) -> tuple[str, ...]:
        self.asked.append(host)
        while self.silent.is_set():
            time.sleep(0.005)
        return self.answers.get(host, ())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[NameServer]:
    made = NameServer()
    monkeypatch.setattr(host_names, "AGAIN_S", 0.05)
    monkeypatch.setattr(reactor_module, "RENEW_S", 0.05)
    monkeypatch.setattr(transport, "_names", HostNames(made.resolve))
    yield made
    made.silent.clear()


def until(done: Callable[[], bool], reactor: PollReactor | None = None) -> None:
    ends = time.monotonic() + 20
    while not done():
        assert time.monotonic() < ends, "it takes too long"
        if reactor is None:
            time.sleep(0.005)
        else:
            reactor.turn(0.02)


def test_addresses_are_no_names_and_the_systems_resolver_knows_this_machine() -> None:
    hosts = ("desk.local", "localhost", "10.0.0.1", "[::1]", "[fe80::1%eth0]")
    assert [has_name(f"tcp://{host}:1") for host in hosts] == [True, True, False, False, False]
    assert not has_name("ipc://some.file") and not has_name("inproc://name")
    assert "127.0.0.1" in resolve("localhost")
    assert resolve("no-such-machine.invalid") == () == resolve("\u2603" * 80)


def test_a_lookup_runs_once_at_a_time_and_a_failed_one_keeps_the_last_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = NameServer({"desk": ("10.0.0.1", "10.0.0.2")})
    names = HostNames(server.resolve)
    server.silent.set()
    assert [names.addresses("desk") for _ in range(20)] == [()] * 20
    until(lambda: server.asked == ["desk"])
    server.silent.clear()
    until(lambda: names.addresses("desk") == ("10.0.0.1", "10.0.0.2"))
    assert server.asked == ["desk"], "it is not looked up again so soon"
    assert names.addresses("lamp", wait_s=5) == (), "a name without addresses is no long wait"
    monkeypatch.setattr(host_names, "AGAIN_S", 0.0)
    server.answers.clear()
    until(lambda: names.addresses("desk") != () and server.asked.count("desk") > 3)
    server.answers["desk"] = ("10.0.0.3",)
    until(lambda: names.addresses("desk") == ("10.0.0.3",))


def test_a_silent_name_server_holds_up_no_other_link(server: NameServer) -> None:
    reactor, messages = PollReactor(), list[bytes]()
    inbox = Link("router")
    port = inbox.bind("tcp://127.0.0.1:*").rpartition(":")[2]
    reactor.watch(inbox, lambda frames: messages.append(frames[-1]))
    server.silent.set()
    waiting, other = Link("dealer"), Link("dealer")
    waiting.connect(f"tcp://desk.localhost:{port}")
    reactor.watch(waiting, lambda _frames: None)
    assert not waiting.send(b"nobody is there yet")
    other.connect(f"tcp://127.0.0.1:{port}")
    assert other.send(b"at once")
    until(lambda: messages == [b"at once"], reactor)
    server.answers["desk.localhost"] = ("127.0.0.1",)
    server.silent.clear()
    until(lambda: waiting.send(b"later"), reactor)
    until(lambda: messages == [b"at once", b"later"], reactor)
    for link in (inbox, waiting, other):
        reactor.hang_up(link)
    reactor.close()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has one loopback address")
def test_a_link_follows_a_name_to_its_next_address(server: NameServer) -> None:
    reactor, heard = PollReactor(), list[str]()
    here, there, link = Link("router"), Link("router"), Link("dealer", identity="me")
    port = here.bind("tcp://127.0.0.1:*").rpartition(":")[2]
    there.bind(f"tcp://127.0.0.2:{port}")
    reactor.watch(here, lambda _frames: heard.append("here"))
    reactor.watch(there, lambda _frames: heard.append("there"))
    server.answers["desk.localhost"] = ("127.0.0.1",)
    link.connect(f"tcp://desk.localhost:{port}")
    reactor.watch(link, lambda _frames: None)
    assert link.send(b"1"), "a short lookup is waited for"
    until(lambda: heard == ["here"], reactor)
    server.answers["desk.localhost"] = ("127.0.0.2", "127.0.0.1")
    until(lambda: len(server.asked) > 4, reactor)
    assert link.send(b"2")
    until(lambda: heard == ["here"] * 2, reactor)
    server.answers["desk.localhost"] = ("127.0.0.2",)
    until(lambda: link.send(b"3") and "there" in heard, reactor)
    link.disconnect(f"tcp://desk.localhost:{port}")
    assert not link.named and not link.send(b"4")
    for each in (here, there, link):
        reactor.hang_up(each)
    reactor.close()
