"""What shoal can do with each family of models, found out on random weights.

`python -m tests.harness.family_facts [FAMILY...]` measures all that can be built small, or some,
tensor ranks in two processes of their own, and writes `families.json`, from which the page is
made. What a row says of an engine is what the real one found when it loaded that model.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from bus.wire.ids import ModelId
from bus.wire.messages.weights import Quantizing
from runner.engine import NotMade
from runner.mlx.engine import UnloadableModel, load_engine
from runner.mlx.model.load import load_weights
from runner.mlx.model.quantize import ModelMaker
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.pipeline_stage import StageModel
from tests.harness.families import write_model
from tests.harness.family_settings import can_be_built, known_families, settings_of
from tests.harness.lora import draw_adapter
from tests.runner.mlx.ranks.test_pipeline_stage import Neighbours

FILE = Path(__file__).with_name("families.json")
LIMIT_BYTES = 1 << 32
PROMPT, STEPS = 37, 8
"""More tokens than the window of the families that have one."""
RANKS = 2
YES = "yes"


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """One row. Each is `yes`, or why not."""

    batches: str
    prefixes: str
    drafts: str
    pipeline: str
    tensor: str
    adapters: str
    windows: str
    fewer_bits: str


def engine_facts(folder: Path) -> dict[str, str]:
    """What the engine finds of a model and of an adapter for all of its linear layers."""
    module, _ = load_model(folder)
    modules = [found for layer in module.layers for found in layer.named_modules()]
    keys = sorted({name for name, one in modules if type(one) is nn.Linear})
    adapter = folder / "adapters" / "drawn"
    drawn = ""
    try:
        draw_adapter(folder, adapter, seed=5, keys=keys)
    except Exception as error:
        drawn = f"mlx-lm trains none: {_said(error)}"
    engine = load_engine(folder, memory_limit_bytes=LIMIT_BYTES)
    facts = engine.facts
    refused = drawn or dict(facts.refused_adapters).get("drawn", "")
    return {
        "batches": YES if facts.batches_ragged else "one row at a time",
        "prefixes": YES if facts.trims else "whole prompts alone",
        "drafts": YES if facts.trims else "what it keeps cannot step back",
        "adapters": refused or (YES if "drawn" in facts.adapters else "it has no linear layers"),
        "windows": window_fact(folder),
    }


def window_fact(folder: Path) -> str:
    """Whether a window is kept of its KV, once loaded, and in all layers."""
    kind = "window:16"
    held = load_engine(folder, memory_limit_bytes=LIMIT_BYTES, kv=kind).facts.extra["kv"]
    if held == "full":
        return "no layer of the small one keeps KV that grows in a cache of its own"
    return YES if held == kind else "in some layers; the others keep windows or states of their own"


def pipeline_fact(folder: Path) -> str:
    """Whether two stages, hand to hand, say what the whole model says, at each cut."""
    layers = len(load_model(folder)[0].layers)
    said = {cut: _cut_fact(folder, cut, layers) for cut in range(1, layers)}
    good = [str(cut) for cut, why in said.items() if why == YES]
    if len(good) == len(said):
        return YES
    first = next(why for why in said.values() if why != YES)
    return f"behind layers {', '.join(good)} alone: {first}" if good else first


def _cut_fact(folder: Path, cut: int, layers: int) -> str:
    wire: deque[mx.array] = deque()
    whole, later, first = (load_model(folder)[0] for _ in range(3))
    try:
        parts = [
            StageModel(first, Neighbours(wire, leads=False), 0, cut),
            StageModel(later, Neighbours(wire, leads=True), cut, layers),
        ]
        caches = [make_prompt_cache(whole), *(part.make_cache() for part in parts)]
        for step in range(STEPS):
            tokens = _tokens(step)
            wanted = whole(tokens, cache=caches[0])
            found = [part(tokens, own) for part, own in zip(parts, caches[1:], strict=True)][-1]
            if not _alike(wanted, found):
                return "the stages say something else than the whole"
    except Unsplittable as error:
        return _without_numbers(str(error))
    except Exception as error:
        return _said(error)
    return YES


def fewer_bits_fact(folder: Path, into: Path) -> str:
    """Whether it is made in 4 bits, and loads then."""
    order = Quantizing(source=ModelId(folder.name), bits=4, group_size=32)
    name = ModelId(f"{folder.name}-4bit")
    try:
        ModelMaker(folder, into, name, order, LIMIT_BYTES).make(lambda _: None, lambda: False)
    except NotMade as error:
        return str(error)
    try:
        model = load_weights(into / name, "float32", lambda _: None).module
        out = model(_tokens(0), cache=make_prompt_cache(model))
        return YES if bool(mx.all(mx.isfinite(out)).item()) else "what is made computes no numbers"
    except (UnloadableModel, ValueError, RuntimeError):
        return "what is made does not compute"


def facts_of(family: str, folder: Path, tensor: str) -> FamilyFacts:
    """Measure one family in an empty folder; what is known of its tensor ranks is given."""
    with contextlib.redirect_stdout(io.StringIO()):
        model = write_model(folder / family, settings_of(family))
        pipeline = pipeline_fact(model)
        fewer_bits = fewer_bits_fact(model, folder)
        engine = engine_facts(model)
    return FamilyFacts(pipeline=pipeline, tensor=tensor, fewer_bits=fewer_bits, **engine)


# --- tensor ranks: two processes, joined by MLX's ring on loopback ------------------------------


def tensor_facts(families: Sequence[str]) -> dict[str, str]:
    """Whether two tensor ranks say what one says, by family."""
    ports = []
    for _ in range(RANKS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="shoal-families-") as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.harness.family_facts", "--rank", *families],
                env={**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            said = ranks[0].communicate(timeout=600)[0]
            ranks[1].communicate(timeout=60)
        finally:
            for rank in ranks:
                rank.kill()
    return json.loads(said.strip().splitlines()[-1])


def _rank(families: Sequence[str]) -> None:
    """Be one of the ranks: both shard each model, compute, and compare with the whole."""
    group = mx.distributed.init(strict=True, backend="ring")
    found: dict[str, str] = {}
    for family in families:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            model = write_model(Path(folder) / family, settings_of(family))
            found[family] = _tensor_fact(model, group)
    if group.rank() == 0:
        print(json.dumps(found))


def _tensor_fact(folder: Path, group: Any) -> str:
    whole, _ = load_model(folder)
    part, _ = load_model(folder, lazy=True)
    try:
        part.shard(group)
        caches = make_prompt_cache(whole), make_prompt_cache(part)
        for step in range(STEPS):
            tokens = _tokens(step)
            wanted, found = whole(tokens, cache=caches[0]), part(tokens, cache=caches[1])
            if not _alike(wanted, found):
                return "the ranks say something else than the whole"
    except Exception as error:
        return _said(error)
    return YES


# --- words ------------------------------------------------------------------------------------


def _tokens(step: int) -> mx.array:
    return mx.array([[(7 * at + 13 * step) % 250 + 3 for at in range(1 if step else PROMPT)]])


def _alike(one: mx.array, other: mx.array) -> bool:
    return bool(mx.allclose(one, other, rtol=1e-3, atol=1e-3).item())


def _said(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:120]


def _without_numbers(text: str) -> str:
    """A refusal without the layers that it names: they are those of the small model."""
    _, _, rest = text.partition(" ask ") if text.startswith("layers ") else ("", "", "")
    if rest:
        return f"a stage would ask {rest}"
    return "a stage would have no cache" if "have no cache" in text else text


def measured(families: Sequence[str] | None = None) -> dict[str, FamilyFacts]:
    """Measure families, or all that can be built."""
    names = [one for one in families or known_families() if can_be_built(one)]
    sharded = [name for name in names if _shards(name)]
    tensor = tensor_facts(sharded) if sharded else {}
    found: dict[str, FamilyFacts] = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="shoal-families-") as folder:
            why = "mlx-lm shards it not"
            found[name] = facts_of(name, Path(folder), tensor.get(name, why))
    return found


def _shards(family: str) -> bool:
    from tests.harness.family_settings import model_classes

    classes = model_classes(family)
    return classes is not None and hasattr(classes[0], "shard")


def main() -> None:
    """Measure all, or those that are named, and write the file."""
    if "--rank" in sys.argv:
        _rank(sys.argv[sys.argv.index("--rank") + 1 :])
        return
    names = sys.argv[1:]
    found = {name: asdict(facts) for name, facts in measured(names or None).items()}
    if names:
        found = json.loads(FILE.read_text())["families"] | found
    said = {
        "mlx_lm": version("mlx-lm"),
        "mlx": version("mlx"),
        "not_built": sorted(set(known_families()) - found.keys()),
        "families": dict(sorted(found.items())),
    }
    FILE.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
