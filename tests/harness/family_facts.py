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
from collections.abc import Mapping, Sequence
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
from runner.mlx.adapters import load_adapters
from runner.mlx.engine import UnloadableModel, load_engine
from runner.mlx.model.load import load_weights
from runner.mlx.model.quantize import ModelMaker
from runner.mlx.ranks.family_shards import OWN_SHARDS
from runner.mlx.ranks.layer_probe import Unsplittable
from runner.mlx.ranks.pipeline_stage import StageModel
from runner.mlx.ranks.shard import shard, tensor_shares
from tests.harness.families import write_model
from tests.harness.family_settings import can_be_built, known_families, settings_of
from tests.harness.lora import adapted, draw_adapter
from tests.runner.mlx.ranks.test_pipeline_stage import Neighbours

FILE = Path(__file__).with_name("families.json")
LIMIT_BYTES = 1 << 32
PROMPT, STEPS = 37, 8
"""More tokens than the window of the families that have one."""
RANKS = 2
YES = "yes"
NOT_SHARDED = "neither mlx-lm nor shoal can shard this family"
NO_LAYERS = "the model has no linear layers"
SOME_CUTS = "the pipeline can be split only after layer"
ALONE = (
    "a request is drafted while it is computed alone; after a wrong guess, its tokens before that "
    "guess are computed again"
)
NO_DRAFTS = "requests that cannot share a batch are not drafted"
SOME_WINDOWS = (
    "the window applies only to some layers; the other layers have sliding windows or states"
)
DRAWN = "drawn"
"""The adapter that is drawn for a model."""
NONE_SHARDED = {"tensor": NOT_SHARDED, "tensor_adapters": NOT_SHARDED}


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """One row. Each is `yes`, or why not."""

    batches: str
    prefixes: str
    drafts: str
    pipeline: str
    tensor: str
    adapters: str
    tensor_adapters: str
    windows: str
    fewer_bits: str


def engine_facts(folder: Path) -> dict[str, str]:
    """What the engine finds of a model and of an adapter for all of its linear layers."""
    undrawn = _draw_adapter(folder)
    engine = load_engine(folder, memory_limit_bytes=LIMIT_BYTES)
    facts = engine.facts
    refused = undrawn or dict(facts.refused_adapters).get(DRAWN, "")
    return {
        "batches": YES if facts.batches_ragged else "requests run one at a time, not in a batch",
        "prefixes": YES if facts.trims else "a cached prompt is reused only as a whole",
        "drafts": (YES if facts.trims else ALONE) if facts.verifies else NO_DRAFTS,
        "adapters": refused or (YES if DRAWN in facts.adapters else NO_LAYERS),
        "windows": window_fact(folder),
    }


def _draw_adapter(folder: Path) -> str:
    """Put an adapter of all of a model's linear layers beside it. Return why not, or nothing."""
    module, _ = load_model(folder)
    modules = [found for layer in module.layers for found in layer.named_modules()]
    keys = sorted({name for name, one in modules if type(one) in (nn.Linear, nn.QuantizedLinear)})
    try:
        draw_adapter(folder, folder / "adapters" / DRAWN, seed=5, keys=keys)
    except Exception as error:
        return f"mlx-lm trains none: {_said(error)}"
    return ""


def window_fact(folder: Path) -> str:
    """Whether a window is kept of its KV, once loaded, and in all layers."""
    kind = "window:16"
    held = load_engine(folder, memory_limit_bytes=LIMIT_BYTES, kv=kind).facts.extra["kv"]
    if held == "full":
        return "no layer keeps a growing KV cache of its own"
    return YES if held == kind else SOME_WINDOWS


def pipeline_fact(folder: Path) -> str:
    """Whether two stages, hand to hand, say what the whole model says, at each cut."""
    layers = len(load_model(folder)[0].layers)
    said = {cut: _cut_fact(folder, cut, layers) for cut in range(1, layers)}
    good = [str(cut) for cut, why in said.items() if why == YES]
    if len(good) == len(said):
        return YES
    first = next(why for why in said.values() if why != YES)
    return f"{SOME_CUTS} {' or '.join(good)}; elsewhere {first}" if good else first


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
        return "the quantized model does not run"


def facts_of(family: str, folder: Path, tensor: Mapping[str, str]) -> FamilyFacts:
    """Measure one family in an empty folder; what is known of its tensor ranks is given."""
    with contextlib.redirect_stdout(io.StringIO()):
        model = write_model(folder / family, settings_of(family))
        pipeline = pipeline_fact(model)
        fewer_bits = fewer_bits_fact(model, folder)
        engine = engine_facts(model)
    return FamilyFacts(pipeline=pipeline, fewer_bits=fewer_bits, **engine, **tensor)


# --- tensor ranks: two processes, joined by MLX's ring on loopback ------------------------------


def tensor_facts(models: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Whether two tensor ranks say what one says, of models of these settings: of the models
    alone, and with an adapter."""
    ports = []
    for _ in range(RANKS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="shoal-families-") as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
        asked = Path(folder) / "models.json"
        asked.write_text(json.dumps(models))
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.harness.family_facts", "--rank", asked],
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


def _rank(models: Mapping[str, dict[str, Any]]) -> None:
    """Be one of the ranks: both shard each model, compute, and compare with the whole."""
    group = mx.distributed.init(strict=True, backend="ring")
    found: dict[str, dict[str, str]] = {}
    for name, settings in models.items():
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            model = write_model(Path(folder) / "model", settings)
            alone = _tensor_fact(model, group, "")
            undrawn = _draw_adapter(model)
            also = alone if alone != YES else undrawn or _tensor_fact(model, group, DRAWN)
            found[name] = {"tensor": alone, "tensor_adapters": also}
    if group.rank() == 0:
        print(json.dumps(found))


def _tensor_fact(folder: Path, group: Any, adapter: str) -> str:
    whole = adapted(folder, folder / "adapters" / adapter if adapter else None)
    part, config = load_model(folder, lazy=True)
    part.eval()
    try:
        shard(part, config, group)
        shares = tensor_shares(*load_model(folder, lazy=True), group)
        bank = load_adapters(folder, part, float32=True, shares=shares)
        if adapter not in ("", *bank.names):
            return bank.refused.get(adapter, NO_LAYERS)
        caches = make_prompt_cache(whole), make_prompt_cache(part)
        for step in range(STEPS):
            tokens = _tokens(step)
            wanted = whole(tokens, cache=caches[0])
            with bank.applied([adapter]):
                found = part(tokens, cache=caches[1])
            if not _alike(wanted, found):
                return "the ranks say something else than the whole"
    except Unsplittable as error:
        return str(error)
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
    _, _, rest = text.partition(" read ") if text.startswith("layers ") else ("", "", "")
    if rest:
        return f"a stage would read {rest}"
    if text.startswith("its "):
        text = f"the model's {text.removeprefix('its ')}"
    return "a stage would have no cache" if "have no cache" in text else text


def measured(families: Sequence[str] | None = None) -> dict[str, FamilyFacts]:
    """Measure families, or all that can be built."""
    names = [one for one in families or known_families() if can_be_built(one)]
    sharded = {name: settings_of(name) for name in names if _shards(name)}
    tensor = tensor_facts(sharded) if sharded else {}
    found: dict[str, FamilyFacts] = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="shoal-families-") as folder:
            found[name] = facts_of(name, Path(folder), tensor.get(name, NONE_SHARDED))
    return found


def _shards(family: str) -> bool:
    from tests.harness.family_settings import model_classes

    classes = model_classes(family)
    return classes is not None and (hasattr(classes[0], "shard") or family in OWN_SHARDS)


def main() -> None:
    """Measure all, or those that are named, and write the file."""
    if "--rank" in sys.argv:
        _rank(json.loads(Path(sys.argv[sys.argv.index("--rank") + 1]).read_text()))
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
