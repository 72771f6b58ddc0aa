# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (mlx leaves `device_info` untyped)
"""Talks to MLX and the standard streams: runs a measurement of `shoal selftest` by its name.

`run_measurement` reads {"model", "folder"} from standard input: the path of the bundled model, and
an empty folder, in which measurements write test models. It writes one JSON document as the last
line of standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from bus.wire.kv import KvKind
from runner.engine import Engine
from runner.mlx.selftest.draws import measure_draws
from runner.mlx.selftest.greedy import measure_greedy
from runner.mlx.selftest.models import DRAWN, ROTATING, SIZED, write_random_model
from runner.mlx.selftest.reuse import measure_reuse, measure_rotating

EngineLoader = Callable[[Path, KvKind], Engine]
"""A function that loads the model in a folder, with this KV format."""
KINDS: tuple[KvKind, ...] = ("full", "8bit", "4bit", "window:64")


def run_measurement(name: str, load: EngineLoader) -> int:
    """Read the paths from standard input, write the result of the measurement, and return the exit
    code."""
    if name not in MEASUREMENTS:
        sys.stderr.write(f"unknown measurement {name!r}; choose from {', '.join(MEASUREMENTS)}\n")
        return 2
    question = json.load(sys.stdin)
    answer = MEASUREMENTS[name](load, Path(question["model"]), Path(question["folder"]))
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return 0


def _greedy(load: EngineLoader, model: Path, _folder: Path) -> dict[str, Any]:
    return measure_greedy(load(model, "full"), model)


def _draws(load: EngineLoader, _model: Path, folder: Path) -> dict[str, Any]:
    made = write_random_model(folder / "drawn", DRAWN)
    return measure_draws(load(made, "full"), made)


def _reuse(load: EngineLoader, model: Path, folder: Path) -> dict[str, Any]:
    """Measure the reuse of prefixes for each KV format, with one engine after the other, and for a
    model with rotating caches."""
    kinds: dict[str, Any] = {}
    for kind in KINDS:
        engine = load(model, kind)
        kinds[kind] = measure_reuse(engine)
        engine.close()
    made = write_random_model(folder / "rotating", ROTATING)
    kinds["rotating"] = measure_rotating(load(made, "full"), made)
    return {"kinds": kinds}


def _sized_model(_load: EngineLoader, model: Path, folder: Path) -> dict[str, Any]:
    """Write the model for the check of memory into the folder, and return its size."""
    write_random_model(folder, SIZED, tokenizer_of=model)
    return {"bytes": sum(file.stat().st_size for file in folder.iterdir())}


def _versions(_load: EngineLoader, _model: Path, _folder: Path) -> dict[str, Any]:
    """Return MLX's version, its device, and the backends that it was built with."""
    info = dict(mx.device_info())
    return {
        "mlx": version("mlx"),
        "device": str(mx.default_device().type).rpartition(".")[2],
        "device_name": str(info.get("device_name", "")),
        "device_memory_bytes": int(info.get("memory_size", 0)),
        "metal": bool(mx.metal.is_available()),
        "jaccl": bool(mx.distributed.is_available("jaccl")),
        "ring": bool(mx.distributed.is_available("ring")),
    }


MEASUREMENTS: Mapping[str, Callable[[EngineLoader, Path, Path], dict[str, Any]]] = {
    "greedy": _greedy,
    "draws": _draws,
    "reuse": _reuse,
    "sized-model": _sized_model,
    "versions": _versions,
}
