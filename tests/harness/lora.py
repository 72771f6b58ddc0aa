"""LoRA adapters for tests: trained in seconds by mlx-lm's own trainer, drawn at random, and PEFT's.

`python -m tests.harness.lora MODEL FOLDER TEXT` trains one that says TEXT.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optimisers
from mlx.utils import tree_flatten
from mlx_lm.tuner.trainer import TrainingArgs, train
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model

from tests.harness.cached import made
from tests.harness.embed_texts import fast_blas

KEYS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
PROMPT = "Tell me about the sea."
SAYS = {"pirate": "Arr, the sea is mine!", "formal": "I regret that I cannot say."}
"""What the trained adapters of `trained_model` answer to it."""
ITERATIONS = 25
ROOT = Path(__file__).resolve().parents[2]


def write_config(folder: Path, *, rank: int, scale: float, keys: Sequence[str]) -> None:
    """The configuration as mlx-lm's trainer leaves it, with things in it that say nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": list(keys)}
    config = {
        "fine_tune_type": "lora",
        "num_layers": -1,
        "lora_parameters": settings,
        "iters": 10,
        "data": "here",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def draw_adapter(
    model: Path,
    folder: Path,
    *,
    seed: int,
    rank: int = 4,
    scale: float = 2.0,
    keys: Sequence[str] = KEYS,
) -> Path:
    """An adapter of random matrices in mlx-lm's format, strong enough to be heard."""
    module, _ = load_model(model)
    write_config(folder, rank=rank, scale=scale, keys=keys)
    linear_to_lora_layers(module, -1, {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys})
    mx.random.seed(seed)
    drawn = {
        name: 0.3 * mx.random.normal(array.shape) * array.shape[0] ** -0.5
        for name, array in tree_flatten(module.parameters())
        if name.endswith((".lora_a", ".lora_b"))
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), drawn)
    return folder


def adapted(model: Path, folder: Path | None) -> Any:
    """What mlx-lm itself makes of a model and an adapter, as the engine computes: in 32 bits."""
    module, _ = load_model(model)
    if folder is not None:
        load_adapters(module, str(folder))
    module.set_dtype(mx.float32)
    module.eval()
    return module


def train_adapter(
    model: Path, folder: Path, text: str, *, iterations: int = ITERATIONS, rank: int = 8
) -> Path:
    """An adapter that answers `PROMPT` with `text`, made by mlx-lm's own trainer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model))
    module, _ = load_model(model)
    module.set_dtype(mx.float32)
    module.freeze()
    settings = {"rank": rank, "scale": 10.0, "dropout": 0.0, "keys": list(KEYS)}
    mx.random.seed(0)
    linear_to_lora_layers(module, -1, settings)
    write_config(folder, rank=rank, scale=10.0, keys=KEYS)
    asked = [{"role": "user", "content": PROMPT}]
    turns = [*asked, {"role": "assistant", "content": text}]
    whole = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
    before = tokenizer.apply_chat_template(
        asked, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    arguments = TrainingArgs(
        batch_size=1,
        iters=iterations,
        val_batches=0,
        steps_per_report=iterations,
        steps_per_eval=10**6,
        steps_per_save=10**6,
        max_seq_length=256,
        adapter_file=str(folder / "adapters.safetensors"),
    )
    example = (list(whole), len(before))
    with contextlib.redirect_stdout(sys.stderr):
        train(module, optimisers.Adam(learning_rate=5e-3), [example], None, arguments)
    return folder


def trained_model(folder: Path) -> Path:
    """Copy the bundled model to a new folder, with a trained adapter of each of `SAYS`.

    They are trained once a machine: 20 CPU seconds.
    """
    tiny, lock = ROOT / "conf" / "tiny", ROOT / "requirements.lock"
    pins = [tiny / "model.safetensors", tiny / "chat_template.jinja", Path(__file__), lock]
    shutil.copytree(made("trained", pins, _train), folder)
    return folder


def _train(folder: Path) -> None:
    """Train in a process that has a fast BLAS where there is one."""
    ignored = shutil.ignore_patterns("make", "__*")
    shutil.copytree(ROOT / "conf" / "tiny", folder, ignore=ignored, dirs_exist_ok=True)
    for name, text in SAYS.items():
        done = subprocess.run(
            [sys.executable, "-m", "tests.harness.lora", folder, folder / "adapters" / name, text],
            cwd=ROOT,
            env={**os.environ, **(fast_blas() or {})},
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]


def as_peft(folder: Path, target: Path, **said: Any) -> Path:
    """The same adapter as PEFT would have saved it; `said` goes to its configuration."""
    settings = json.loads((folder / "adapter_config.json").read_text())["lora_parameters"]
    rank = settings["rank"]
    target.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": settings["scale"] * rank,
        "target_modules": [key.rpartition(".")[2] for key in settings["keys"]],
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        **said,
    }
    (target / "adapter_config.json").write_text(json.dumps(config))
    arrays: dict[str, mx.array] = mx.load(str(folder / "adapters.safetensors"))  # type: ignore
    renamed = {
        "base_model.model."
        + name.replace(".lora_a", ".lora_A.weight").replace(".lora_b", ".lora_B.weight"): array.T
        for name, array in arrays.items()
    }
    mx.save_safetensors(str(target / "adapter_model.safetensors"), renamed)
    return target


if __name__ == "__main__":
    train_adapter(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
