"""The services' loop: what other threads may ask of it, and when it is over."""

from __future__ import annotations

import os

from bus.loops import PollReactor


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
