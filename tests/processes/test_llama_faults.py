"""A runner process with a GGUF model whose llama-server fails: what its client sees, how soon, and
what is left over. Bounds are those of the faults of shoal's own engine (`test_faults`)."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bus.service import sweep_role
from bus.wire.ids import RequestId
from bus.wire.messages.tokens import Cancel, Credit, Failed, Finished
from conf.paths import LLAMA_PROGRAM
from tests.harness.fake_llama_server import program_in, set_fault
from tests.harness.llama_site import needs_program, tiny_gguf
from tests.harness.slot import FakeGateway, Slot, Stream, request, started_slot
from tests.processes.conftest import Ledger

pytestmark = [pytest.mark.proof, needs_program]
LOADS_S = 3.0
"""The load deadline of the runners that do not become ready."""
KILLED_S, STILL_S, REFUSED_S = 3.0, 15.0, 3.0
"""Bounds of `kill -9`, of an engine that stands still, and of an answer that goes wrong."""
ROWS, WAITING = 4, 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny")


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    return program_in(tmp_path / "program")


@contextlib.contextmanager
def runner(home: Path, model: Path, program: Path | None = None, **spec: Any) -> Generator[Served]:
    """Start a runner for the model, with this llama-server or the installed one."""
    given: Any = {"context_tokens": 1024, "max_rows": ROWS, "max_waiting": WAITING, **spec}
    with started_slot(home / "home", model, llama_server=program, dtype="gguf", **given) as slot:
        served = Served(slot)
        try:
            yield served
        finally:
            served.close()


class Served:
    """A runner, and its gateway once it is ready."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.gateway: FakeGateway | None = None
        self._seen: dict[int, psutil.Process] = {}

    def load(self) -> None:
        """Send the spec, and wait for the child."""
        self.slot.until(lambda: bool(self.slot.hellos), "a first hello")
        self.slot.tell(self.slot.spec)

    def ready(self) -> FakeGateway:
        self.load()
        self.slot.until(lambda: self.slot.phase in ("ready", "ended"), "ready", 90.0)
        assert self.slot.phase == "ready", self.slot.hellos[-1].message
        self.gateway = FakeGateway(self.slot)
        self.look()
        return self.gateway

    def look(self) -> psutil.Process | None:
        """Return llama-server, if it runs; note all processes of the runner."""
        found: psutil.Process | None = None
        with contextlib.suppress(psutil.Error):
            for each in psutil.Process(self.slot.process.pid).children(recursive=True):
                self._seen[each.pid] = each
                with contextlib.suppress(psutil.Error):
                    found = each if "--kv-unified" in each.cmdline() else found
        return found

    def child(self) -> psutil.Process:
        self.slot.until(lambda: self.look() is not None, "llama-server")
        child = self.look()
        assert child is not None
        return child

    def long(self, name: str) -> Stream:
        """Ask for a long answer, and wait until it flows."""
        assert self.gateway is not None
        stream = self.gateway.submit(request(name, max_tokens=900))
        self.gateway.until(lambda: stream.deltas, "tokens", 60.0)
        return stream

    def left(self) -> str:
        """Return what is left of the runner's children and of llama-server's socket."""
        ends_at = time.monotonic() + 2.0
        while alive := [pid for pid, each in self._seen.items() if runs(each)]:
            if time.monotonic() > ends_at:
                break
            time.sleep(0.02)
        sockets = [path.name for path in self.folder.glob("*.llama.sock")]
        return ", ".join([*map(str, alive), *sockets]) or "nothing"

    @property
    def folder(self) -> Path:
        return Path(self.slot.endpoints.folder)

    def close(self) -> None:
        if self.gateway is not None:
            self.gateway.close()


def runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def told(stream: Stream) -> str:
    match stream.end:
        case Failed(reason=reason, message=message):
            return f"{reason}: {message[:100]}"
        case _:
            return f"finish {stream.finishes}"


def ended(
    served: Served, ledger: Ledger, fault: str, at: float, streams: list[Stream], **row: Any
) -> str:
    """Wait for the ends of the streams and of the runner, note the fault's row, and return the
    runner's last message."""
    gateway, slot = served.gateway, served.slot
    seconds = 0.0
    saw = "a load that fails"
    if gateway is not None:
        gateway.ended(*streams)
        seconds = time.monotonic() - at
        saw = told(streams[0])
        assert all(isinstance(stream.end, Failed) for stream in streams), saw
        assert {stream.end.reason for stream in streams if isinstance(stream.end, Failed)} == {
            "runner_lost"
        }, saw
    code = slot.exit_code()
    seconds = seconds or time.monotonic() - at
    message = slot.ended.message if slot.ended is not None else ""
    left = served.left()
    note(ledger, fault, f"{saw}; exit {code}: {message[:110]}", seconds, row["bound_s"], left, 1)
    assert code == row["code"], message
    return message


def note(
    ledger: Ledger, fault: str, saw: str, seconds: float, bound_s: float, left: str, reloaded: int
) -> None:
    ledger(
        f"llama-server: {fault}", saw=f"{saw}; left over: {left}", seconds=seconds,
        bound_s=bound_s, reloaded=reloaded,
    )  # fmt: skip
    assert left == "nothing", left


# --- the real one ---------------------------------------------------------------------------


def test_kill_9_in_a_stream(tmp_path: Path, model: Path, ledger: Ledger) -> None:
    with runner(tmp_path, model) as served:
        served.ready()
        streams = [served.long(f"cut{number}") for number in range(3)]
        at = time.monotonic()
        served.child().kill()
        said = ended(served, ledger, "kill -9", at, streams, bound_s=KILLED_S, code=71)
        assert "killed by signal 9" in said


def test_kill_9_in_the_load(tmp_path: Path, model: Path, ledger: Ledger) -> None:
    with runner(tmp_path, model) as served:
        served.load()
        at = time.monotonic()
        served.child().kill()
        said = ended(served, ledger, "kill -9 in the load", at, [], bound_s=KILLED_S, code=71)
        assert "llama-server was killed by signal 9" in said


@pytest.mark.parametrize("begun", [True, False], ids=["in a stream", "before a stream"])
def test_sigstop(tmp_path: Path, model: Path, ledger: Ledger, begun: bool) -> None:
    with runner(tmp_path, model) as served:
        gateway = served.ready()
        streams = [served.long("still")] if begun else []
        at = time.monotonic()
        served.child().suspend()
        if not begun:
            streams = [gateway.submit(request("into silence"))]
        fault = f"SIGSTOP {'in' if begun else 'before'} a stream"
        said = ended(served, ledger, fault, at, streams, bound_s=STILL_S, code=70)
        assert "used no processor time" in said


def test_sigstop_in_the_load(tmp_path: Path, model: Path, ledger: Ledger) -> None:
    with runner(tmp_path, model, load_deadline_s=LOADS_S) as served:
        served.load()
        at = time.monotonic()
        served.child().suspend()
        bound_s = LOADS_S + KILLED_S
        said = ended(served, ledger, "SIGSTOP in the load", at, [], bound_s=bound_s, code=72)
        assert "not ready within 3 s" in said


def test_kill_9_of_the_runner(tmp_path: Path, model: Path, ledger: Ledger) -> None:
    with runner(tmp_path, model) as served:
        served.ready()
        served.long("orphan")
        child = served.child()
        at = time.monotonic()
        served.slot.process.kill()
        served.slot.process.wait(10)
        gone = psutil.wait_procs([child], 10)[1]
        seconds = time.monotonic() - at
        assert not gone
        sweep_role(served.slot.endpoints, "runner:00")
        left = served.left()
        saw = "the runner's end; llama-server ends with it"
        note(ledger, "kill -9 of its runner", saw, seconds, KILLED_S, left, 1)


def limited(folder: Path, kib: int) -> Path:
    """Write a script that starts the real llama-server with so much address space."""
    folder.mkdir()
    script = folder / "llama-server"
    start = f'exec "{sys.executable}" -P -m {LLAMA_PROGRAM} "$@"'
    script.write_text(f"#!/bin/sh\nulimit -v {kib}\n{start}\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("kib", [60_000, 160_000])
def test_no_memory_in_the_load(tmp_path: Path, model: Path, ledger: Ledger, kib: int) -> None:
    with runner(tmp_path, model, limited(tmp_path / "limited", kib)) as served:
        served.load()
        at = time.monotonic()
        fault = f"RLIMIT_AS of {kib // 1000} MB in the load"
        said = ended(served, ledger, fault, at, [], bound_s=10.0, code=72)
        assert "llama-server" in said and ";" in said


def test_no_memory_in_a_stream(tmp_path: Path, model: Path, ledger: Ledger) -> None:
    with runner(tmp_path, model) as served:
        gateway = served.ready()
        child = served.child()
        used = child.memory_info().vms
        resource.prlimit(child.pid, resource.RLIMIT_AS, (used, used))
        at = time.monotonic()
        asked = [request(f"full{n}", "once upon a time " * 60, max_tokens=200) for n in range(8)]
        streams = [gateway.submit(each) for each in asked]
        said = ended(served, ledger, "RLIMIT_AS in a stream", at, streams, bound_s=3.0, code=71)
        assert "llama-server" in said


def test_two_hundred_clients_that_disconnect(tmp_path: Path, model: Path, ledger: Ledger) -> None:
    with runner(tmp_path, model) as served:
        gateway = served.ready()
        before = gateway.submit(request("before", max_tokens=20, ignore_eos=False))
        gateway.ended(before)
        child = served.child()
        files, threads = child.num_fds(), child.num_threads()
        own = psutil.Process(served.slot.process.pid)
        own_files, own_threads = own.num_fds(), own.num_threads()
        at = time.monotonic()
        streams: list[Stream] = []
        for number in range(200):
            name, sliced = f"leaves{number}", number % 2 == 0
            asked = request(name, f"{number} fish", max_tokens=400, ignore_eos=sliced)
            streams.append(gateway.submit(asked))
            if number % 4:
                gateway.until(lambda one=streams[-1]: one.answer is not None, "an answer")
            else:
                gateway.until(lambda one=streams[-1]: one.deltas or one.end, "tokens")
            gateway.send(Cancel(RequestId(name), "client"))
        gateway.ended(*streams, seconds=60.0)
        seconds = time.monotonic() - at
        finishes = sorted({finish for stream in streams for finish in stream.finishes})
        assert set(finishes) <= {"cancelled", "stop"}
        after = gateway.submit(request("after", max_tokens=20, ignore_eos=False))
        gateway.ended(after)
        assert after.text() == before.text()
        open_more = own.num_fds() - own_files
        served.slot.until(lambda: own.num_threads() <= own_threads + 2, "threads end", 10.0)
        served.slot.until(lambda: child.num_fds() <= files + 2, "connections end", 10.0)
        assert open_more <= 2 and child.num_threads() <= threads + 2
        served.slot.process.terminate()
        assert served.slot.exit_code() == 0
        saw = f"200 ends {finishes}, the next answer equal, +{open_more} files"
        note(ledger, "200 disconnects", saw, seconds, 60.0, served.left(), 0)


def test_a_reader_that_stops_holds_up_nobody(tmp_path: Path, model: Path, ledger: Ledger) -> None:
    with runner(tmp_path, model, drop_idle_s=2.0) as served:
        gateway = served.ready()
        alone = gateway.submit(request("alone", max_tokens=200))
        gateway.ended(alone)
        at = time.monotonic()
        slow = gateway.submit(request("slow", max_tokens=200), credit=3)
        late = gateway.submit(request("late", max_tokens=200), credit=3)
        beside = gateway.submit(request("beside", max_tokens=200))
        gateway.until(lambda: len(late.deltas) == 3, "all that it may send")
        gateway.send(Credit(RequestId("late"), 0, 1000))
        gateway.ended(slow, late, beside, seconds=20.0)
        seconds = time.monotonic() - at
        assert isinstance(slow.end, Failed) and slow.end.reason == "deadline"
        assert isinstance(late.end, Finished) and isinstance(beside.end, Finished)
        assert late.text() == beside.text() == alone.text()
        served.slot.process.terminate()
        assert served.slot.exit_code() == 0
        saw = f"{told(slow)}; the others whole"
        note(ledger, "a slow reader", saw, seconds, 10.0, served.left(), 0)


# --- a fake one that misbehaves -------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "bound_s", "said"),
    [
        ("exits", KILLED_S, "exit code 3: ggml: error: the device is lost"),
        ("exits without a word", KILLED_S, "llama-server ended with exit code 3"),
        ("never listens", LOADS_S + KILLED_S, "not ready within 3 s"),
        ("never ready", LOADS_S + KILLED_S, "not ready within 3 s"),
        ("mute", LOADS_S + KILLED_S, "not ready within 3 s"),
        ("too old", KILLED_S, "too old: build 1100"),
    ],
)
def test_a_load_that_fails(
    tmp_path: Path, model: Path, fake: Path, ledger: Ledger, fault: str, bound_s: float, said: str
) -> None:
    set_fault(fake, fault)
    with runner(tmp_path, model, fake, load_deadline_s=LOADS_S) as served:
        served.load()
        at = time.monotonic()
        with contextlib.suppress(AssertionError):
            served.slot.until(lambda: served.look() is not None, "llama-server", 1.0)
        assert said in ended(
            served, ledger, f"{fault} (load)", at, [], bound_s=bound_s + 2.0, code=72
        )


def other_text(folder: Path) -> Path:
    (folder / "text").write_text("This is no program.\n")
    (folder / "text").chmod(0o755)
    return folder / "text"


def deaf_to_sigterm(folder: Path) -> Path:
    """Write a program that ignores SIGTERM, and never serves."""
    (folder / "deaf").write_text("#!/bin/sh\ntrap '' TERM\nwhile true; do sleep 0.1; done\n")
    (folder / "deaf").chmod(0o755)
    return folder / "deaf"


@pytest.mark.parametrize(
    ("fault", "make", "said"),
    [
        ("no program", other_text, "llama-server ended with exit code 1"),
        ("deaf to SIGTERM", deaf_to_sigterm, "not ready within 3 s"),
    ],
)
def test_another_program(
    tmp_path: Path,
    model: Path,
    ledger: Ledger,
    fault: str,
    make: Callable[[Path], Path],
    said: str,
) -> None:
    with runner(tmp_path, model, make(tmp_path), load_deadline_s=LOADS_S) as served:
        served.load()
        at = time.monotonic()
        with contextlib.suppress(AssertionError):
            served.slot.until(lambda: served.look() is not None, "llama-server", 1.0)
        bound_s = LOADS_S + KILLED_S + 2.0
        assert said in ended(served, ledger, f"{fault} (load)", at, [], bound_s=bound_s, code=72)


def test_a_socket_in_use_is_replaced_and_a_folder_there_is_named(
    tmp_path: Path, model: Path, fake: Path, ledger: Ledger
) -> None:
    with runner(tmp_path, model, fake) as served:
        (served.folder / "runner-00.llama.sock").mkdir()
        served.load()
        at = time.monotonic()
        code = served.slot.exit_code()
        seconds = time.monotonic() - at
        assert served.slot.ended is not None
        said = served.slot.ended.message
        assert code == 72 and "runner-00.llama.sock" in said and "delete it" in said
        (served.folder / "runner-00.llama.sock").rmdir()
        saw = f"a load that fails; exit {code}: {said[-60:]}"
        note(ledger, "a folder in place of its socket", saw, seconds, 10.0, served.left(), 1)


@pytest.mark.parametrize(
    ("fault", "bound_s", "code", "said"),
    [
        ("exits", KILLED_S, 71, "exit code 3: ggml: error: the device is lost"),
        ("aborts", KILLED_S, 71, "killed by signal 6"),
        ("stops reading", STILL_S, 70, "used no processor time for 10 s"),
    ],
)
def test_an_end_in_a_stream(
    tmp_path: Path,
    model: Path,
    fake: Path,
    ledger: Ledger,
    fault: str,
    bound_s: float,
    code: int,
    said: str,
) -> None:
    with runner(tmp_path, model, fake) as served:
        gateway = served.ready()
        set_fault(fake, fault)
        at = time.monotonic()
        streams = [gateway.submit(request("cut", max_tokens=99, ignore_eos=False))]
        assert said in ended(
            served, ledger, f"{fault} (stream)", at, streams, bound_s=bound_s, code=code
        )


def test_bad_answers_end_their_requests_alone(
    tmp_path: Path, model: Path, fake: Path, ledger: Ledger
) -> None:
    faults = (
        "garbage", "not UTF-8", "a cut line", "a stream without an end", "an endless line",
        "ten thousand brackets", "an infinite number", "an error event", "a count of 10^15",
        "more tokens than requested", "refuses", "fails",
    )  # fmt: skip
    with runner(tmp_path, model, fake) as served:
        gateway = served.ready()
        for fault in faults:
            set_fault(fake, fault)
            at = time.monotonic()
            stream = gateway.submit(request(fault, max_tokens=9, ignore_eos=False))
            gateway.ended(stream)
            seconds = time.monotonic() - at
            assert isinstance(stream.end, Failed), told(stream)
            set_fault(fake, "")
            after = gateway.submit(request(f"after {fault}", max_tokens=9, ignore_eos=False))
            gateway.ended(after)
            assert isinstance(after.end, Finished), told(after)
            note(ledger, fault, told(stream), seconds, REFUSED_S, "nothing", 0)
        served.slot.process.send_signal(signal.SIGTERM)
        assert served.slot.exit_code() == 0
        assert served.left() == "nothing" and not os.path.exists(served.folder / "llama.sock")
