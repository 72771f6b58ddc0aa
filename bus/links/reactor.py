"""Talks to the event loops: `PollReactor` for the services, `AsyncioReactor` for a gateway.

`Reactor` is the seam between a service and its loop. It calls back with messages, timers and
changes of connection, always in one thread. No callback may block.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from bus.links.transport import READABLE, Change, Frames, Link, Poller, fileno_of
from bus.process.clock import now as clock_now
from bus.process.stalls import StallMeter
from bus.wire.ids import NodeId

OnFrames = Callable[[Frames], None]
OnMessage = Callable[[NodeId | None, Frames], None]
BUDGET = 256
"""Messages read from one link before the loop reads other links."""
RENEW_S, RENEW_AGAIN_S = 1.0, 0.02
REOPEN_S = 3.0
"""Interval of the check whether the file of an ipc socket was removed."""
TICK_S, RESTING_S = 0.1, 0.25
WORKING_RATIO = 0.05
"""A loop counts as busy if its thread uses more than this share of a core."""
SOCKET_GONE = "a socket file was removed; opening it again"
SLACK_RATIO, SLACK_MAX_S = 0.25, 0.05
"""How early a periodic timer of `PollReactor` may fire: a share of its period, and a maximum. A
timer that is nearly due runs with the event that woke the loop, because on an idle node waking up
costs the most."""


class Timer:
    """An action that the loop runs at a certain time, unless `cancel` is called before."""

    __slots__ = ("action", "at", "cancelled", "period_s", "slack_s")

    def __init__(self, at: float, action: Callable[[], None], period_s: float | None) -> None:
        self.at = at
        self.action = action
        self.period_s = period_s
        self.slack_s = 0.0 if period_s is None else min(SLACK_RATIO * period_s, SLACK_MAX_S)
        """How many seconds before its time the action may run."""
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the action: it will not run (again)."""
        self.cancelled = True


class Reactor(ABC):
    """The loop of a service. All callbacks run in the loop's one thread."""

    def __init__(self) -> None:
        self.on_reopened: Callable[[str], None] = lambda _path: None
        self._links: list[Link] = []
        self._looks_after_files = self._renews = False
        self._began = self.now()

    def watch(self, link: Link, on_frames: OnFrames) -> None:
        """Call back with each message of the link."""
        self._watch(link, partial(_pass_on, link, on_frames))

    def watch_from(self, link: Link, on_message: OnMessage) -> None:
        """Call back with each message and its sender, proved by its key (`Link.receive_from`)."""
        self._watch(link, partial(_pass_on_from, link, on_message))

    def watch_changes(self, link: Link, on_change: Callable[[Change], None]) -> None:
        """Call back when a connection of the link is made or lost."""
        link.listeners.append(on_change)
        self._read_changes(link)

    @abstractmethod
    def unwatch(self, link: Link) -> None:
        """Stop calling back; call this before the link is closed."""

    def hang_up(self, link: Link) -> None:
        """Stop calling back, and close the link."""
        self.unwatch(link)
        link.close()

    def later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Run an action once, after `delay_s`."""
        return self._start(Timer(self.now() + delay_s, action, None))

    def every(self, period_s: float, action: Callable[[], None]) -> Timer:
        """Run an action every `period_s`, first after one period. A single run may be a little
        early, but not the average.

        From the second run on, an action runs at multiples of its period since the loop began, so
        that the loop wakes up once for several timers. So the second run comes 0.5 to 1.5 periods
        after the first. A run that is late by a whole period is left out.
        """
        return self._start(Timer(self.now() + period_s, action, period_s))

    now = staticmethod(clock_now)
    """Return the seconds of the monotonic clock of `bus.process.clock`."""

    def _watch(self, link: Link, take: Callable[[], bool]) -> None:
        if not self._looks_after_files:
            self._looks_after_files = True
            self.every(REOPEN_S, self._reopen)
        self._links.append(link)
        self._drain(link, take)
        if link.security is not None:
            self._read_changes(link)
        if (link.security is not None or link.named) and not self._renews:
            self._renews = True
            self.every(RENEW_S, self._renew)

    def _renew(self) -> None:
        """Let each open link follow the names of its servers and the changes of the cluster's
        keys."""
        for link in self._links:
            if not link.socket.closed:
                link.named.follow()
            if link.security is not None:
                self._renew_link(link)

    def _renew_link(self, link: Link) -> None:
        """Renew a link's keys. That binds the link's addresses again; if one of them is still in
        use, try again after `RENEW_AGAIN_S`."""
        if not link.socket.closed and not link.renew():
            self.later(RENEW_AGAIN_S, partial(self._renew_link, link))

    def _next_step(self, at: float, period_s: float) -> float:
        """Return the next common run time of timers with this period, at least half a period after
        `at`."""
        steps = math.ceil((at - self._began) / period_s + 0.5 - 1e-6)
        return self._began + steps * period_s

    def _reopen(self) -> None:
        """Let each watched link bind its ipc path again if the path's file was removed."""
        self._links[:] = [link for link in self._links if not link.socket.closed]
        for path in [path for link in self._links for path in link.reopen()]:
            self.on_reopened(path)

    @abstractmethod
    def measure(self, stalls: StallMeter) -> None:
        """Measure the loop's stalls from now on, in the loop's own thread."""

    @abstractmethod
    def _drain(self, link: Link, take: Callable[[], bool]) -> None:
        """Whenever the link may have a message, call `take` until it returns False."""

    @abstractmethod
    def _read_changes(self, link: Link) -> None:
        """Call the link's `read_changes` whenever its monitor has an event."""

    @abstractmethod
    def _start(self, timer: Timer) -> Timer:
        """Schedule a timer, and return it."""


class PollReactor(Reactor):
    """A loop over `Poller`, for the services. `run` returns after `stop`."""

    def __init__(self) -> None:
        super().__init__()
        self._poller = Poller()
        self._watched: dict[Any, Callable[[], bool]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._running = False
        self._more = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._calls: list[Callable[[], None]] = []
        self._closed = False
        self._stalls: StallMeter | None = None
        self._pipe_lock = threading.RLock()  # a signal handler may interrupt
        self._poller.register(self._wake_r, READABLE)

    def _drain(self, link: Link, take: Callable[[], bool]) -> None:
        def drain() -> bool:
            """Read up to `BUDGET` messages; return whether there may be more."""
            return all(not link.socket.closed and take() for _ in range(BUDGET))

        self._watched[link.socket] = drain
        self._poller.register(link.socket, READABLE)

    def _read_changes(self, link: Link) -> None:
        def drain() -> bool:
            """Read all events of the monitor."""
            link.read_changes()
            return False

        monitor = link.monitor()
        self._watched[monitor] = drain
        self._poller.register(monitor, READABLE)

    def unwatch(self, link: Link) -> None:
        """Stop calling back; call this before the link is closed."""
        for socket in link.sockets:
            if self._watched.pop(socket, None) is not None:
                self._poller.unregister(socket)

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` in the loop's thread soon. Any thread may call this; after `close` it does
        nothing."""
        with self._pipe_lock:
            if self._closed:
                return
            self._calls.append(action)
            try:
                os.write(self._wake_w, b"!")
            except BlockingIOError:
                return

    def stop(self) -> None:
        """Make `run` return after the current iteration of the loop. Any thread may call this."""
        self.call(self._stop)

    def wake_on_signals(self) -> None:
        """Let signals wake the loop. Call this in the main thread, which runs the loop. Otherwise a
        signal that arrives just before a wait would be handled only after that wait."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve links and timers until `stop`. An exception of a callback ends the loop."""
        self._running = True
        while self._running:
            self.turn(self._patience())

    def turn(self, timeout_s: float | None = 0.0) -> None:
        """Run one iteration of the loop: wait at most `timeout_s` (None: until something
        happens)."""
        wait = None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))
        ready = dict(self._poller.poll(0 if self._more else wait))
        if self._stalls is not None:
            self._stalls.woke()
        self._more = False
        if self._wake_r in ready:
            self._run_calls()
        for watched in list(ready):
            drain = self._watched.get(watched)
            if drain is not None and drain():
                self._more = True
        self._run_timers()
        if self._stalls is not None:
            self._stalls.done()

    def measure(self, stalls: StallMeter) -> None:
        """Measure each iteration of the loop, from waking up to the next wait."""
        self._stalls = stalls

    def close(self) -> None:
        """Close the wake-up pipe. Links are closed by their owners."""
        with self._pipe_lock:
            self._closed = True
            os.close(self._wake_r)
            os.close(self._wake_w)

    def _stop(self) -> None:
        self._running = False

    def _run_calls(self) -> None:
        try:
            while os.read(self._wake_r, 4096):
                pass
        except BlockingIOError:
            pass
        while self._calls:
            self._calls.pop(0)()

    def _start(self, timer: Timer) -> Timer:
        heapq.heappush(self._timers, (timer.at, next(self._count), timer))
        return timer

    def _patience(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self.now()) if self._timers else None

    def _run_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0][0] <= now + self._timers[0][2].slack_s:
            timer = heapq.heappop(self._timers)[2]
            if timer.cancelled:
                continue
            timer.action()
            if timer.period_s is not None and not timer.cancelled:
                timer.at = self._next_step(max(timer.at, now), timer.period_s)
                self._start(timer)


class AsyncioReactor(Reactor):
    """The reactor over an asyncio (or uvloop) loop. It reads ZMQ_FD itself, because `zmq.asyncio`
    costs ten times as much per message (measured). A send can consume the event that ZMQ_FD would
    signal for a received message, so each send on a watched link schedules a read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._filenos: set[int] = set()

    def _drain(self, link: Link, take: Callable[[], bool]) -> None:
        due = False

        def drain() -> None:
            """Read up to `BUDGET` messages. If more may be waiting, read again in the loop's next
            turn."""
            nonlocal due
            due = False
            for _ in range(BUDGET):
                if link.socket.closed or not take():
                    return
            soon()

        def soon() -> None:
            """Schedule one read of the link for the loop's next turn."""
            nonlocal due
            if not due:
                due = True
                self._loop.call_soon(drain)

        link.on_sent = soon
        self._add(fileno_of(link.socket), drain)

    def _read_changes(self, link: Link) -> None:
        self._add(fileno_of(link.monitor()), link.read_changes)

    def measure(self, stalls: StallMeter) -> None:
        """Measure how late a timer fires, because the iterations of such a loop cannot be observed.
        So up to one period of each stall is missed: `TICK_S` while the loop is busy, else
        `RESTING_S`."""
        spent_s = time.thread_time()

        def look() -> None:
            """Measure how late this timer fires. Choose its next period by how busy the thread
            was."""
            nonlocal spent_s
            stalls.late(self.now() - timer.at)
            before_s, spent_s = spent_s, time.thread_time()
            is_working = spent_s - before_s > WORKING_RATIO * (timer.period_s or TICK_S)
            timer.period_s = TICK_S if is_working else RESTING_S

        timer = self.every(TICK_S, look)

    def unwatch(self, link: Link) -> None:
        """Stop calling back; call this before the link is closed."""
        link.on_sent = None
        for socket in link.sockets:
            fileno = fileno_of(socket)
            if fileno in self._filenos:
                self._filenos.discard(fileno)
                self._loop.remove_reader(fileno)

    def _add(self, fileno: int, drain: Callable[[], None]) -> None:
        self._filenos.add(fileno)
        self._loop.add_reader(fileno, drain)
        self._loop.call_soon(drain)

    def _start(self, timer: Timer) -> Timer:
        self._loop.call_later(timer.at - self.now(), self._fire, timer)
        return timer

    def _fire(self, timer: Timer) -> None:
        if timer.cancelled:
            return
        try:
            timer.action()
        finally:  # the loop reports an exception; the timer continues
            if timer.period_s is not None and not timer.cancelled:
                timer.at = self._next_step(max(timer.at, self.now()), timer.period_s)
                self._start(timer)


def _pass_on(link: Link, on_frames: OnFrames) -> bool:
    """Deliver one message of the link; return whether there was a message."""
    frames = link.receive()
    if frames is None:
        return False
    on_frames(frames)
    return True


def _pass_on_from(link: Link, on_message: OnMessage) -> bool:
    message = link.receive_from()
    if message is None:
        return False
    on_message(*message)
    return True
