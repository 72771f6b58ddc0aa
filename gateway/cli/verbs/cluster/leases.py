"""Talks to the node's API about leases, which reserve memory for other programs: `shoal lease`.
Also runs such a program with a lease."""

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
"""How much longer than the lease's own wait the command waits for the node's answer, in seconds."""
Row = Mapping[str, Any]
LeaseName = Annotated[
    str, typer.Argument(metavar="LEASE", help="A lease, as listed by `lease ls`.")
]


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a lease. `signal_name` is the signal that the program receives when it must
    release the memory."""

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
            help="Signal to the program when it must release memory: TERM, USR1.",
        ),
    ] = "",
) -> None:
    """Run a program with memory of this node reserved for it. Models are evicted to free that
    memory, and reloaded later."""
    terms = Terms(
        bytes_of(size_text, "--size"),
        (owner or os.path.basename(command[0]))[:64],
        priority,
        _wait_s(wait),
        _signal_name(on_ask_back),
    )
    api, output = invocation.api(), invocation.output
    lease = _acquire(api, terms, output)
    held = _HeldLease(api, terms, lease, output)
    output.note(
        f"reserved {size(terms.size_bytes)} on {lease['node_name']}: lease {lease['lease']}"
    )
    try:
        code = _run_program(command, held)
    finally:
        held.give_back()
    raise typer.Exit(code)


def ls(invocation: Invocation) -> None:
    """List the leases, and the requests that wait for a lease."""
    output, answer = invocation.output, invocation.api().get("/leases")
    output.document(answer)
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
        for lease in answer["leases"]
    ]
    columns = ("lease", "owner", "node", ">size", ">priority", ">held for", "asked back for")
    output.table(columns, rows)
    for wait in answer["waits"]:
        output.say(f"{wait['model']} waits {span(wait['waited_s'])}: {wait['why']}")
    if not rows and not answer["waits"]:
        output.note("no leases; reserve memory with `shoal lease run --size 8GB -- PROGRAM`")


def rm(invocation: Invocation, lease: LeaseName) -> None:
    """End a lease. Its memory becomes free, even if the program of the lease continues."""
    answer = invocation.api().delete(f"/leases/{lease}")
    invocation.output.document(answer)
    invocation.output.say(f"{lease} has ended")


def ask_back(invocation: Invocation, lease: LeaseName) -> None:
    """Ask the owner of a lease to release its memory."""
    answer = invocation.api().post(f"/leases/{lease}/ask-back", {})
    invocation.output.document(answer)
    owner = answer["owner"] or "its owner"
    invocation.output.say(f"{owner} will be asked to release {lease} at its next renewal")


def bytes_of(text: str, option: str) -> int:
    """Parse a size such as 8GB into bytes. Raises CliError, which names the option."""
    try:
        size_bytes = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size_bytes = 0
    if size_bytes <= 0:
        raise CliError(
            f"{option}: {text!r} is not a size; use for example 8GB or 512MiB", code=USAGE
        )
    return size_bytes


class _HeldLease:
    """A lease while its program runs. The lease is renewed, replaced if it expired, and released at
    the end."""

    def __init__(self, api: NodeApi, terms: Terms, lease: Row, output: Output) -> None:
        self.terms = terms
        self.lease = str(lease["lease"])
        self._api = api
        self._node = str(lease["node"])
        self._output = output
        self._warning = ""
        self._renewed_at = time.monotonic()

    def renew(self, process: psutil.Process) -> str:
        """Renew the lease and report the program's memory. Return the model or the lease that needs
        the memory; empty if nothing does. If the node does not answer, the next renewal tries
        again."""
        if not self.lease:
            return ""
        body = {"used_bytes": used_bytes(process)}
        try:
            answer = self._api.post(f"/leases/{self.lease}/renew", body, timeout_s=RENEW_S)
        except CliError as problem:
            if problem.code == NOT_FOUND:
                self._lost()
            else:
                self._say(f"{problem.message}; without a renewal the lease ends in {TTL_S:.0f} s")
            return ""
        self._renewed_at = time.monotonic()
        claimant = str(answer["yields_to"])
        self._say(f"release the memory: {claimant} needs it" if claimant else "")
        return claimant

    def give_back(self) -> None:
        """Release the lease. If the node does not answer, the lease expires."""
        if self.lease:
            with contextlib.suppress(CliError):
                self._api.delete(f"/leases/{self.lease}", timeout_s=RENEW_S)

    def _lost(self) -> None:
        """Request a new lease, because this one no longer exists. If a user ended it, continue
        without a lease."""
        if time.monotonic() - self._renewed_at < TTL_S:
            self._say(f"another user ended {self.lease}; the program continues without it")
            self.lease = ""
            return
        try:
            answer = self._api.post("/leases", _body(self.terms, self._node, 0.0))
        except CliError as problem:
            self._say(f"the lease has ended and cannot be renewed now: {problem.message}")
            return
        self.lease, self._renewed_at = str(answer["lease"]), time.monotonic()
        self._say(f"the lease had ended; {self.lease} replaces it")

    def _say(self, text: str) -> None:
        """Write a warning, unless it is the same as the last one."""
        if text and text != self._warning:
            self._output.warn(text)
        self._warning = text


def used_bytes(process: psutil.Process) -> int | None:
    """Return the memory of a process and its children; None if it is unreadable."""
    try:
        family = [process, *process.children(recursive=True)]
        return sum(member.memory_info().rss for member in family)
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


def _acquire(api: NodeApi, terms: Terms, output: Output) -> Row:
    """Request a lease on the node that answers and wait for the lease. Show the reason for the
    wait. Raises CliError."""
    node = api.node_id()
    if node is None:
        raise CliError(f"{api.url} is not a shoal node", code=NO_NODE)
    outcome: list[Row | CliError] = []

    def ask() -> None:
        try:
            body = _body(terms, node, terms.wait_s)
            outcome.append(api.post("/leases", body, timeout_s=terms.wait_s + SPARE_S))
        except CliError as problem:
            outcome.append(problem)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    with output.waiting() as say:
        while asking.is_alive():
            asking.join(LOOK_S)
            if asking.is_alive():
                say(_wait_reason(api))
    lease = outcome[0]
    if isinstance(lease, CliError):
        raise lease
    return lease


def _wait_reason(api: NodeApi) -> str:
    with contextlib.suppress(CliError):
        whys = [str(wait["why"]) for wait in api.get("/leases", timeout_s=RENEW_S)["waits"]]
        if whys:
            return f"waiting for memory: {whys[0]}"
    return "waiting for memory"


def _run_program(command: list[str], held: _HeldLease) -> int:
    """Run a program to its end and renew its lease. Return the program's exit code. shoal passes
    SIGTERM and SIGHUP on to the program; the terminal sends Ctrl-C to the program itself."""
    env = {**os.environ, "SHOAL_LEASE": held.lease}
    try:
        child = subprocess.Popen(command, env=env)
    except OSError as error:
        text = f"cannot run {command[0]}: {error.strerror or error}"
        raise CliError(text, code=NOT_FOUND) from error
    process, claimed_before = psutil.Process(child.pid), ""
    with _signals_go_to(child):
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(RENEW_S)
                return 128 - code if code < 0 else code
            claimant = held.renew(process)
            if claimant and not claimed_before and held.terms.signal_name:
                child.send_signal(getattr(signal, held.terms.signal_name))
            claimed_before = claimant


@contextlib.contextmanager
def _signals_go_to(child: subprocess.Popen[bytes]) -> Generator[None]:
    """Pass SIGTERM and SIGHUP on to the program inside the block. Ignore Ctrl-C, which the terminal
    sends to the program as well."""

    def pass_on(number: int, _frame: object) -> None:
        if number != signal.SIGINT:
            child.send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_s(text: str) -> float:
    seconds = seconds_of(text, "--wait")
    if seconds > MOST_WAIT_S:
        raise CliError(f"--wait {text} is too long; the limit is {span(MOST_WAIT_S)}", code=USAGE)
    return seconds


def _signal_name(text: str) -> str:
    """Return the name of a signal as in the module `signal`. Raises CliError for an unknown
    name."""
    if not text:
        return ""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    if name not in signal.Signals.__members__:
        raise CliError(f"--on-ask-back: unknown signal {text!r}; use for example TERM", code=USAGE)
    return name
