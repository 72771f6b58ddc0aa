"""Talks to the system's tools: versions, BLAS, the service's unit, sensors, sleep assertions."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from bus.process.installation import DISTRIBUTION
from bus.wire.accelerators import HardwareReading
from conf.blas import known_blas
from gateway.cli.doctor.machine_checks import linux_sleep
from gateway.cli.doctor.mlx_checks import blas, mlx
from gateway.cli.node import units
from gateway.cli.node.node_api import NodeApi
from gateway.cli.node.processes import run_tool, tool_says
from gateway.cli.output.errors import CliError
from gateway.cli.selftest.questions import ask_openai
from gateway.cli.selftest.site import SelftestSite, caffeinates
from gateway.cli.selftest.verdicts import (
    Figure,
    SelftestLine,
    SensorFacts,
    judged,
    not_applicable,
    sensor_lines,
)
from gateway.cli.verbs.node.down import until

PACKAGES = (DISTRIBUTION, "mlx", "mlx-lm", "transformers", "tokenizers", "numpy")
TOOL_S = 30.0
READING_S = 20.0
AWAKE_S = 15.0


def version_lines(site: SelftestSite, measured: Mapping[str, Any]) -> Iterator[SelftestLine]:
    """Report the versions, and whether MLX uses the machine's GPU."""
    system = platform.mac_ver()[0] if sys.platform == "darwin" else platform.release()
    figures: dict[str, Figure] = {
        "system": f"{platform.system()} {system} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        **{name: measured[name] for name in ("device", "device_name", "metal", "jaccl", "ring")},
    }
    text = ", ".join(f"{name} {figures[name]}" for name in ("system", "python", *PACKAGES[:3]))
    finding = mlx(site.settings(), False)
    device = f"{measured['device']} {measured['device_name']}".strip()
    advice = f"{finding.remedy}." if finding.remedy else ""
    yield judged(("versions", "software"), True, text, "", figures)
    yield judged(("versions", "MLX"), finding.level == "ok", f"computes on {device}", advice)


def blas_lines(site: SelftestSite) -> Iterator[SelftestLine]:
    """Report the BLAS library in use, and how much faster it is than one thread, by the number of
    rows."""
    settings = site.settings()
    finding = blas(settings, False)
    name = ("blas", "library")
    choice = known_blas(settings).choice
    if finding.level == "ok" and choice is None:
        yield not_applicable(name, finding.found)
        return
    gains = dict(choice.gains) if choice is not None else {}
    figures: dict[str, Figure] = {f"gain_{rows}_rows": round(g, 2) for rows, g in gains.items()}
    yield judged(name, finding.level == "ok", finding.found, finding.remedy, figures)


def service_lines(site: SelftestSite) -> Iterator[SelftestLine]:
    """Check that systemd or launchd accepts the unit that `shoal service install` writes."""
    name = ("service", "unit")
    darwin = sys.platform == "darwin"
    tool = shutil.which("plutil" if darwin else "systemd-analyze")
    if tool is None:
        yield not_applicable(name, f"there is no {'plutil' if darwin else 'systemd-analyze'} here")
        return
    account = pwd.getpwuid(os.geteuid())
    service = units.Service(
        name="shoal-selftest",
        python=sys.executable,
        home=str(site.folder / "node-1"),
        account=units.Account(account.pw_name, account.pw_dir),
        environment={},
    )
    plan = units.plan(service, "darwin" if darwin else "linux", "system")
    file = site.folder / Path(plan.path).name
    file.write_text(plan.text)
    words = ("-lint", str(file)) if darwin else ("verify", str(file))
    done = run_tool(TOOL_S, tool, *words)
    messages = [line for line in (done.stderr + done.stdout).splitlines() if file.name in line]
    is_good = done.returncode == 0 and (darwin or not messages)
    text = f"accepted by `{Path(tool).name}`" if is_good else "; ".join(messages) or "refused"
    yield judged(name, is_good, text, "report the message with the system's version")


def sensors_of(site: SelftestSite, measured: Mapping[str, Any]) -> Iterator[SelftestLine]:
    """Wait for telemetry's readings and judge them."""
    api = site.api()
    ends_at = time.monotonic() + READING_S
    node, hardware = _readings(api)
    while (node is None or hardware is None) and time.monotonic() < ends_at:
        time.sleep(0.5)
        node, hardware = _readings(api)
    if node is None:
        raise CliError(f"no reading within {READING_S:g} s", remedy="run `shoal doctor`")
    facts = SensorFacts(
        node=node,
        hardware=hardware,
        memory_bytes=psutil.virtual_memory().total,
        cores=os.cpu_count() or 1,
        has_gpu=measured["device"] == "gpu",
    )
    yield from sensor_lines(facts)


def sleep_lines(site: SelftestSite) -> Iterator[SelftestLine]:
    """Check that a working node keeps a Mac awake."""
    name = ("sleep", "assertion")
    if sys.platform != "darwin":
        finding = linux_sleep()
        yield not_applicable(name, f"shoal asks only macOS to stay awake; here {finding.found}")
        return
    api = site.api()
    ask_openai(api)
    worker = next((row.pid for row in api.state().processes if row.name == "worker"), 0)
    until(AWAKE_S, lambda: bool(caffeinates(worker)))
    held = set(caffeinates(worker)) & assertions_in(tool_says("/usr/bin/pmset", "-g", "assertions"))
    text = "a request holds PreventUserIdleSystemSleep" if held else "no assertion is held"
    yield judged(name, bool(held), text, "report it with the output of `pmset -g assertions`")


def assertions_in(pmset: str) -> set[int]:
    """Return the processes that prevent idle sleep, from `pmset -g assertions`."""
    pattern = r"pid (\d+)\([^)]*\): .*\bPreventUserIdleSystemSleep\b"
    return {int(pid) for pid in re.findall(pattern, pmset)}


def _readings(api: NodeApi) -> tuple[Mapping[str, Any] | None, HardwareReading | None]:
    state = api.get("/state")
    telemetry, node = state["telemetry"], state["node"]
    hardware = telemetry["hardware"].get(node)
    parsed = None if hardware is None else HardwareReading.model_validate(hardware)
    return telemetry["nodes"].get(node), parsed


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
