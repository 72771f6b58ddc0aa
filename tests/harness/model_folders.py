"""Talks to the disk: what people put where models are and is none, or not wholly, by name: what
makes it, and words that are said of it. All small; none could be loaded."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 16,
}  # fmt: skip
LAYERS = "num_hidden_layers"


def weights(values: int = 128) -> bytes:
    """Return a safetensors file of one tensor."""
    tensor = {"dtype": "F16", "shape": [values], "data_offsets": [0, 2 * values]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(2 * values)


def files(**contents: str | bytes | None) -> Callable[[Path], None]:
    """Return what makes a model's folder with these files instead of, or beside, a good one's."""
    good: dict[str, str | bytes | None] = {
        "config.json": json.dumps(CONFIG),
        "tokenizer.json": "{}",
        "model.safetensors": weights(),
    }

    def make(folder: Path) -> None:
        """Write the files."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {**good, **contents}.items():
            if content is not None:
                data = content.encode() if isinstance(content, str) else content
                (folder / name).write_bytes(data)

    return make


def only(**contents: str | bytes) -> Callable[[Path], None]:
    """Return what makes a folder of these files alone."""
    none = dict.fromkeys(("config.json", "tokenizer.json", "model.safetensors"))
    return files(**{**none, **contents})


def linked(folder: Path) -> None:
    """Make a model whose weights are a link to a place that is not there."""
    files(**{"model.safetensors": None})(folder)
    (folder / "model.safetensors").symlink_to("/nowhere/at/all/blob")


def config(**fields: Any) -> str:
    return json.dumps({**CONFIG, **fields})


KINDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "loose.gguf": (lambda path: path.write_bytes(b"GGUF"), "mkdir loose;"),
    "loose.safetensors": (lambda path: path.write_bytes(weights()), "a model is a folder"),
    "packed.zip": (lambda path: path.write_bytes(b"PK"), "packed"),
    "nowhere": (lambda path: path.symlink_to("/nowhere/at/all"), "broken link"),
    "gguf": (only(**{"a.Q4_K_M.gguf": b"GGUF"}), "file is truncated"),
    "gguf-config": (files(**{"model.safetensors": None, "a.gguf": b"GGUF"}), "file is truncated"),
    "no-config": (files(**{"config.json": None}), "without a config.json"),
    "broken-config": (files(**{"config.json": "{"}), "config.json is invalid"),
    "listed-config": (files(**{"config.json": "[]"}), "not a JSON object"),
    "other-config": (files(**{"config.json": '{"model_type": "qwen3"}'}), f"has no {LAYERS}"),
    "odd-config": (files(**{"config.json": config(vocab_size="many")}), "config.json"),
    "no-layers": (files(**{"config.json": config(num_hidden_layers=0)}), LAYERS),
    "no-weights": (files(**{"model.safetensors": None}), "without weights"),
    "torch": (files(**{"model.safetensors": None, "pytorch_model.bin": b"x"}), "pytorch_model.bin"),
    "other-name": (
        files(**{"model.safetensors": None, "consolidated.safetensors": weights()}),
        "consolidated.safetensors",
    ),
    "corrupt": (files(**{"model.safetensors": b"\xff" * 64}), "not a safetensors file"),
    "short-header": (files(**{"model.safetensors": weights()[:40]}), "is truncated"),
    "short-data": (files(**{"model.safetensors": weights()[:-1]}), "is truncated"),
    "nothing-in-file": (files(**{"model.safetensors": b""}), "is truncated"),
    "pointer": (
        files(**{"model.safetensors": "version https://git-lfs.github.com/spec/v1\n"}),
        "git lfs pull",
    ),
    "shards": (
        files(**{"model.safetensors": None, "model-00002-of-00002.safetensors": weights()}),
        "model-00001-of-00002.safetensors is missing",
    ),
    "unfinished": (
        files(**{"model.safetensors": None, "model.safetensors.part": b"x"}),
        "incomplete download",
    ),
    "lora": (
        only(**{"adapter_config.json": "{}", "adapters.safetensors": weights()}),
        "LoRA",
    ),
    "an odd name.gguf": (lambda path: path.write_bytes(b"GGUF"), "of its own"),
    "stray.txt": (lambda path: path.write_text("x"), "a model is a folder"),
    "no-tokenizer": (files(**{"tokenizer.json": None}), "without a tokenizer"),
    "new-family": (files(**{"config.json": config(model_type="brand_new")}), "mlx-lm 0."),
    "whisper": (files(**{"config.json": '{"model_type": "whisper"}'}), "mlx-lm 0."),
    "vision": (
        files(**{"config.json": config(model_type="sees", vision_config={})}),
        "images",
    ),
    "pictures": (only(**{"model_index.json": "{}"}), "diffusers"),
    "index": (
        files(**{"model.safetensors.index.json": '{"weight_map": {"w": "other.safetensors"}}'}),
        "other.safetensors, missing here",
    ),
    "linked": (linked, "/nowhere/at/all/blob"),
    "adapted": (files(**{"adapters.safetensors": weights(9_999)}), "adapters/NAME"),
    "empty": (lambda path: path.mkdir(), "empty folder"),
    "shoal-tiny": (files(), "takes precedence"),
    "owner/deep/er": (files(), "too deep"),
    "owner/gguf": (only(**{"b.gguf": b"nothing"}), "not with b'GGUF'"),
}
"""Name below the models folder: what makes it, and words that are said of it."""


def named(kind: str) -> str:
    """Return what is spoken of: of what lies too deep, the folder that might be a model's."""
    return "owner/deep" if kind == "owner/deep/er" else kind
