"""Write the figures of `docs/operations/proving.md` from the results of `make prove`:

    python -m tests.harness.figures_page

Faults with their bounds, clients, latency of each plane, cost per token, waits and speed, with the
machine, the day and the commit. Parts that were not run are named. The figures stand between two
marks; people write the rest of the page.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.harness.client_results import HEADS, cells, latest
from tests.harness.nodes import ROOT

PAGE = ROOT / "docs" / "operations" / "proving.md"
BEGIN, END = "<!-- made by `make prove-figures` -->\n", "<!-- end -->\n"
PROVED, MEASURED = ROOT / "prove-results", ROOT / "bench-results"
PARTS = ("p50", "p95", "p99")
SHOWN = ("mlx-lm BatchGenerator", "mlx_lm.server", "shoal", "shoal, fast")
"""Contestants of the table of waits and speed; `bench-results/serve.json` has the others."""


def page() -> str:
    """Return the page with the figures of the last run."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section()}\n{END}{after}"


def section() -> str:
    """Return the figures."""
    parts = [*_machine(), *_faults(), *_clients(), *_planes(), *_costs()]
    parts += [*_dialects(), *_serving(), *_groups()]
    return "\n".join(parts)


def _machine() -> Iterator[str]:
    commit = _asked("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    changed = " with changes" if _asked("git", "status", "--porcelain") else ""
    yield "### Machine\n"
    yield from _table(
        ("what", "value"),
        [
            ("commit", f"`{commit}`{changed}"),
            ("day", time.strftime("%Y-%m-%d", time.gmtime())),
            ("system", f"{platform.system()} {platform.machine()}, Python {_python()}"),
            ("processor", f"{_processor()}, {os.cpu_count()} cores"),
            ("memory", f"{_memory_gib()} GiB"),
            ("mlx, mlx-lm, pyzmq", ", ".join(version(one) for one in ("mlx", "mlx-lm", "pyzmq"))),
        ],
    )


def _faults() -> Iterator[str]:
    yield "### Formation and failover\n"
    rows: list[tuple[str, ...]] = []
    for name in ("cluster", "faults", "records"):
        how = f"make prove-{name}"
        latest = {one["fault"]: one for one in _lines(PROVED / f"{name}.jsonl")}
        rows += [
            (fault, one["client saw"], f"{one['seconds']}", f"{one['bound']}")
            for fault, one in latest.items()
        ] or [(f"not run: `{how}`", "", "", "")]
    yield from _table(("what", "a client saw", "seconds", "at most"), rows)


def _clients() -> Iterator[str]:
    yield "### Clients\n"
    rows = latest(PROVED / "clients.jsonl")
    if not rows:
        yield "Not run: `make prove-clients`.\n"
        return
    yield from _table(HEADS, [cells(row) for row in rows])


def _planes() -> Iterator[str]:
    yield "### Latency of each plane, one node\n"
    found = _document("planes")
    if found is None:
        yield "Not run: `make prove-latency`.\n"
        return
    rows = [(name, *(f"{one[f'ms_{part}']:.2f}" for part in PARTS)) for name, one in found.items()]
    yield from _table(("plane", "p50, ms", "p95, ms", "p99, ms"), rows)


def _costs() -> Iterator[str]:
    yield "### Cost per token in the gateway\n"
    found = _document("gateway")
    if found is None:
        yield "Not run: `make prove-latency`.\n"
        return
    rows = [
        (f"{one['streams']}", f"{one['tokens_per_s']:,.0f}", f"{one['cpu_us_per_token']:.2f}")
        for one in found
    ]
    yield from _table(("streams", "tokens/s flat out", "processor, us a token"), rows)


def _dialects() -> Iterator[str]:
    yield "### Cost per token of each dialect\n"
    found = _document("dialects")
    if found is None:
        yield "Not run: `make prove-latency`.\n"
        return
    yield (
        "Processor time of the gateway's HTTP process alone, one event a token, 32 streams at "
        "once; medians of rounds in which all take turns, ratios within a round.\n"
    )
    rows = [
        (
            one["dialect"],
            f"{one['cpu_us_per_token']:.2f}",
            f"{one['least']:.2f} to {one['most']:.2f}",
            f"{one['ratio']:.2f} x {one['against']}" if "ratio" in one else "",
            f"{one['aim']:.1f}" if "aim" in one else "",
        )
        for one in found
    ]
    heads = ("dialect", "processor, us a token", "of the rounds", "ratio", "at most")
    yield from _table(heads, rows)


def _serving() -> Iterator[str]:
    yield "### Waits and speed, one node\n"
    found = _document("serve")
    if found is None:
        yield "Not run: `make bench`.\n"
        return
    yield from waits_and_speed(found)


def waits_and_speed(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row for each model and load, and a cell for each contestant."""
    yield (
        "Each cell: tokens/s; time to first token p50/p99, ms; between tokens p50/p99, ms. Medians "
        "of the runs. Model a has the size of the bundled one, b about 30 M parameters.\n"
    )
    rows: dict[str, dict[str, str]] = {}
    for one in found:
        cell = (
            f"{one['tok_s']:.0f}; {one['ttft_ms_p50']:.0f}/{one['ttft_ms_p99']:.0f}; "
            f"{one['itl_ms_p50']:.1f}/{one['itl_ms_p99']:.1f}"
        )
        row = rows.setdefault(f"{one['model']}, {one['level']} {one['mix']}", {})
        row[one["who"]] = cell
    yield from _table(
        ("model, streams", *SHOWN),
        [(name, *(row.get(who, "-") for who in SHOWN)) for name, row in rows.items()],
    )


def _groups() -> Iterator[str]:
    yield "### Groups of two ranks, three nodes' control plane\n"
    found = _document("cluster")
    if found is None:
        yield "Not run: `make bench-cluster`.\n"
        return
    rows: list[tuple[str, ...]] = []
    for weights, kinds in found["groups"].items():
        for sharding, part in kinds.items():
            ours, theirs = part["load"].values()
            for level in ours:
                mine, rival = ours[level]["tok_s"], theirs[level]["tok_s"]
                ratio = f"{mine / rival:.2f}" if rival else "-"
                rows.append((sharding, weights, level, f"{mine:.0f}", f"{rival:.0f}", ratio))
    heads = ("2 ranks", "weights", "streams", "tokens/s", "mlx_lm.server's", "ratio")
    yield from _table(heads, rows)
    control = found["control"]
    yield (
        f"A command until three nodes have applied it: p50 {control['applied_ms_p50']:.1f} ms, p99 "
        f"{control['applied_ms_p99']:.1f} ms; {control['events_per_s']:.0f} events a second.\n"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
    yield ""


def _document(name: str) -> Any:
    path = MEASURED / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _asked(*words: str) -> str:
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""


def _python() -> str:
    return platform.python_version()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or _asked("sysctl", "-n", "machdep.cpu.brand_string") or "unknown"


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


if __name__ == "__main__":
    PAGE.write_text(page())
