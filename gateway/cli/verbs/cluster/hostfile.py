"""Talks to the disk and to ssh: `shoal hostfile`, for people who use MLX's own tools as well as
shoal."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from bus.hardware.rdma_ports import rdma_ports
from conf.ports import port_of
from conf.settings import DEFAULTS_FILE
from gateway.cli.command import Invocation
from gateway.cli.node.hostfile_format import (
    BadHostfile,
    Host,
    cables,
    device_matrix,
    environment,
    pairs,
    parse_hostfile,
    port_problems,
    ring,
)
from gateway.cli.node.processes import last_words, run_tool
from gateway.cli.output.errors import FAILED, CliError

SSH_S = 5
PROBE_S = 20.0
MOST_PROBES = 64
"""Most machines that are checked at the same time, each in its own thread."""
PORT = port_of("ring", None)
HOSTFILES = DEFAULTS_FILE.parent / "hostfiles"
"""Examples of hostfiles."""


def hostfile(
    invocation: Invocation,
    file: Annotated[Path, typer.Argument(help="An `mlx.launch` hostfile.", metavar="FILE")],
    emit: Annotated[
        Path | None,
        typer.Option(help="Write the files for MLX's backends to this folder.", metavar="DIR"),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=1024, max=65_000, help="Port of rank 0; the ring uses the following ones."
        ),
    ] = PORT,
    probe: Annotated[
        bool, typer.Option("--probe", help="Check the RDMA ports of each machine over ssh.")
    ] = False,
) -> None:
    """Check a hostfile of mlx.launch: the RDMA devices of each pair of machines, the cables, the
    addresses. shoal itself needs no hostfile."""
    try:
        hosts = parse_hostfile(file.read_text())
        written = _backend_files(hosts, port)
    except OSError as error:
        raise CliError(f"{file}: {error.strerror or error}") from error
    except (BadHostfile, UnicodeDecodeError) as error:
        raise CliError(
            f"{file}: {error}", remedy="see docs/operations/clusters.md for examples"
        ) from error
    problems = _probe_all(hosts) if probe else []
    output, links = invocation.output, pairs(hosts)
    backend = "jaccl" if links else "ring"
    if emit is not None:
        emit.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (emit / name).write_text(text + "\n")
    name = "devices.json" if backend == "jaccl" else "ring.json"
    ranks = [dict(environment(hosts, rank, name, port)) for rank in range(len(hosts))]
    output.document(
        {
            "ranks": len(hosts),
            "backend": backend,
            "cables": len(links),
            "pairs": [list(link) for link in links],
            "environment": ranks,
            "written": [str(emit / name) for name in written] if emit else [],
            "problems": problems,
        }
    )
    _show(invocation, hosts, ranks, [f"{emit}/{name}" for name in written if emit])
    for problem in problems:
        output.say(problem)
    if problems:
        raise typer.Exit(FAILED)


def _show(
    invocation: Invocation,
    hosts: Sequence[Host],
    ranks: Sequence[Mapping[str, str]],
    written: Sequence[str],
) -> None:
    output, links = invocation.output, pairs(hosts)
    if len(hosts) == 1:
        output.say("1 rank: it needs no group")
        return
    output.say(f"{len(hosts)} ranks, {'jaccl' if links else 'ring'}")
    if links:
        more = len(links) > cables(len(hosts))
        count = "one or more cables" if more else "its own cable"
        output.say(f"{len(links)} cables: each pair of machines has {count}")
        output.table(("from", "device", "to", "device"), links)
    for host, variables in zip(hosts, ranks, strict=True):
        words = " ".join(f"{key}={value}" for key, value in variables.items())
        output.say(f"{host.ssh}: {words}")
    for path in written:
        output.say(f"wrote {path}")


def _backend_files(hosts: Sequence[Host], port: int) -> dict[str, str]:
    """Return the files that MLX's backend reads, as a map from file name to contents. The map is
    empty if there is only one rank, which needs no group."""
    if len(hosts) < 2:
        return {}
    if hosts[0].rdma:
        return {"devices.json": device_matrix(hosts)}
    return {"ring.json": ring(hosts, port)}


def _probe_all(hosts: Sequence[Host]) -> list[str]:
    """Return the problems of all hosts, in rank order. Hosts are probed in parallel."""
    with ThreadPoolExecutor(min(len(hosts), MOST_PROBES)) as pool:
        return [problem for problems in pool.map(_probe, hosts) for problem in problems]


def _probe(host: Host) -> list[str]:
    """Return the problems of a host, found by running `ibv_devinfo` on it. If the hostfile has no
    RDMA devices, only check that ssh reaches the host."""
    command = "ibv_devinfo" if any(host.rdma) else "true"
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_S}")
    try:
        done = run_tool(PROBE_S, "ssh", *options, "--", host.ssh, command)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{host.ssh}: ssh failed ({error})"]
    if done.returncode != 0:
        return [f"{host.ssh}: {last_words(done)}"]
    return port_problems(host, rdma_ports(done.stdout)) if any(host.rdma) else []
