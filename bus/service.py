"""Talks to the operating system for every service: its life, from the lock to a clean end.

`run_service` is the outer shell of a service. A lock prevents two processes of one service on a
node. The process ends when its supervisor dies; SIGTERM and SIGINT end the loop in an orderly way.
A sampler thread returns this process's stacks where ptrace is forbidden. Exit codes: 0 stopped, 1
failed, 3 another process of this service is running, 75 its supervisor died.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import resource
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import setproctitle

from bus.client import BusClient, Speaker
from bus.links.cluster_key import KeyFiles
from bus.links.keyring import Keyring, open_keyring
from bus.links.reactor import REOPEN_S, SOCKET_GONE, PollReactor, Reactor
from bus.links.security import Security
from bus.links.traffic import Traffic, open_traffic
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.identity import RoleLock, new_boot
from bus.process.installation import running_code
from bus.process.logs import LevelSource, Log, death_note, follow_level, log_strays, story_of
from bus.process.stalls import StallMeter
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import AlreadyRunning, BadKey, BadMessage, Exposed, WrittenLater
from bus.wire.ids import NodeId
from bus.wire.messages.control import AskStacks, StackSample

EXIT_FAILED = 1
EXIT_ROLE_TAKEN = 3
EXIT_ORPHANED = 75
ORPHAN_GRACE_S = 3.0
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61


@runtime_checkable
class EndsInOrder(Protocol):
    """A service that needs time for an orderly shutdown, between the signal to stop and `close`."""

    def end_in_order(self, done: Callable[[], None]) -> None:
        """Begin the orderly shutdown, without waiting for its end. The service calls `done` once,
        in the loop's thread; then the loop stops."""
        ...


class Closeable(Protocol):
    """The service that `build` returns. It is closed when its loop has ended."""

    def close(self) -> None:
        """Close everything that the service opened."""
        ...


@dataclass(frozen=True, slots=True)
class Shell:
    """The process-wide objects that a service is built from."""

    speaker: Speaker
    endpoints: Endpoints
    reactor: PollReactor
    log: Log
    keyring: Keyring | None = None
    """Keys of the cluster, or of this machine. None if the process doesn't use TCP."""
    traffic: Traffic = field(default_factory=lambda: Traffic(NodeId("")))
    """Counts bytes over links to other nodes."""

    def client(self, *, follow: bool = True) -> BusClient:
        """Return this process's connection to the bus. `follow`: mirror the cluster's state."""
        return BusClient(
            self.speaker,
            self.endpoints,
            self.reactor,
            self.log,
            follow=follow,
            security=self.security,
            traffic=self.traffic,
        )

    @property
    def security(self) -> Security | None:
        """Return the security for links to and from other nodes."""
        return None if self.keyring is None else self.keyring.node


def open_client(
    speaker: Speaker, endpoints: Endpoints, reactor: Reactor, log: Log, keys: KeyFiles | None
) -> BusClient:
    """Return a connection to the bus for a process without a `Shell`. Its owner closes the client's
    `traffic`, too."""
    keyring = keys and open_keyring(keys, node=speaker.node, log=log)
    return BusClient(
        speaker,
        endpoints,
        reactor,
        log,
        security=keyring and keyring.node,
        traffic=open_traffic(endpoints.folder, speaker.process, speaker.node),
    )


def run_service(
    process: str,
    *,
    node: NodeId,
    endpoints: Endpoints,
    log_level: str,
    build: Callable[[Shell], Closeable],
    keys: KeyFiles | None = None,
    trouble: str = "",
    levels: LevelSource | None = None,
) -> int:
    """Run a service until a signal stops it; return the exit code. `trouble`, a fault in the
    settings, is logged as a warning. `levels` sets the log level while the service runs."""
    log = Log(node=node, process=process, level=log_level)
    log_strays(log, death_note(endpoints.folder, process))
    forbid_core_dumps()
    if trouble:
        log.warning(trouble)
    setproctitle.setproctitle(f"shoal {process} {node}")
    reactor = PollReactor()
    try:
        with role_lock(endpoints, process) as role:
            _look_after_files(reactor, role, log)
            die_with_supervisor(lambda: os.kill(os.getpid(), signal.SIGTERM))
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda _n, _f: reactor.stop())
            reactor.wake_on_signals()
            keyring = None if keys is None else open_keyring(keys, node=node, log=log)
            traffic = open_traffic(endpoints.folder, process, node)
            speaker = Speaker(node, process, new_boot())
            shell = Shell(speaker, endpoints, reactor, log, keyring, traffic)
            follow_level(log, levels, reactor.every)
            with stack_sampler(endpoints, shell.speaker):
                service = build(shell)
                if isinstance(service, EndsInOrder):
                    let_end_in_order(reactor, service)
                log.info("started", pid=os.getpid(), boot=speaker.boot, code=running_code())
                _run_until_stopped(shell, service)
    except AlreadyRunning as error:
        log.error(str(error))
        return EXIT_ROLE_TAKEN
    except (BadKey, Exposed, WrittenLater) as error:
        log.error(str(error))
        return EXIT_FAILED
    except Exception as error:
        log.critical("stopped by an internal error", error=story_of(error))
        return EXIT_FAILED
    log.info("stopped")
    return 0


def _run_until_stopped(shell: Shell, service: Closeable) -> None:
    """Run the loop and measure its stalls; then close the service and the meters."""
    stalls = StallMeter(Path(shell.endpoints.folder), shell.speaker.process)
    shell.reactor.measure(stalls)
    try:
        shell.reactor.run()
    finally:
        service.close()
        stalls.close()
        shell.traffic.close()


def _look_after_files(reactor: PollReactor, role: RoleLock, log: Log) -> None:
    """Create deleted socket files and the process's lock file again, with a warning."""
    reactor.on_reopened = lambda path: log.warning(SOCKET_GONE, path=path)
    reactor.every(REOPEN_S, lambda: role.look(log))


def let_end_in_order(reactor: PollReactor, service: EndsInOrder) -> None:
    """On the first SIGTERM or SIGINT let the service shut down in an orderly way; on the second
    stop the loop at once."""
    signals: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        signals.append(number)
        if len(signals) == 1:
            reactor.call(lambda: service.end_in_order(reactor.stop))
        else:
            reactor.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


@contextlib.contextmanager
def role_lock(endpoints: Endpoints, process: str) -> Generator[RoleLock]:
    """Hold the lock of a service within the context. Raises AlreadyRunning with the pid of the
    process that has it."""
    lock = RoleLock(endpoints, process)
    try:
        yield lock
    finally:
        lock.release()


def sweep_role(endpoints: Endpoints, process: str) -> list[str]:
    """Delete the sockets and locks that a killed process left behind; return their names. Nothing
    is deleted while a living process has the service's lock."""
    stem = process.replace(":", "-")
    files = sorted(path for path in Path(endpoints.folder).glob(f"{stem}.*"))
    if not files:
        return []
    try:
        with role_lock(endpoints, process):
            for path in files:
                path.unlink(missing_ok=True)
    except AlreadyRunning:
        return []
    return [path.name for path in files]


def forbid_core_dumps() -> None:
    """Prevent core dumps, because a process's memory contains prompts and keys. The limit can be
    raised while a process runs (`prlimit --core=unlimited --pid`)."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def die_with_supervisor(end: Callable[[], None]) -> None:
    """Call `end` when supervisord dies, and exit 3 s later in any case.

    There are two triggers, because neither covers every case. One is the parent-death signal
    (Linux). The other is the end of our standard input, a pipe from supervisord (everywhere).
    """
    _prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1).value)
    if not os.environ.get("SUPERVISOR_ENABLED"):
        return
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(EXIT_ORPHANED)
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        threading.Thread(target=_watch_stdin, args=(end,), name="orphan-watch", daemon=True).start()


def _watch_stdin(end: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    leave = threading.Timer(ORPHAN_GRACE_S, os._exit, (EXIT_ORPHANED,))
    leave.daemon = True
    leave.start()
    end()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


@contextlib.contextmanager
def stack_sampler(endpoints: Endpoints, speaker: Speaker) -> Generator[None]:
    """Answer `AskStacks` in a separate thread. SIGUSR2 writes all stacks to standard error, even
    while a C call holds the GIL."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        faulthandler.register(signal.SIGUSR2, all_threads=True)
    loop = PollReactor()
    thread = threading.Thread(
        target=_sample, args=(endpoints, speaker, loop), name="stack-sampler", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        loop.stop()
        thread.join(1.0)


def _sample(endpoints: Endpoints, speaker: Speaker, loop: PollReactor) -> None:
    link = Link("router")

    def reply(frames: list[bytes]) -> None:
        """Answer a request for this process's stacks."""
        try:
            question = decode(frames[1]).message if len(frames) == 2 else None
        except BadMessage:
            return
        if isinstance(question, AskStacks):
            answer = StackSample(threads=tuple(own_stacks()))
            envelope = Envelope(speaker.node, speaker.process, speaker.boot, 0, answer)
            link.send(frames[0], encode(envelope))

    try:
        link.bind(endpoints.stacks(speaker.process))
        loop.watch(link, reply)
        loop.run()
        loop.unwatch(link)
    except AlreadyRunning:
        pass
    finally:
        link.close()
        loop.close()


def own_stacks() -> list[dict[str, Any]]:
    """Return the stacks of this process's threads, innermost frame first, without locals."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks: list[dict[str, Any]] = []
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        frames = [
            {"name": entry.name, "filename": entry.filename, "line": entry.lineno}
            for entry in reversed(traceback.extract_stack(frame))
        ]
        stacks.append({"thread_id": ident, "thread_name": names.get(ident), "frames": frames})
    return stacks


def place_of(thread: str) -> str:
    """Return where in the code a thread of this process is now, as `function (file:line)`; empty if
    there is no such thread."""
    for stack in own_stacks():
        if stack["thread_name"] == thread and stack["frames"]:
            frame = stack["frames"][0]
            return f"{frame['name']} ({frame['filename']}:{frame['line']})"
    return ""


def sampled_thread(pid: int, thread: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a thread of `own_stacks` to the format of py-spy's stacks.

    `active` and `owns_gil` are None, because a process can't know them of its own threads.
    """
    return {
        "pid": pid,
        "thread_id": thread.get("thread_id", 0),
        "name": thread.get("thread_name") or "",
        "active": None,
        "owns_gil": None,
        "frames": thread.get("frames", []),
    }


def stacks_content(
    process: str, pid: int, method: str, note: str, threads: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return stacks as JSON: {process, pid, method, note, threads: [{pid, thread_id, name, active,
    owns_gil, frames: [{name, filename, line}]}]}, innermost frame first."""
    content = {"process": process, "pid": pid, "method": method, "note": note, "threads": threads}
    return json.dumps(content).encode()


def own_stacks_content(process: str, note: str) -> bytes:
    """Return `stacks_content` of this process, sampled now."""
    pid = os.getpid()
    threads = [sampled_thread(pid, thread) for thread in own_stacks()]
    return stacks_content(process, pid, "in-process", note, threads)
