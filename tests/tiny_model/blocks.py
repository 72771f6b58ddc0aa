# pyright: basic, reportMissingImports=false
"""Talks to files and the clock: trains a block drafter for the bundled model.

The model stays as it is. From its hidden states and tokens up to a random place, the drafter learns
the model's own distributions of the next tokens, all at once. In some blocks the first tokens are
shown, so that a second pass can use those of the first. Run by hand, with MLX on a CPU:

    python -m tests.tiny_model.blocks --out model/block [--seconds 90] [--steps 2] [--tokens-only]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

from bus.models.block_drafters import CONFIG, BlockShape
from runner.mlx.mtp.block_network import BlockNetwork
from tests.tiny_model.batches import Batch, steps
from tests.tiny_model.render import spans
from tests.tiny_model.text import training

TINY = Path(__file__).resolve().parents[2] / "conf" / "tiny"
LONGEST, SIZE = 384, 2048
RATE, OTHER_RATE, WARM_STEPS, MOST_STEPS = 0.02, 3e-3, 10, 2000
"""Rates of matrices (Muon) and of norms (AdamW)."""
BLOCKS, TESTED_BATCHES = 128, 8
REUSES = 6
"""Steps with one batch, because the model's own forward takes longer than a step."""
OTHERS = 91_000
"""Texts from this number on are in no training."""
LATER = 0.85
"""Weight of each slot against the one before it."""

Example = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]


def shape_for(model: Any, **parts: Any) -> BlockShape:
    """The shape of a drafter for a loaded Qwen3: layers like the model's own."""
    args = model.args
    wanted: dict[str, Any] = {
        "drafter": "block",
        "hidden_size": args.hidden_size,
        "intermediate_size": args.intermediate_size,
        "num_hidden_layers": 2,
        "num_attention_heads": args.num_attention_heads,
        "num_key_value_heads": args.num_key_value_heads,
        "head_dim": args.head_dim,
        "vocab_size": args.vocab_size,
        "rms_norm_eps": args.rms_norm_eps,
        "rope_theta": args.rope_theta,
        "block_length": 4,
        "window": 16,
    }
    return BlockShape.model_validate({**wanted, **parts})


def begun(model: Any, shape: BlockShape) -> BlockNetwork:
    """A drafter that begins as the model's last layers, applied once more."""
    network, width = BlockNetwork(shape), shape.hidden_size
    for layer, own in zip(network.layers, model.layers[-shape.num_hidden_layers :], strict=True):
        layer.update(own.parameters(), strict=False)
        layer.context_layernorm.weight = own.input_layernorm.weight + 0.0
    eye = mx.eye(width)
    parts = [eye, 0.1 * eye] if shape.reads_hidden else [eye]
    network.context_proj.weight = mx.concatenate(parts, axis=1)
    network.norm.weight = model.model.norm.weight + 0.0
    mx.eval(network.parameters())
    return network


def lessons(tokenizer: Any, first: int) -> Iterator[Batch]:
    """Batches of the texts that the model was trained on, without end."""
    for shard in range(first, 1 << 30):
        for (batch,) in steps(tokenizer, shard, "again", LONGEST, SIZE, 1):
            yield batch


def examples(
    model: Any, shape: BlockShape, batch: Batch, chance: random.Random, times: int
) -> Iterator[Example]:
    """Yield some times, for blocks after random places: embeddings and hidden states of the
    context, (blocks, window, width), embeddings of the block's tokens, and the model's
    log-probabilities and the weights of each. Yield nothing if no text is long enough."""
    window, length = shape.window, shape.block_length
    tokens, weights = np.array(batch.tokens), np.array(batch.weights)
    places = [
        (row, at)
        for row in range(len(tokens))
        for at in range(window, tokens.shape[1] - length)
        if weights[row, at : at + length].all()
    ]
    hidden, embed = model.model(mx.array(tokens)), model.model.embed_tokens
    for _ in range(times if places else 0):
        chosen = np.array(chance.choices(places, k=BLOCKS))
        rows, ats = chosen[:, :1], chosen[:, 1:]
        context = ats + np.arange(-window + 1, 1)
        block = ats + np.arange(1, length + 1)
        row_ids = mx.array(rows)
        made = (
            embed(mx.array(tokens[rows, context])),
            hidden[row_ids, mx.array(context - 1)],
            embed(mx.array(tokens[rows, block])),
            nn.log_softmax(embed.as_linear(hidden[row_ids, mx.array(block - 1)])),
            mx.array(weights[rows, block - 1]),
        )
        mx.eval(made)
        yield made


def train(
    model: Any,
    shape: BlockShape,
    tokenizer: Any,
    seconds: float,
    most_steps: int = MOST_STEPS,
    seed: int = 1,
) -> BlockNetwork:
    """Return a drafter that learned for some seconds of processor time, or for some steps."""
    network, chance = begun(model, shape), random.Random(seed)
    project = model.model.embed_tokens.as_linear
    rates = optimizers.Muon(RATE, weight_decay=0.0), optimizers.AdamW(OTHER_RATE, weight_decay=0.0)
    optimiser = optimizers.MultiOptimizer(list(rates), [lambda _, array: array.ndim == 2])
    fade = mx.array([LATER**at for at in range(shape.block_length)])

    def loss(
        embedded: mx.array,
        hidden: mx.array,
        block: mx.array,
        wanted: mx.array,
        weights: mx.array,
        shown: int,
    ) -> mx.array:
        context = network.context(embedded, hidden if shape.reads_hidden else None)
        settled = block[:, :shown] if shown else None
        guessed = nn.log_softmax(project(network(context, settled, shape.block_length)[:, shown:]))
        wanted = wanted[:, shown:]
        each = mx.sum(mx.exp(wanted) * (wanted - guessed), axis=-1)
        weights = (weights * fade)[:, shown:]
        return mx.sum(each * weights) / mx.maximum(mx.sum(weights), 1.0)

    learn = nn.value_and_grad(network, loss)
    began, seen = time.process_time(), 0.0
    batches = lessons(tokenizer, 50_000)
    made_of = (examples(model, shape, batch, chance, REUSES) for batch in batches)
    for number, made in enumerate(chain.from_iterable(made_of), 1):
        spent = (time.process_time() - began) / seconds
        if spent >= 1.0 or number > most_steps:
            break
        rest = 1.0 - max(spent, number / most_steps)
        share = min(1.0, number / WARM_STEPS) * max(rest, 0.01)
        for each, rate in zip(rates, (RATE, OTHER_RATE), strict=True):
            each.learning_rate = rate * share
        shown = chance.randrange(shape.block_length) if chance.random() < 0.3 else 0
        value, slopes = learn(*made, shown)
        slopes, _ = optimizers.clip_grad_norm(slopes, 1.0)
        optimiser.update(network, slopes)
        mx.eval(network.parameters(), optimiser.state)
        seen = 0.98 * seen + 0.02 * value.item()
        if number % 50 == 0:
            loss_now = seen / (1 - 0.98**number)
            print(f"step {number}, {spent:.0%}: loss {loss_now:.4f}", flush=True)
    return network


def right(model: Any, shape: BlockShape, tokenizer: Any, network: BlockNetwork) -> list[float]:
    """The share of the model's own greedy choices that the drafter guesses in one pass, by slot, on
    other texts, where all slots before it are right."""
    chance, project = random.Random(2), model.model.embed_tokens.as_linear
    hits, tried = np.zeros(shape.block_length), np.zeros(shape.block_length)
    batches = islice(lessons(tokenizer, 90_000), TESTED_BATCHES)
    for made in chain.from_iterable(examples(model, shape, batch, chance, 3) for batch in batches):
        embedded, hidden, _, wanted, _ = made
        context = network.context(embedded, hidden if shape.reads_hidden else None)
        guessed = mx.argmax(project(network(context, None, shape.block_length)), axis=-1)
        same = np.array(guessed == mx.argmax(wanted, axis=-1))
        before = np.cumprod(np.pad(same, ((0, 0), (1, 0)), constant_values=1), axis=1)
        tried += before[:, :-1].sum(axis=0)
        hits += before[:, 1:].sum(axis=0)
    return [float(share) for share in hits / np.maximum(tried, 1)]


def write(folder: Path, shape: BlockShape, network: BlockNetwork) -> Path:
    """Write a drafter in 16 bits."""
    folder.mkdir(parents=True, exist_ok=True)
    named: Any = tree_flatten(network.parameters())
    tensors = {name: array.astype(mx.float16) for name, array in named}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    (folder / CONFIG).write_text(json.dumps(shape.model_dump(mode="json"), indent=2) + "\n")
    return folder


def opened() -> tuple[Any, Any]:
    """The bundled model in 32 bits, and its tokenizer."""
    model: Any = load_model(TINY)[0]
    model.set_dtype(mx.float32)
    model.freeze()
    return model, Tokenizer.from_file(str(TINY / "tokenizer.json"))


def first_turns(encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The beginnings of some other texts, up to the first answer of the model."""
    prompts: list[list[int]] = []
    for sample in islice(training(OTHERS, "again"), 40):
        parts = spans(sample)
        answer = next((at for at, (_, weight) in enumerate(parts) if weight >= 1.0), None)
        prompt = encode("".join(text for text, _ in parts[:answer]))
        if answer and 16 < len(prompt) < 300:
            prompts.append(prompt)
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--most-steps", type=int, default=MOST_STEPS)
    parser.add_argument("--length", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--tokens-only", action="store_true")
    chosen = parser.parse_args()
    model, tokenizer = opened()
    shape = shape_for(
        model,
        block_length=chosen.length,
        num_hidden_layers=chosen.layers,
        steps=chosen.steps,
        window=chosen.window,
        reads_hidden=not chosen.tokens_only,
    )
    network = train(model, shape, tokenizer, chosen.seconds, chosen.most_steps)
    shares = ", ".join(f"{share:.3f}" for share in right(model, shape, tokenizer, network))
    sys.stdout.write(f"right guesses on other texts, by slot: {shares}\n")
    write(chosen.out, shape, network)


if __name__ == "__main__":
    main()
