"""What a real runner takes while it loads: the model as it computes with it, its largest tensor,
and 200 MB; whatever the files hold."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_config

from tests.harness.families import MODELS, write_model
from tests.harness.slot import Slot, started_slot

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
ROOM_BYTES = 200_000_000
DENSE = MODELS["qwen3"] | {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
MIXTURE = MODELS["qwen3_moe"] | {
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 48,
    "moe_intermediate_size": 512,
}


def stored(folder: Path, settings: dict[str, Any], dtype: mx.Dtype, *, experts: int = 0) -> Path:
    """A model with random weights of a type; each expert a tensor of its own, as on a hub, where
    there are `experts`."""
    write_model(folder, settings)
    file = str(folder / "model.safetensors")
    weights = {name: one.astype(dtype) for name, one in mx.load(file).items()}
    for name in [name for name in weights if experts and ".switch_mlp." in name]:
        packed = weights.pop(name)
        for n in range(experts):
            weights[name.replace(".switch_mlp.", f".experts.{n}.")] = mx.contiguous(packed[n])
    mx.eval(weights)
    mx.save_safetensors(file, weights)
    assert load_config(folder)["model_type"] == settings["model_type"]
    return folder


def memory_of(pid: int) -> dict[str, int]:
    """Bytes, by their names in /proc."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = (line.partition(":") for line in lines if line.startswith(("VmHWM", "Rss")))
    return {name: int(value.split()[0]) * 1024 for name, _, value in found}


def loaded(slot: Slot) -> tuple[int, int]:
    """Load; return the most anonymous bytes seen on the way, and the weights'."""
    slot.until(lambda: bool(slot.hellos), "a first hello")
    slot.tell(slot.spec)
    most, pid = 0, slot.process.pid

    def is_over() -> bool:
        nonlocal most
        until = time.monotonic() + 0.05
        while time.monotonic() < until and slot.process.poll() is None:
            most = max(most, memory_of(pid)["RssAnon"])
        return slot.phase in ("warming", "ready", "ended")

    slot.until(is_over, "the model", 240.0)
    assert slot.phase != "ended", slot.hellos[-1].message
    now = memory_of(pid)
    # the kernel's own mark holds what was between two looks; the files' pages are not ours
    assert now["VmHWM"] - now["RssFile"] <= max(most, now["RssAnon"]) * 1.1 + 50_000_000
    return max(most, now["RssAnon"]), slot.hellos[-1].total_bytes


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.proof)])
@pytest.mark.parametrize("family", [pytest.param("dense", marks=pytest.mark.proof), "mixture"])
def test_a_load_takes_the_model_its_largest_tensor_and_200_mb(
    tmp_path: Path, family: str, dtype: str
) -> None:
    settings = DENSE if family == "dense" else MIXTURE
    folder = stored(
        tmp_path / "model",
        settings,
        getattr(mx, dtype),
        experts=int(settings.get("num_experts", 0)),
    )
    largest = 1024 * 3072 * 4 if family == "dense" else 48 * 512 * 512 * 4
    mx.clear_cache()
    with started_slot(tmp_path / "home", folder, memory_limit_bytes=8 << 30) as slot:
        most, weights = loaded(slot)
    files = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(
        f"{family} in {dtype}: files {files / 1e6:.0f} MB, weights {weights / 1e6:.0f} MB, "
        f"at most {most / 1e6:.0f} MB, of {os.cpu_count()} cores"
    )
    assert weights > 300_000_000
    assert most <= weights + largest + ROOM_BYTES
