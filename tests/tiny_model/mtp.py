# pyright: basic, reportMissingImports=false
"""Talks to files and the clock: trains a multi-token prediction head for the bundled model.

The model stays as it is. From its hidden state at one token and the next token, the head learns the
model's own distribution of the token after that. It is written as a sidecar folder, with the tensor
names of Qwen3-Next. Run by hand, with MLX on a CPU:

    LD_PRELOAD=.../libopenblas.so.0 OPENBLAS_NUM_THREADS=1 \\
        python -m tests.tiny_model.mtp --out conf-with-head/mtp [--minutes 10]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn, optimizers
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.qwen3 import TransformerBlock
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

from tests.tiny_model.batches import Batch, steps

TINY = Path(__file__).resolve().parents[2] / "conf" / "tiny"
LONGEST, SIZE = 384, 2048
RATE, WARM_STEPS = 2e-3, 50
TESTED_BATCHES = 12


class Head(nn.Module):
    """The head of a loaded model. It begins as the model's last layer applied once more."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        width = model.args.hidden_size
        self.pre_fc_norm_embedding = nn.RMSNorm(width, eps=model.args.rms_norm_eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(width, eps=model.args.rms_norm_eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.fc.weight = mx.concatenate([mx.zeros((width, width)), mx.eye(width)], axis=1)
        self.layers = [TransformerBlock(model.args)]
        self.layers[0].update(model.layers[-1].parameters())
        self.norm = nn.RMSNorm(width, eps=model.args.rms_norm_eps)
        self.norm.weight = model.model.norm.weight + 0.0

    def __call__(self, hidden: mx.array, embedded: mx.array) -> mx.array:
        parts = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        out = self.fc(mx.concatenate(parts, axis=-1))
        return self.norm(self.layers[0](out, create_attention_mask(out, None)))


def lessons(tokenizer: Any, first: int) -> Iterator[Batch]:
    """Batches of the texts that the model was trained on, without end."""
    for shard in range(first, 1 << 30):
        for (batch,) in steps(tokenizer, shard, "again", LONGEST, SIZE, 1):
            yield batch


def inputs(model: Any, batch: Batch) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Return hidden states and embeddings of the tokens after them, (rows, length - 1, width), the
    model's log-probabilities of the tokens after those, and their weights."""
    tokens = mx.array(batch.tokens)
    hidden = model.model(tokens)
    embed = model.model.embed_tokens
    wanted = nn.log_softmax(embed.as_linear(hidden)[:, 1:])
    made = hidden[:, :-1], embed(tokens[:, 1:]), wanted, mx.array(batch.weights)[:, 1:]
    mx.eval(made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    chosen = parser.parse_args()
    model: Any = load_model(TINY)[0]
    model.set_dtype(mx.float32)
    model.freeze()
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    head = Head(model)
    project = model.model.embed_tokens.as_linear
    optimiser = optimizers.AdamW(learning_rate=RATE, weight_decay=0.01)

    def loss(hidden: mx.array, embedded: mx.array, wanted: mx.array, weights: mx.array) -> mx.array:
        guessed = nn.log_softmax(project(head(hidden, embedded)))
        each = mx.sum(mx.exp(wanted) * (wanted - guessed), axis=-1)
        return mx.sum(each * weights) / mx.maximum(mx.sum(weights), 1.0)

    def right() -> float:
        """The share of the model's own greedy choices that the head guesses, on other texts."""
        hits = total = 0.0
        for batch, _ in zip(lessons(tokenizer, 90_000), range(TESTED_BATCHES), strict=False):
            hidden, embedded, wanted, weights = inputs(model, batch)
            guessed = mx.argmax(project(head(hidden, embedded)), axis=-1)
            counts = weights >= 1.0
            same = (guessed == mx.argmax(wanted, axis=-1)) & counts
            hits, total = hits + float(same.sum()), total + float(counts.sum())
        return hits / max(total, 1.0)

    learn = nn.value_and_grad(head, loss)
    began, ends, seen = time.monotonic(), chosen.minutes * 60.0, 0.0
    for number, batch in enumerate(lessons(tokenizer, 50_000), 1):
        spent = time.monotonic() - began
        if spent >= ends:
            break
        optimiser.learning_rate = RATE * min(1.0, number / WARM_STEPS) * (1.0 - spent / ends)
        value, slopes = learn(*inputs(model, batch))
        slopes, _ = optimizers.clip_grad_norm(slopes, 1.0)
        optimiser.update(head, slopes)
        mx.eval(head.parameters(), optimiser.state)
        seen = 0.98 * seen + 0.02 * value.item()
        if number % 20 == 0:
            print(f"step {number}, {spent:.0f} s: loss {seen / (1 - 0.98**number):.4f}", flush=True)
    print(f"right guesses on other texts: {right():.3f}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    named: Any = tree_flatten(head.parameters())
    tensors = {f"mtp.{name}": array.astype(mx.float16) for name, array in named}
    mx.save_safetensors(str(chosen.out / "model.safetensors"), tensors)


if __name__ == "__main__":
    main()
