"""The services' loop: what other threads may ask of it, and when it is over."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from bus.links import reactor as reactor_module
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.wire.errors import AlreadyRunning


def test_what_another_thread_asks_is_done_in_the_loop() -> None:
    reactor = PollReactor()
    done: list[int] = []
    reactor.call(lambda: done.append(1))
    assert not done
    reactor.turn()
    assert done == [1]
    reactor.close()


def test_a_closed_loop_is_asked_in_vain_and_writes_into_nobodys_file() -> None:
    reactor = PollReactor()
    reactor.close()
    read, write = os.pipe()  # takes up the numbers that the loop gave back
    os.set_blocking(read, False)
    reactor.call(lambda: None)
    reactor.stop()
    try:
        assert os.read(read, 16) == b""
    except BlockingIOError:
        pass
    finally:
        os.close(read)
        os.close(write)


def test_a_periodic_timer_that_is_nearly_due_goes_with_what_woke_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 100.0
    monkeypatch.setattr(PollReactor, "now", staticmethod(lambda: clock))
    reactor = PollReactor()
    fired: list[tuple[str, float]] = []
    reactor.every(1.0, lambda: fired.append(("second", clock)))
    reactor.every(0.1, lambda: fired.append(("tenth", clock)))
    once = reactor.later(0.97, lambda: fired.append(("once", clock)))
    for step in range(1, 1001):
        clock = 100.0 + step * 0.01
        reactor.turn()
    reactor.close()
    (at,) = (at for name, at in fired if name == "once")
    assert once.at <= at, "what is asked for once is never early"
    for name, period_s, slack_s in (("second", 1.0, 0.05), ("tenth", 0.1, 0.025)):
        times = [at for other, at in fired if other == name]
        assert len(times) == round(10.0 / period_s), "on average it keeps its period"
        for count, at in enumerate(times, 1):
            assert -slack_s - 1e-6 <= at - (100.0 + count * period_s) <= 0.01 + 1e-6
    assert fired[-1][1] > 109.9


def test_timers_keep_step_from_their_second_run_on_and_begin_after_a_whole_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 100.0
    monkeypatch.setattr(PollReactor, "now", staticmethod(lambda: clock))
    reactor = PollReactor()
    fired: dict[float, list[float]] = {}
    for step in range(1, 2001):
        clock = 100.0 + step * 0.01
        if clock in (100.37, 102.9, 104.02):

            def note(began: float = clock) -> None:
                fired.setdefault(began, []).append(round(reactor.now(), 2))

            reactor.every(1.0, note)
        reactor.turn()
    reactor.close()
    assert len(fired) == 3
    for began, times in fired.items():
        assert 0.95 <= times[0] - began <= 1.02, "the first run is never early"
        assert 0.45 <= times[1] - times[0] <= 1.52
    assert len({tuple(times[-10:]) for times in fired.values()}) == 1, "they wake up together"


@pytest.mark.parametrize("removed", [("s",), ("s.lock",), ("s", "s.lock")])
def test_a_socket_whose_file_was_removed_is_opened_anew_and_keeps_its_connections(
    monkeypatch: pytest.MonkeyPatch, removed: tuple[str, ...]
) -> None:
    monkeypatch.setattr(reactor_module, "REOPEN_S", 0.05)
    reactor, heard = PollReactor(), list[bytes]()
    opened: list[str] = []
    reactor.on_reopened = opened.append
    with tempfile.TemporaryDirectory(prefix="sh") as made:
        folder = Path(made) / "gone"
        folder.mkdir()
        served, before, after = Link("router"), Link("dealer"), Link("dealer")
        served.bind(f"ipc://{folder}/s")
        reactor.watch(served, lambda frames: heard.append(frames[-1]))

        def is_heard(link: Link, text: bytes) -> None:
            """Have it said until it is heard, for at most some seconds."""
            ends_at = time.monotonic() + 20
            while text not in heard:
                link.send(text)
                reactor.turn(0.02)
                assert time.monotonic() < ends_at, f"{text!r} is not heard"

        before.connect(f"ipc://{folder}/s")
        is_heard(before, b"before")
        for name in removed:
            (folder / name).unlink()
        if len(removed) == 2:
            folder.rmdir()
            for _ in range(5):
                reactor.turn(0.02)
            assert not folder.exists() and not opened, "nothing is done without a folder"
            folder.mkdir()
        after.connect(f"ipc://{folder}/s")
        is_heard(after, b"after")
        is_heard(before, b"still")
        while not (folder / "s.lock").exists():
            reactor.turn(0.02)
        second = Link("router")
        with pytest.raises(AlreadyRunning):
            second.bind(f"ipc://{folder}/s")
        second.close()
        assert opened == ([f"{folder}/s"] if "s" in removed else [])
        for link in (served, before, after):
            reactor.hang_up(link)
        assert list(folder.iterdir()) == []
    reactor.close()
