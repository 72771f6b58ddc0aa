# pyright: basic, reportMissingImports=false
"""Talks to files: turns a checkpoint of the training into a folder that any Qwen3 loader reads.

The averaged weights are written in 16 bits. All files are written beside the folder
first and then moved into it, so a failed export leaves the old model whole.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tests.tiny_model import BUNDLED
from tests.tiny_model.model import Shape
from tests.tiny_model.tokenizer import SPECIAL


def export(checkpoint: Path, tokenizer: Path, out: Path) -> None:
    """Write config, weights, tokenizer and template into `out`."""
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    ids = {token: int(vocabulary.token_to_id(token) or 0) for token in SPECIAL}
    shape = Shape(vocab=vocabulary.get_vocab_size())
    weights = {name: w.to(torch.float16).contiguous() for name, w in state["mean"].items()}
    fresh = out.with_name(out.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})
    (fresh / "config.json").write_text(json.dumps(shape.config(ids), indent=2) + "\n")
    ends = {
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "temperature": 0.2,
    }
    (fresh / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, fresh / name)
    shutil.copy(BUNDLED / "chat_template.jinja", fresh / "chat_template.jinja")
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(fresh.iterdir()):
        path.chmod(0o644)
        path.replace(out / path.name)
    fresh.rmdir()
    print(f"{out}: {state['tokens'] / 1e6:.1f} M tokens, {state['taken']} steps")


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description="Export the tiny model from a checkpoint.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=BUNDLED)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    export(given.checkpoint, given.tokenizer, given.out)


if __name__ == "__main__":
    main()
