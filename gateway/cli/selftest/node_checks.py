"""Talks to the temporary nodes: one node's answers and recovery, and a group of two ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from gateway.cli.doctor.machine_checks import rdma_finding
from gateway.cli.node import processes
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import QUIET, Output
from gateway.cli.selftest.questions import DIALECTS, MODEL, ask_openai, tokens_of
from gateway.cli.selftest.site import SelftestSite
from gateway.cli.selftest.verdicts import (
    REPORT,
    SelftestLine,
    agreement,
    agreement_words,
    gap_of,
    judged,
    not_applicable,
)
from gateway.cli.verbs.models.instances import AcknowledgedPlacement, wait_ready
from gateway.cli.verbs.node.down import until

LOADED_S = 120.0
TOKENS = 24
QUESTIONS = ("What is shoal?", "list the integers from 1 to 10", "Say yes.")
LOGS = (
    "run `shoal selftest --save FILE` and report the failed check with that file; `shoal doctor` "
    "may name the cause"
)


def node_lines(site: SelftestSite) -> Iterator[SelftestLine]:
    """Start one node, send it a question in each dialect, kill its runner, and stop the node."""
    api = site.api()
    yield judged(("node", "up"), True, f"answers after {site.took_s:.1f} s", "", _s(site.took_s))
    answers: dict[str, str] = {}
    for dialect, ask in DIALECTS.items():
        began = time.monotonic()
        answers[dialect] = ask(api).strip()
        took_s = time.monotonic() - began
        first = next(iter(answers.values()))
        same = answers[dialect] == first
        text = f"answered in {took_s:.2f} s" + ("" if same else ", with another text than OpenAI's")
        is_good = bool(answers[dialect]) and same
        yield judged(("node", dialect), is_good, text, LOGS, _s(took_s))
    yield _killed_runner(api)
    yield _down(site)


def _killed_runner(api: NodeApi) -> SelftestLine:
    """Kill the runner with SIGKILL and ask again."""
    name = ("node", "killed runner")
    pid = runner_pid(api)
    if pid is None:
        return judged(name, False, "the node reports no runner of its model", LOGS)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    answer = ask_openai(api)
    took_s = time.monotonic() - began
    after = runner_pid(api)
    is_good = bool(answer.strip()) and after not in (None, pid)
    text = f"the next request was answered {took_s:.1f} s after the kill"
    if not is_good:
        text = "after the kill no new runner answered"
    return judged(name, is_good, text, LOGS, _s(took_s))


def _down(site: SelftestSite) -> SelftestLine:
    """Stop the node and look for anything left."""
    settings = site.settings()
    began = time.monotonic()
    left = [str(leftover) for leftover in site.stop(0)]
    took_s = time.monotonic() - began
    left += [path.name for path in settings.paths.runtime.glob("*")]
    ports = processes.unusable_ports(settings)
    left += [f"the port of {use}" for use, why in ports.items() if processes.IN_USE in why]
    text = f"stopped in {took_s:.1f} s, " + (f"left: {', '.join(left)}" if left else "nothing left")
    return judged(("node", "down"), not left, text, LOGS, {**_s(took_s), "left": len(left)})


def runner_pid(api: NodeApi) -> int | None:
    """Return the process of the runner that serves the bundled model."""
    for instance in api.state().instances:
        if instance.model == MODEL and instance.status == "ready":
            return next((rank.pid for rank in instance.ready if rank.pid), None)
    return None


def group_lines(site: SelftestSite) -> Iterator[SelftestLine]:
    """Compare two ranks over the ring on loopback with one rank, then look for RDMA."""
    pair = site.pair()
    api = pair[0].api
    two, figures = _answers(api, ranks=2)
    site.stop(1)
    alone, _ = _answers(api, ranks=1)
    gap = gap_of("float32" if figures["backend"] == "mlx-cpu" else "16 bits")
    rows = [_numbered(own, steps) for own, steps in zip(two, alone, strict=True)]
    compared = agreement(rows, gap)
    text = f"{figures['sharding']} over 2 ranks, ring on loopback: {agreement_words(compared, gap)}"
    more = {"equal": compared.equal, "tokens": compared.compared, "near_ties": len(compared.ties)}
    yield judged(("group", "ring"), compared.is_good, text, REPORT, {**figures, **more})


def jaccl_line(versions: dict[str, Any], platform: str) -> SelftestLine:
    """Return whether this machine can use JACCL. A test of the links needs two Macs."""
    name = ("group", "JACCL")
    if platform != "darwin":
        return not_applicable(name, "JACCL needs Macs with Thunderbolt RDMA; this is no Mac")
    finding = rdma_finding()
    if finding.level == "ok" and versions.get("jaccl") and "ring" not in finding.found:
        text = f"{finding.found}; test the links with `shoal rdma-test --backend jaccl`"
        return judged(name, True, text, "")
    why = finding.found if finding.level != "ok" or "ring" in finding.found else "MLX has no JACCL"
    return not_applicable(name, f"{why}. {finding.remedy}".removesuffix(". "))


def place(api: NodeApi, model: str, ranks: int) -> Any:
    """Place a model over this many nodes and wait until it is ready; return the instance."""
    body = {"model": model, "min_nodes": ranks, "if_absent": True}
    answer = api.post("/place_instance", body)
    return wait_ready(api, AcknowledgedPlacement.of(answer), Output(verbosity=QUIET), LOADED_S)


def unload(api: NodeApi, instance: str) -> None:
    """Unload an instance and wait until it is gone."""
    api.delete(f"/instance/{instance}?drain_s=1")
    if not until(30.0, lambda: instance not in api.state().state.instances):
        raise CliError("the model was not unloaded within 30 s", remedy=LOGS)


def _answers(api: NodeApi, *, ranks: int) -> tuple[list[Any], dict[str, Any]]:
    instance = place(api, MODEL, ranks)
    if len(instance.shards) != ranks:
        text = f"the model runs on {len(instance.shards)} ranks instead of {ranks}"
        raise CliError(text, remedy=REPORT)
    answers = [tokens_of(api, question, TOKENS) for question in QUESTIONS]
    unload(api, str(instance.instance))
    return answers, {"sharding": instance.sharding, "backend": str(instance.backend)}


def _numbered(
    own: list[list[tuple[str, float]]], alone: list[list[tuple[str, float]]]
) -> tuple[list[int], list[list[list[float]]]]:
    """Return both answers with a number in place of each token's text, because `agreement` compares
    numbers."""
    numbers: dict[str, int] = {}

    def number(text: str) -> int:
        return numbers.setdefault(text, len(numbers))

    tokens = [number(step[0][0]) for step in own]
    steps = [
        [[number(step[0][0]), step[0][1]], *([number(text), value] for text, value in step[1:])]
        for step in alone
    ]
    return tokens, steps


def _s(took_s: float) -> dict[str, float]:
    return {"seconds": round(took_s, 2)}
