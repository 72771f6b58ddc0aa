# pyright: reportPrivateUsage=false
# (replaces the guesses of a head inside an engine)
"""Rows with and without an MTP head, in one run, interleaved. Run by hand:

    LD_PRELOAD=.../libopenblas.so.0 OPENBLAS_NUM_THREADS=1 \\
        python -m tests.bench.mtp [--rounds 3] [--tokens 256] [--head FOLDER] [--skip-replay] \\
            [--family qwen3_next]

`--head` is a head that was trained for the bundled model (`tests.tiny_model.mtp`): the model writes
text of its own, and the head guesses it. Plain steps of so small a model are traced, and wide ones
are not, so it is also run without traces, as models in 16 bits are.

The model of 32 M parameters replays recorded prose, as in `tests.bench.speculation`. Its head
computes every guess in full. The guesses are then replaced: by the recorded tokens (the upper
bound), or by a wrong token in a share of cases, from a seed. With `--family qwen3_next` it is a
model whose KV cannot be cut, so that wrong guesses cost time later, too.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.mlx.engine import MlxEngine, load_engine
from runner.mlx.mtp import MtpGuesses
from tests.bench.models import TINY, endless_tiny, random_qwen3, random_states
from tests.bench.speculation import (
    SEED,
    contest,
    replay_texts,
    replayed,
    schedulers,
    served,
)
from tests.harness.mtp_heads import head_of, write_head

RIGHT = (1.0, 0.9, 0.7, 0.0)
"""The shares of right guesses on the replay target."""
DEPTHS = (1, 2, 4)


def opened(model: Path, head: Path, depth: int, trace: str = "traced") -> MlxEngine:
    engine = load_engine(model, memory_limit_bytes=8 << 30, mtp=(head, depth))
    if trace == "untraced":
        engine._forward._compiled = None
    engine.try_drafts()
    facts = engine.facts
    sys.stdout.write(
        f"{model.name}, {trace}, depth {depth}: a guess costs {facts.draft_token_cost:.3f} steps, "
        f"verifying costs {[(width, round(cost, 2)) for width, cost in facts.draft_costs]}\n"
    )
    return engine


def partly_right(
    answer: Sequence[int], made: int, count: int, share: float, chance: random.Random
) -> tuple[TokenId, ...]:
    """Return `count` guesses of the answer after its first `made` tokens, of which this share is
    right."""
    own = [answer[(made + at) % len(answer)] for at in range(count)]
    return tuple(TokenId(token if chance.random() < share else (token + 1) % 2048) for token in own)


def replay(
    folder: Path, encode: Callable[[str], list[int]], depth: int, rounds: int, tokens: int
) -> None:
    """The model of 32 M parameters, whose head is right in known shares."""
    engine = opened(folder, folder / "mtp", depth)
    prompt, answer = replay_texts(encode, tokens)["prose"]
    source = replayed(engine)
    source.texts = {tuple(prompt): answer}
    guesses = engine._forward.proposer
    assert isinstance(guesses, MtpGuesses)
    computed = guesses._guesses
    for share in RIGHT:
        chance = random.Random(SEED)

        def put(
            followed: Any,
            out: Any,
            draw: Any,
            most: int,
            share: float = share,
            chance: Any = chance,
        ) -> Sequence[TokenId]:
            computed(followed, out, draw, most)
            return partly_right(answer, draw.position - len(prompt), most, share, chance)

        guesses._guesses = put  # pyright: ignore[reportAttributeAccessIssue]
        planned = schedulers(engine, "mtp")
        contest(
            f"32 M, depth {depth}, {share:.0%} right",
            rounds,
            lambda on, planned=planned: served(engine, planned[on], [prompt], [len(answer)]),
        )
    engine.close()


def own_text(
    model: Path,
    head: Path,
    encode: Callable[[str], list[int]],
    depth: int,
    rounds: int,
    tokens: int,
    trace: str,
) -> None:
    """The bundled model with a trained head."""
    engine = opened(model, head, depth, trace)
    turn = "<|im_start|>user\nTell me a story about a river and a town.<|im_end|>\n"
    prompt = encode(f"{turn}<|im_start|>assistant\n<think>\n\n</think>\n\n")
    for temperature in (0.0, 0.7):
        planned, sampling = schedulers(engine, "mtp"), Sampling(temperature=temperature)
        contest(
            f"bundled, {trace}, depth {depth}, T = {temperature}",
            rounds,
            lambda on, planned=planned, sampling=sampling: served(
                engine, planned[on], [prompt], [tokens], sampling
            ),
        )
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--head", type=Path)
    parser.add_argument("--skip-replay", action="store_true")
    parser.add_argument("--family", choices=["qwen3", "qwen3_next"], default="qwen3")
    parser.add_argument("--depths", default=",".join(map(str, DEPTHS)))
    chosen = parser.parse_args()
    assert httpx.__version__
    file = Tokenizer.from_file(str(TINY / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return file.encode(text, add_special_tokens=False).ids

    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "32M", Path(folder) / "bundled"
        for path in (large, small):
            path.mkdir()
        if chosen.family == "qwen3":
            random_qwen3(large)
        else:
            random_states(large, chosen.family)
        endless_tiny(small)
        config = json.loads((large / "config.json").read_text())
        assert config["num_hidden_layers"] == 8
        write_head(large / "mtp", head_of(large))
        for depth in map(int, chosen.depths.split(",")):
            if not chosen.skip_replay:
                replay(large, encode, depth, chosen.rounds, chosen.tokens)
            for trace in ("traced", "untraced") if chosen.head is not None else ():
                own_text(small, chosen.head, encode, depth, chosen.rounds, chosen.tokens, trace)


if __name__ == "__main__":
    main()
