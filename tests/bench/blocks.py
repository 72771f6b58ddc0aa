# pyright: reportPrivateUsage=false
# (replaces the guesses of a drafter inside an engine)
"""Rows with and without a block drafter, in one run, interleaved. Run by hand:

    LD_PRELOAD=.../libopenblas.so.0 OPENBLAS_NUM_THREADS=1 \\
        python -m tests.bench.blocks [--rounds 3] [--tokens 192] [--block FOLDER] [--skip-replay]

`--block` is a drafter that was trained for the bundled model (`tests.tiny_model.blocks`): the model
writes text of its own, and the drafter guesses it, in blocks of several lengths and in several
steps. Plain steps of so small a model are traced, and wide ones are not, so it is also run without
traces, as models in 16 bits are.

The model of 32 M parameters replays recorded prose, as in `tests.bench.speculation`. Its drafter of
two layers computes every block in full. The guesses are then replaced: by the recorded tokens (the
upper bound), or by a wrong token in a share of cases, from a seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
from tokenizers import Tokenizer

from bus.models.block_drafters import CONFIG
from bus.wire.ids import TokenId
from bus.wire.messages.requests import Sampling
from runner.mlx.engine import MlxEngine, load_engine
from runner.mlx.mtp import BlockGuesses
from runner.schedule.drafting import NO_DRAFTS
from tests.bench.models import TINY, endless_tiny, random_qwen3
from tests.bench.mtp import partly_right
from tests.bench.speculation import (
    SEED,
    contest,
    plus,
    replay_texts,
    replayed,
    schedulers,
    served,
)
from tests.harness.block_drafters import shape_of, write_block
from tests.tiny_model.blocks import first_turns

RIGHT = (1.0, 0.9, 0.7, 0.0)
"""The shares of right guesses on the replay target."""
BLOCKS = ((2, 1), (4, 1), (4, 2), (8, 1), (8, 2))
"""The length of a block and the steps for it."""
STORIES = ("Tell me a story about a river and a town.", "Tell me a story about a dog.")


def opened(model: Path, block: Path, trace: str = "traced") -> MlxEngine:
    engine = load_engine(model, memory_limit_bytes=8 << 30, block=block)
    if trace == "untraced":
        engine._forward._compiled = None
    engine.try_drafts()
    facts = engine.facts
    assert not facts.no_block, facts.no_block
    sys.stdout.write(
        f"{model.name}, {trace}, blocks of {facts.draft_depth}: a block costs "
        f"{facts.draft_block_cost:.3f} steps, verifying costs "
        f"{[(width, round(cost, 2)) for width, cost in facts.draft_costs]}\n"
    )
    return engine


def guesses_of(engine: MlxEngine) -> BlockGuesses:
    guesses = engine._forward.proposer
    assert isinstance(guesses, BlockGuesses)
    return guesses


def replay(
    folder: Path, encode: Callable[[str], list[int]], shape: tuple[int, int], rounds: int, most: int
) -> None:
    """The model of 32 M parameters, whose drafter is right in known shares."""
    length, steps = shape
    own: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    names = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    sizes = {name: own[name] for name in names}
    block = write_block(
        folder / "block", shape_of(folder, block_length=length, steps=steps, window=16, **sizes)
    )
    engine = opened(folder, block)
    prompt, answer = replay_texts(encode, most)["prose"]
    source = replayed(engine)
    source.texts = {tuple(prompt): answer}
    guesses = guesses_of(engine)
    computed = guesses._guesses
    for share in RIGHT:
        chance = random.Random(SEED)

        def put(
            tokens: Sequence[TokenId],
            hidden: mx.array | None,
            draw: Any,
            wanted: int,
            share: float = share,
            chance: random.Random = chance,
        ) -> Any:
            proposal = computed(tokens, hidden, draw, wanted)
            made: int = draw.position - len(prompt)
            return replace(proposal, tokens=partly_right(answer, made, wanted, share, chance))

        guesses._guesses = put  # pyright: ignore[reportAttributeAccessIssue]
        planned = schedulers(engine, "block")
        contest(
            f"32 M, {length} in {steps}, {share:.0%} right",
            rounds,
            lambda on, planned=planned: served(engine, planned[on], [prompt], [len(answer)]),
        )
    engine.close()


def own_text(
    model: Path,
    block: Path,
    encode: Callable[[str], list[int]],
    rounds: int,
    tokens: int,
    trace: str,
) -> None:
    """The bundled model with a trained drafter."""
    engine = opened(model, block, trace)
    most = guesses_of(engine)._block.shape.block_length
    shapes = [(length, steps) for length, steps in BLOCKS if length <= most]
    for question, temperature in [(story, at) for story in STORIES for at in (0.0, 0.7)]:
        turn = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        prompt = encode(f"{turn}<think>\n\n</think>\n\n")
        for length, steps in shapes:
            set_shape(engine, length, steps)
            planned, sampling = schedulers(engine, "block"), Sampling(temperature=temperature)
            contest(
                f"{question[-6:-1]}, {trace}, {length} in {steps}, T = {temperature}",
                rounds,
                lambda on, planned=planned, sampling=sampling, prompt=prompt: served(
                    engine, planned[on], [prompt], [tokens], sampling
                ),
            )
    engine.close()


def set_shape(engine: MlxEngine, length: int, steps: int) -> None:
    """Have the drafter guess shorter blocks, in so many steps, and measure their cost again."""
    guesses = guesses_of(engine)
    shape = guesses._block.shape.model_copy(update={"block_length": length, "steps": steps})
    guesses._block = replace(guesses._block, shape=shape)
    engine.facts = replace(engine.facts, draft_depth=length)
    engine.try_drafts()


def acceptance(model: Path, block: Path, encode: Callable[[str], list[int]], tokens: int) -> None:
    """What share of guesses is right where every step has a block, whether or not it pays. The
    model answers the beginnings of lessons, up to its end token."""
    engine = opened(model, block)
    most = guesses_of(engine)._block.shape.block_length
    plain = schedulers(engine, "block")[False]
    prompts: list[tuple[list[int], int]] = []
    for prompt in first_turns(encode):
        *_, texts, _ = served(engine, plain, [prompt], [tokens])
        ends = [at for at, token in enumerate(texts[0]) if token in engine.facts.eos_token_ids]
        prompts.append((prompt, 1 + min(ends, default=tokens - 1)))
    for length, steps in [(length, steps) for length, steps in BLOCKS if length <= most]:
        set_shape(engine, length, steps)
        engine.facts = replace(engine.facts, draft_costs=((33, 1.0),), draft_block_cost=0.0)
        made, total = 0, NO_DRAFTS
        for prompt, count in prompts:
            planned = schedulers(engine, "block")[True]
            *_, texts, counts = served(engine, planned, [prompt], [count])
            made, total = made + len(texts[0]), plus(total, counts)
        passes, peak_bytes = total.proposals["block"]
        sys.stdout.write(
            f"{len(prompts)} answers, {length} in {steps}: {total.drafts} drafts, {passes} passes, "
            f"{total.accepted} of {total.drafted} tokens accepted "
            f"({total.accepted / total.drafted:.0%}), {1 + total.accepted / total.drafts:.2f} "
            f"tokens per drafted step, {made} in all, peak {peak_bytes >> 10} KiB\n"
        )
        sys.stdout.flush()
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--block", type=Path)
    parser.add_argument("--skip-replay", action="store_true")
    chosen = parser.parse_args()
    assert httpx.__version__
    file = Tokenizer.from_file(str(TINY / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return file.encode(text, add_special_tokens=False).ids

    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "32M", Path(folder) / "bundled"
        for path in (large, small):
            path.mkdir()
        random_qwen3(large)
        endless_tiny(small)
        if chosen.block is not None:
            acceptance(TINY, chosen.block, encode, chosen.tokens)
            for trace in ("untraced", "traced"):
                own_text(small, chosen.block, encode, chosen.rounds, chosen.tokens, trace)
        for shape in () if chosen.skip_replay else BLOCKS:
            replay(large, encode, shape, chosen.rounds, chosen.tokens)


if __name__ == "__main__":
    main()
