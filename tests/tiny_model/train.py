# pyright: basic, reportMissingImports=false
"""Talks to files and the clock: trains the tiny model on the CPU, resumably.

The run is given tokens and minutes: rates rise, stay, and fall to nothing when either
is used up, so that a machine that others use too still ends with a finished model. It
begins with short things to copy; its last quarter brings conversations of up to the
full context.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tests.tiny_model.batches import Batch, steps
from tests.tiny_model.crew import Crew
from tests.tiny_model.model import Qwen3, Shape
from tests.tiny_model.optimiser import Optimiser
from tests.tiny_model.text import Phase

SHORT, LONG = 1024, 4096
EARLY, LATE, FALL = 0.32, 0.75, 0.6
SIZE, PER_STEP = 1024, 2
SAVE_EVERY_S = 120.0
AGAIN_FROM = 100_000  # no lesson of the first run comes twice


@dataclass(frozen=True)
class Given:
    """What a run may use up: minutes of this machine, millions of tokens; whether it takes up a
    finished model, at which share of the full rates, and how many small batches make a step."""

    minutes: float
    tokens: float
    again: bool
    rate: float
    per_step: int


@dataclass
class Run:
    """Where a run stands: what a checkpoint holds."""

    model: Qwen3
    mean: dict[str, torch.Tensor]
    optimiser: Optimiser
    shard: int = 0
    taken: int = 0
    tokens: int = 0
    trained_s: float = 0.0


def taken_up(run: Run, folder: Path, shard: int) -> Run:
    """The run with the weights of an exported model, before its first step."""
    weights = exported(folder)
    run.model.load_state_dict(weights)
    run.mean = {name: w.clone() for name, w in weights.items()}
    run.shard = shard
    return run


def exported(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of an exported model, in 32 bits."""
    return {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}


def share(done: float) -> float:
    """The share of the full rate after `done` of the run: a rise, a plateau, a fall."""
    if done < 0.01:
        return max(0.05, done / 0.01)
    return 1.0 if done < FALL else max(0.01, (1.0 - done) / (1.0 - FALL))


def save(run: Run, path: Path) -> None:
    """Write a checkpoint beside the old one, then put it in its place."""
    state = {
        "model": run.model.state_dict(),
        "mean": run.mean,
        "optimiser": run.optimiser.state(),
        "shard": run.shard,
        "taken": run.taken,
        "tokens": run.tokens,
        "trained_s": run.trained_s,
    }
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def resumed(run: Run, path: Path) -> Run:
    """The run as its last checkpoint left it, or untouched when there is none."""
    if path.exists():
        state: dict[str, Any] = torch.load(path, weights_only=True)
        run.model.load_state_dict(state["model"])
        run.optimiser.restore(state["optimiser"])
        run.mean = state["mean"]
        run.shard, run.taken = state["shard"] + 1, state["taken"]
        run.tokens, run.trained_s = state["tokens"], state["trained_s"]
    return run


def learn(run: Run, crew: Crew, count: int, rate: float) -> float:
    """Finish the step that the crew has begun; the mean loss of what counts."""
    loss, gradient = crew.end(count)
    at = 0
    for p in run.model.parameters():
        p.grad = gradient[at : at + p.numel()].view_as(p)
        at += p.numel()
    run.optimiser.step(rate)
    with torch.no_grad():
        for name, p in run.model.named_parameters():
            run.mean[name].lerp_(p, 0.02)
    return loss


def phase_at(done: float, *, again: bool) -> Phase:
    """Return what is learned after `done` of the run."""
    if again:
        return "again"
    return "early" if done < EARLY else "main" if done < LATE else "late"


def stream(run: Run, tokenizer: Any, done: Any, given: Given) -> Iterator[list[Batch]]:
    """Steps without end, shard after shard."""
    while True:
        phase = phase_at(done(), again=given.again)
        longest = LONG if phase in ("late", "again") else SHORT
        yield from steps(tokenizer, run.shard, phase, longest, SIZE, given.per_step)
        run.shard += 1


def train(run: Run, crew: Crew, tokenizer: Any, path: Path, given: Given) -> None:
    """Train until tokens or minutes are used up, saving now and then."""
    began = time.monotonic() - run.trained_s
    saved = time.monotonic()
    logged, tokens, mean_loss = time.monotonic(), run.tokens, 0.0

    def done() -> float:
        spent = (time.monotonic() - began) / (60 * given.minutes)
        return max(spent, run.tokens / (1e6 * given.tokens))

    for group in stream(run, tokenizer, done, given):
        if done() >= 1:
            break
        loss = learn(run, crew, crew.begin(group), given.rate * share(done()))
        run.tokens += sum(b.tokens.size for b in group)
        mean_loss = loss if run.taken == 0 else mean_loss + 0.05 * (loss - mean_loss)
        run.taken += 1
        now = time.monotonic()
        run.trained_s = now - began
        if run.taken % 40 == 0:
            rate = (run.tokens - tokens) / (now - logged)
            logged, tokens = now, run.tokens
            print(
                f"{time.strftime('%H:%M:%S')} step {run.taken} shard {run.shard} done {done():.3f} "
                f"tokens {run.tokens / 1e6:.2f}M {rate:.0f}/s loss {mean_loss:.4f}",
                flush=True,
            )
        if now - saved > SAVE_EVERY_S:
            save(run, path)
            saved = now
    save(run, path)


def main() -> None:
    """Make a run, or take one up again, and train it to its end."""
    parser = argparse.ArgumentParser(description="Train the tiny model.")
    parser.add_argument(
        "--tokenizer", type=Path, default=Path(__file__).resolve().parents[2] / "conf" / "tiny"
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=180.0)
    parser.add_argument("--tokens", type=float, default=8.0, help="millions")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", type=Path, help="an exported model to take up again")
    parser.add_argument("--rate", type=float, default=1.0, help="share of the full rates")
    parser.add_argument(
        "--teacher", type=Path, help="an exported model whose other skills are to be kept"
    )
    parser.add_argument("--per-step", type=int, default=PER_STEP, help="small batches a step")
    parser.add_argument(
        "--shard", type=int, default=AGAIN_FROM, help="the first lessons of a model taken up again"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    tokenizer = Tokenizer.from_file(str(given.tokenizer / "tokenizer.json"))
    model = Qwen3(Shape(vocab=tokenizer.get_vocab_size()))
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = Run(model, mean, Optimiser(model, 0.02, 0.003))
    if given.again is not None:
        run = taken_up(run, given.again, given.shard)
    run = resumed(run, given.checkpoint)
    shared = {name: p.data.share_memory_() for name, p in model.named_parameters()}
    before = exported(given.teacher) if given.teacher is not None else None
    crew = Crew(model.s, shared, given.workers, before)
    again = given.again is not None
    may_use = Given(given.minutes, given.tokens, again, given.rate, given.per_step)
    train(run, crew, tokenizer, given.checkpoint, may_use)
    crew.dismiss()


if __name__ == "__main__":
    main()
