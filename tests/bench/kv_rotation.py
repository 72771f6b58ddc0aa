"""KV in 4 bits as it is, and rotated before the codes, at equal bits. Run by hand:

    LD_PRELOAD=.../libopenblas.so.0 OPENBLAS_NUM_THREADS=1 \\
        python -P tests/bench/kv_rotation.py [--rows 100] [--tokens 250] [--families]

Texts are each model's own speech, sampled at temperature 1 in full width. A rotation is a Hadamard
matrix of random signs, or a random orthogonal matrix, of the width of a head; it is undone before
attention, which is what rotating queries and outputs gives. With "ends" the first and the last
layer stay in full width. "outlying" is the bundled model with two channels of each head's keys
eight times as large and its queries' as much smaller, which changes nothing in full width.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mlx.core as mx  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402

from runner.mlx.kv import Shape, new_caches  # noqa: E402
from runner.mlx.kv.codec import FULL_WIDTH, Codec, FewerBits, Parts  # noqa: E402
from runner.mlx.model.capabilities import measure  # noqa: E402
from runner.mlx.model.load import load_weights  # noqa: E402
from tests.harness.families import MODELS, write_model  # noqa: E402

LATENT = {"kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
FAMILIES = {
    "qwen3": {"head_dim": 32},
    "llama": {"head_dim": 64},
    "qwen3_moe": {"head_dim": 32},
    "gpt_oss": {"head_dim": 32},
    "deepseek_v3": LATENT,
}
PAIRS = (("hadamard", "4bit"), ("random", "4bit"))
OUTLYING, TIMES = (3, 19), 8.0


def rotation(width: int, how: str) -> mx.array:
    """Return an orthogonal matrix (width, width), always the same."""
    key = mx.random.key(width)
    if how == "hadamard":
        signs = mx.where(mx.random.bernoulli(0.5, (width,), key), 1.0, -1.0)
        return mx.hadamard_transform(mx.diag(signs))
    return mx.linalg.qr(mx.random.normal((width, width), key=key), stream=mx.cpu)[0]


class Rotated:
    """A codec whose keys and values are rotated before it, and back after."""

    def __init__(self, codec: FewerBits, how: str, keys: int, values: int) -> None:
        self._codec = codec
        self._keys, self._values = rotation(keys, how), rotation(values, how)

    def encode(self, keys: mx.array, values: mx.array) -> Parts:
        return self._codec.encode(keys @ self._keys, values @ self._values)

    def fetch(self, parts: Parts) -> tuple[Any, Any]:
        keys, values = self._codec.fetch(parts)
        return keys @ self._keys.T, values @ self._values.T

    def mark(self, cache: Any) -> None:
        """Leave the cache as it is."""

    def packed(self) -> Codec:
        return self


def shapes(model: Any) -> dict[str, Shape]:
    """Return the ways to hold KV that are compared."""
    plain, caches = measure(model, "4bit"), make_prompt_cache(model)
    mx.eval(model(mx.array([[1, 2, 3]]), cache=caches))
    found = {"full": measure(model), "8bit": measure(model, "8bit"), "4bit": plain}
    for how, _ in PAIRS:
        codecs = tuple(
            Rotated(codec, how, own.keys.shape[-1], own.values.shape[-1])
            if isinstance(codec, FewerBits)
            else codec
            for codec, own in zip(plain.codecs, caches, strict=True)
        )
        found[how] = replace(plain, codecs=codecs)
    for name in ("4bit", "hadamard", "random"):
        codecs = list(found[name].codecs)
        narrow = [at for at, codec in enumerate(codecs) if codec not in (None, FULL_WIDTH)]
        codecs[narrow[0]] = codecs[narrow[-1]] = FULL_WIDTH
        if len(narrow) > 2:
            found[f"{name}+ends"] = replace(plain, codecs=tuple(codecs))
    return found


def speech(model: Any, rows: int, tokens: int) -> mx.array:
    """Return (rows, 4 + tokens): what the model says after four random tokens."""
    mx.random.seed(7)
    caches = make_prompt_cache(model)
    said = [mx.random.randint(3, 250, (rows, 4))]
    for _ in range(tokens):
        logits = model(said[-1], cache=caches)[:, -1]
        said.append(mx.random.categorical(logits)[:, None])
        mx.eval(said[-1])
    return mx.concatenate(said, axis=1)


def log_probs(model: Any, shape: Shape, text: mx.array) -> mx.array:
    """Return (tokens, vocabulary) of one text."""
    out = model(text[None], cache=new_caches(model, shape, 0))[0].astype(mx.float32)
    return out - mx.logsumexp(out, -1, keepdims=True)


def spread(values: Sequence[float]) -> str:
    """Return a mean and its standard error."""
    mean = sum(values) / len(values)
    off = sum((one - mean) ** 2 for one in values) / (len(values) - 1)
    return f"{mean:+.5f} +- {math.sqrt(off / len(values)):.5f}"


def compare(name: str, model: Any, rows: int, tokens: int) -> None:
    """Print perplexity and KL of each way, and differences text by text."""
    texts, ways = speech(model, rows, tokens), shapes(model)
    surprise: dict[str, list[float]] = {way: [] for way in ways}
    apart: dict[str, list[float]] = {way: [] for way in ways}
    for row in range(rows):
        wide = log_probs(model, ways["full"], texts[row])
        for way, shape in ways.items():
            ours = log_probs(model, shape, texts[row])
            nats = -mx.mean(mx.take_along_axis(ours[:-1], texts[row, 1:, None], -1))
            kl = mx.mean(mx.sum(mx.exp(wide) * (wide - ours), -1))
            surprise[way].append(float(nats))
            apart[way].append(float(kl))
    for way in ways:
        perplexity = math.exp(sum(surprise[way]) / rows)
        print(f"{name:12} {way:14} perplexity {perplexity:8.4f}  KL {sum(apart[way]) / rows:.5f}")
    for rotated, plain in (*PAIRS, *((f"{one}+ends", f"{two}+ends") for one, two in PAIRS)):
        if rotated in ways:
            nats, kl = (
                spread([one - two for one, two in zip(by[rotated], by[plain], strict=True)])
                for by in (surprise, apart)
            )
            print(f"{name:12} {rotated} less {plain}: log perplexity {nats}, KL {kl}", flush=True)


def with_outliers(model: Any) -> Any:
    """Return the model with outlying channels of its keys: a pair that rotates together."""
    scale = mx.array([TIMES if at in OUTLYING else 1.0 for at in range(32)])
    for layer in model.layers:
        layer.self_attn.k_norm.weight = layer.self_attn.k_norm.weight * scale
        layer.self_attn.q_norm.weight = layer.self_attn.q_norm.weight / scale
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--families", action="store_true", help="random ones, too")
    asked = parser.parse_args()
    tiny = load_weights(ROOT / "conf" / "tiny", "float32", lambda _: None).model
    compare("bundled", tiny, asked.rows, asked.tokens)
    compare("outlying", with_outliers(tiny), asked.rows, asked.tokens)
    for family, more in FAMILIES.items() if asked.families else ():
        with tempfile.TemporaryDirectory() as home:
            folder = write_model(Path(home) / family, MODELS[family] | more)
            model = load_weights(folder, "float32", lambda _: None).model
            compare(family, model, asked.rows, asked.tokens)


if __name__ == "__main__":
    main()
