"""What `make prove` found, as tables: faults, clusters, records, parity, KV, clients, soak,
folders, latency, bench; `cluster`, `records`, `kv` or `folders` alone where that is asked for.
Missing parts are named."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.latency import show as show_latency
from tests.bench.serve import show, show_targets
from tests.harness import client_results, folder_results
from tests.harness.nodes import ROOT

console = Console(width=170)


def faults(name: str, how: str) -> None:
    path = ROOT / "prove-results" / f"{name}.jsonl"
    if not path.exists():
        console.print(f"{name}: not run (make {how})")
        return
    table = Table("fault", "the client saw", "seconds", "bound", "models reloaded", "kept")
    for line in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        kept = "yes" if row["seconds"] <= row["bound"] else "NO"
        cells = [row[key] for key in ("fault", "client saw", "seconds", "bound")]
        table.add_row(*map(str, cells), str(row["models reloaded"]), kept)
    console.print(table)


def parity() -> None:
    path = ROOT / "prove-results" / "parity.jsonl"
    if not path.exists():
        console.print("parity: not run (make prove-parity)")
        return
    heads = ("model", "shape", "kind", "prompts", "equal", "at a tie", "logprobs within", "seconds")
    table = Table(*heads)
    for line in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        off_by = f"{row['off_by']:.1e}" if "off_by" in row else ""
        cells = [row[key] for key in heads[:5]]
        table.add_row(*map(str, cells), str(len(row.get("ties", ()))), off_by, str(row["seconds"]))
    console.print(table)


def kv() -> None:
    path = ROOT / "prove-results" / "kv.jsonl"
    if not path.exists():
        console.print("KV in fewer bits: not run (make prove-kv)")
        return
    heads = ("model", "kv", "kl", "largest_error", "same_best", "perplexity")
    table = Table(*(head.replace("_", " ") for head in heads))
    for line in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        table.add_row(row["model"], row["kv"], *(f"{row[head]:.4g}" for head in heads[2:]))
    console.print(table)


def results(what: str, kept: ModuleType) -> None:
    """Print the rows that a module of results has kept."""
    rows = kept.latest()
    if not rows:
        console.print(f"{what}: not run (make prove-{what})")
        return
    table = Table(*kept.HEADS)
    for row in rows:
        table.add_row(*kept.cells(row))
    console.print(table)


def document(name: str, folder: str, how: str) -> None:
    path = ROOT / folder / f"{name}.json"
    if not path.exists():
        console.print(f"{name}: not run (make {how})")
        return
    data = json.loads(path.read_text())
    if name == "serve":
        show(data)
        show_targets(data)
    elif name == "latency":
        show_latency(data)
    else:
        console.print(f"{name}:")
        console.print_json(data=data)


def main(parts: list[str]) -> None:
    if parts in (["cluster"], ["records"]):
        faults(parts[0], f"prove-{parts[0]}")
        return
    if parts == ["kv"]:
        kv()
        return
    if parts == ["folders"]:
        results("folders", folder_results)
        return
    for name in ("faults", "cluster", "records"):
        faults(name, f"prove-{name}")
    parity()
    kv()
    results("clients", client_results)
    results("folders", folder_results)
    document("soak", "prove-results", "prove-soak")
    document("latency", "bench-results", "prove-latency")
    document("serve", "bench-results", "prove-bench")


if __name__ == "__main__":
    main(sys.argv[1:])
