"""Talks to the node's API about leases, and runs a program under one: `shoal lease`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import psutil
import typer
from pydantic import ByteSize, TypeAdapter, ValidationError

from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import NO_NODE, NOT_FOUND, USAGE, CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.cluster.apikeys import seconds_of

TTL_S, RENEW_S = 30.0, 5.0
LOOK_S = 1.0
MOST_WAIT_S = 3600.0
SPARE_S = 30.0
"""Extra seconds that the command waits for the node's answer."""
Row = Mapping[str, Any]
LeaseName = Annotated[
    str, typer.Argument(metavar="LEASE", help="A lease, as listed by `lease ls`.")
]


@dataclass(frozen=True, slots=True)
class Terms:
    """What is asked for. `signal_name` is what the program is sent when it is asked back."""

    size_bytes: int
    owner: str
    priority: int
    wait_s: float
    signal_name: str = ""


def run(
    invocation: Invocation,
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- PROGRAM", help="The program to run, with its arguments."),
    ],
    size_text: Annotated[
        str, typer.Option("--size", metavar="BYTES", help="Memory to reserve: 8GB, 512MiB.")
    ],
    owner: Annotated[
        str, typer.Option("--owner", help="Owner shown to others; default: the program.")
    ] = "",
    priority: Annotated[
        int,
        typer.Option(
            "--priority", min=0, max=1000, help="Smaller is more urgent; requests have 10."
        ),
    ] = 10,
    wait: Annotated[
        str,
        typer.Option("--wait", metavar="SPAN", help="How long to wait for the memory: 90s, 10m."),
    ] = "10m",
    on_ask_back: Annotated[
        str,
        typer.Option(
            "--on-ask-back",
            metavar="SIGNAL",
            help="Signal to send when the memory is asked back: TERM, USR1.",
        ),
    ] = "",
) -> None:
    """Run a program with memory of this node reserved for it. Models are evicted for it, and
    reloaded later."""
    terms = Terms(
        bytes_of(size_text, "--size"),
        (owner or os.path.basename(command[0]))[:64],
        priority,
        _wait_s(wait),
        _signal_name(on_ask_back),
    )
    api, output = invocation.api(), invocation.output
    lease = _taken(api, terms, output)
    kept = _Kept(api, terms, lease, output)
    output.note(
        f"reserved {size(terms.size_bytes)} on {lease['node_name']}: lease {lease['lease']}"
    )
    try:
        code = _ran(command, kept)
    finally:
        kept.give_back()
    raise typer.Exit(code)


def ls(invocation: Invocation) -> None:
    """List the leases and the waiting requests for one."""
    output, found = invocation.output, invocation.api().get("/leases")
    output.document(found)
    now_s = time.time()
    rows = [
        (
            lease["lease"],
            lease["owner"],
            lease["node_name"],
            size(lease["size_bytes"]),
            str(lease["priority"]),
            span(max(0.0, now_s - lease["at_s"])),
            lease["yields_to"],
        )
        for lease in found["leases"]
    ]
    columns = ("lease", "owner", "node", ">size", ">priority", ">held for", "asked back for")
    output.table(columns, rows)
    for wait in found["waits"]:
        output.say(f"{wait['model']} waits {span(wait['waited_s'])}: {wait['why']}")
    if not rows and not found["waits"]:
        output.note("no leases; reserve memory with `shoal lease run --size 8GB -- PROGRAM`")


def rm(invocation: Invocation, lease: LeaseName) -> None:
    """End a lease. Its memory becomes free, even if its owner continues."""
    answer = invocation.api().delete(f"/leases/{lease}")
    invocation.output.document(answer)
    invocation.output.say(f"{lease} has ended")


def ask_back(invocation: Invocation, lease: LeaseName) -> None:
    """Ask the owner of a lease to release it."""
    answer = invocation.api().post(f"/leases/{lease}/ask-back", {})
    invocation.output.document(answer)
    owner = answer["owner"] or "its owner"
    invocation.output.say(f"{owner} will be asked to release {lease} at its next renewal")


def bytes_of(text: str, option: str) -> int:
    """Return a size as people write it, in bytes. Raises CliError, which names the option."""
    try:
        found = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        found = 0
    if found <= 0:
        raise CliError(
            f"{option}: {text!r} is not a size; use for example 8GB or 512MiB", code=USAGE
        )
    return found


class _Kept:
    """A lease while its program runs: renewed, taken anew when it was lost, given back."""

    def __init__(self, api: NodeApi, terms: Terms, lease: Row, output: Output) -> None:
        self.terms = terms
        self.lease = str(lease["lease"])
        self._api = api
        self._node = str(lease["node"])
        self._output = output
        self._said = ""
        self._renewed_at = time.monotonic()

    def renew(self, process: psutil.Process) -> str:
        """Say that the lease is still needed, and what the program uses; return for what it is
        asked back, empty for nothing. A node that does not answer is asked again next time."""
        if not self.lease:
            return ""
        body = {"used_bytes": used_bytes(process)}
        try:
            told = self._api.post(f"/leases/{self.lease}/renew", body, timeout_s=RENEW_S)
        except CliError as problem:
            if problem.code == NOT_FOUND:
                self._lost()
            else:
                self._say(f"{problem.message}; without a renewal the lease ends in {TTL_S:.0f} s")
            return ""
        self._renewed_at = time.monotonic()
        asked = str(told["yields_to"])
        self._say(f"the memory is asked back, for {asked}" if asked else "")
        return asked

    def give_back(self) -> None:
        """Let the memory be others' again; where the node does not answer, its time ends it."""
        if self.lease:
            with contextlib.suppress(CliError):
                self._api.delete(f"/leases/{self.lease}", timeout_s=RENEW_S)

    def _lost(self) -> None:
        """Take the lease anew where its time has ended it; what someone has ended stays so."""
        if time.monotonic() - self._renewed_at < TTL_S:
            self._say(f"another user ended {self.lease}; the program continues without it")
            self.lease = ""
            return
        try:
            told = self._api.post("/leases", _body(self.terms, self._node, 0.0))
        except CliError as problem:
            self._say(f"the lease has ended and cannot be renewed now: {problem.message}")
            return
        self.lease, self._renewed_at = str(told["lease"]), time.monotonic()
        self._say(f"the lease had ended; {self.lease} replaces it")

    def _say(self, text: str) -> None:
        """Warn of something, once."""
        if text and text != self._said:
            self._output.warn(text)
        self._said = text


def used_bytes(process: psutil.Process) -> int | None:
    """Return the memory that a process and its children have; None where that cannot be read."""
    try:
        family = [process, *process.children(recursive=True)]
        return sum(one.memory_info().rss for one in family)
    except psutil.Error:
        return None


def _body(terms: Terms, node: str, wait_s: float) -> dict[str, Any]:
    return {
        "size_bytes": terms.size_bytes,
        "node": node,
        "owner": terms.owner,
        "priority": terms.priority,
        "ttl_s": TTL_S,
        "wait_s": wait_s,
    }


def _taken(api: NodeApi, terms: Terms, output: Output) -> Row:
    """Return the lease, on the node that answers; meanwhile say what it waits for."""
    node = api.node_id()
    if node is None:
        raise CliError(f"{api.url} is not a shoal node", code=NO_NODE)
    found: list[Row | CliError] = []

    def ask() -> None:
        """Ask for it, and wait as long as was said."""
        try:
            body = _body(terms, node, terms.wait_s)
            found.append(api.post("/leases", body, timeout_s=terms.wait_s + SPARE_S))
        except CliError as problem:
            found.append(problem)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    with output.waiting() as say:
        while asking.is_alive():
            asking.join(LOOK_S)
            if asking.is_alive():
                say(_waited_for(api))
    lease = found[0]
    if isinstance(lease, CliError):
        raise lease
    return lease


def _waited_for(api: NodeApi) -> str:
    with contextlib.suppress(CliError):
        whys = [str(wait["why"]) for wait in api.get("/leases", timeout_s=RENEW_S)["waits"]]
        if whys:
            return f"waiting for memory: {whys[0]}"
    return "waiting for memory"


def _ran(command: list[str], kept: _Kept) -> int:
    """Run a program to its end, renewing its lease; return its exit code. It is told to end when
    we are, and it hears Ctrl-C itself."""
    env = {**os.environ, "SHOAL_LEASE": kept.lease}
    try:
        child = subprocess.Popen(command, env=env)
    except OSError as error:
        text = f"cannot run {command[0]}: {error.strerror or error}"
        raise CliError(text, code=NOT_FOUND) from error
    process, asked_before = psutil.Process(child.pid), ""
    with _signals_go_to(child):
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(RENEW_S)
                return 128 - code if code < 0 else code
            asked = kept.renew(process)
            if asked and not asked_before and kept.terms.signal_name:
                child.send_signal(getattr(signal, kept.terms.signal_name))
            asked_before = asked


@contextlib.contextmanager
def _signals_go_to(child: subprocess.Popen[bytes]) -> Generator[None]:
    """Pass SIGTERM and SIGHUP on within the block; leave Ctrl-C to the program, which has it from
    the terminal as well."""

    def passed_on(number: int, _frame: object) -> None:
        """Send the program what we were sent, but for Ctrl-C."""
        if number != signal.SIGINT:
            child.send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, passed_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_s(text: str) -> float:
    found = seconds_of(text, "--wait")
    if found > MOST_WAIT_S:
        raise CliError(f"--wait {text} is too long; the limit is {span(MOST_WAIT_S)}", code=USAGE)
    return found


def _signal_name(text: str) -> str:
    """Return a signal's name as the module `signal` has it. Raises CliError for none."""
    if not text:
        return ""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    if name not in signal.Signals.__members__:
        raise CliError(f"--on-ask-back: unknown signal {text!r}; use for example TERM", code=USAGE)
    return name
