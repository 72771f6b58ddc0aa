"""Talks to the node's API, many requests at once: `shoal bench`.

Every answer is greedy, as long as was asked for or as the model's limit lets it (`ignore_eos`), and
from a prompt of its own, which no bench before has asked: the prefix cache would flatter the
figures. Warm-up rounds are not counted. What cannot be asked (a full queue, an interrupt) costs its
own answers; the figures of the others are told, and then the exit code says that some are missing.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bus.process.clock import wall
from gateway.cli.command import Invocation
from gateway.cli.exit_codes import INTERRUPTED
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.models.bench_links import link_lines, probe_links
from gateway.cli.verbs.models.bench_math import Answered, Run, summary

WORDS = ("shoal", "reef", "tide", "current", "school", "silver", "kelp", "drift", "salt", "wave")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a bench asks: so many answers at once, of so many tokens. `name` begins each prompt."""

    model: str
    concurrency: int
    tokens: int
    prompt_words: int
    name: str

    def prompt(self, number: int) -> str:
        """Return a prompt that differs from all others from its first words on."""
        chosen = [
            WORDS[(number * 7 + n * (number + 3)) % len(WORDS)] for n in range(self.prompt_words)
        ]
        return f"{self.name}, {number}: tell a story with these words: {' '.join(chosen)}"


@dataclass(slots=True)
class Rounds:
    """The rounds that count, and why answers are missing, of the warm-up too."""

    runs: list[Run] = field(default_factory=list[Run])
    problems: list[CliError] = field(default_factory=list[CliError])
    interrupted: bool = False

    def problem(self) -> CliError | None:
        """Return what to say of the missing answers, None where there are none."""
        if self.interrupted:
            return CliError("interrupted", code=INTERRUPTED)
        if not self.problems:
            return None
        first, count = self.problems[0], len(self.problems)
        more = f"{count} answers are missing; the first: " if count > 1 else ""
        return CliError(more + first.message, remedy=first.remedy, code=first.code)


def bench(
    invocation: Invocation,
    model: Annotated[
        str | None, typer.Argument(help="A model; default: the node's default model.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=256)] = 1,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Measured rounds.")] = 3,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Warm-up rounds.")] = 1,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens per answer.")] = 256,
    prompt_words: Annotated[int, typer.Option("--prompt-words", min=1)] = 64,
    save: Annotated[Path | None, typer.Option("--save", help="Write JSON to this file.")] = None,
) -> None:
    """Measure tokens per second, time to first token and gaps between tokens."""
    api, output = invocation.api(), invocation.output
    name = model or invocation.settings().default_model
    asked = Asked(name, concurrency, tokens, prompt_words, secrets.token_hex(4))
    found = measure(api, output, asked, warmup, runs)
    told: dict[str, Any] = {
        "model": name,
        "url": api.url,
        "at_s": round(wall(), 3),
        "concurrency": concurrency,
        "tokens_asked": tokens,
        "warmup": warmup,
        "missing": len(found.problems),
        **summary(found.runs),
        "memory": _memory(api, name),
        "links": probe_links(api, name) if not found.problem() else {},
    }
    problem = found.problem()
    if found.runs:
        if problem is not None:
            told["problem"] = {"message": problem.message, "code": problem.code}
        if save is not None:
            _save(save, told)
        output.document(told)
        _show(output, told)
    if problem is not None:
        if not (output.as_json and found.runs):
            output.error(problem)
        raise typer.Exit(problem.code)


def measure(api: NodeApi, output: Output, asked: Asked, warmup: int, runs: int) -> Rounds:
    """Ask round by round, until all are done, none of a round is answered, or an interrupt."""
    found = Rounds()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=output.err, transient=True, disable=not output.live
    ) as progress:
        bar = progress.add_task("warm-up" if warmup else "runs", total=warmup + runs)
        for number in range(warmup + runs):
            try:
                answers, problems = one_round(api, asked, number)
            except KeyboardInterrupt:
                found.interrupted = True
                return found
            found.problems += problems
            if not answers:
                return found
            if number >= warmup:
                found.runs.append(Run(answers))
            progress.update(bar, advance=1, description="runs")
    return found


def one_round(
    api: NodeApi, asked: Asked, number: int
) -> tuple[tuple[Answered, ...], list[CliError]]:
    """Ask all prompts of a round at once; return the answers, and why others are missing."""
    found: list[Answered] = []
    problems: list[CliError] = []
    start = threading.Barrier(asked.concurrency)

    def ask(position: int) -> None:
        """Ask the prompt at `position`, once all threads are ready."""
        prompt = asked.prompt(number * asked.concurrency + position)
        start.wait()
        try:
            found.append(ask_one(api, asked.model, prompt, asked.tokens))
        except CliError as problem:
            problems.append(problem)

    # An interrupt leaves the threads behind, and with the process their requests end.
    threads = [
        threading.Thread(target=ask, args=(n,), daemon=True) for n in range(asked.concurrency)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(found), problems


def ask_one(api: NodeApi, model: str, prompt: str, tokens: int) -> Answered:
    """Ask for one streamed answer of `tokens` tokens, timed here. Raises CliError."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    token_at: list[float] = []
    usage: dict[str, Any] = {}
    sent_at = time.perf_counter()
    with api.events("/v1/chat/completions", body) as events:
        for event in events:
            if any(_spoke(choice) for choice in event.get("choices", [])):
                token_at.append(time.perf_counter())
            usage = event.get("usage") or usage
    ended_at = token_at[-1] if token_at else time.perf_counter()
    details = cast(dict[str, Any], usage.get("prompt_tokens_details") or {})
    return Answered(
        sent_at=sent_at,
        token_at=tuple(token_at),
        ended_at=ended_at,
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        tokens=int(usage.get("completion_tokens", 0)),
        cached_tokens=int(details.get("cached_tokens", 0)),
    )


def _spoke(choice: dict[str, Any]) -> bool:
    delta = cast(dict[str, Any], choice.get("delta") or {})
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


def _show(output: Output, told: dict[str, Any]) -> None:
    output.table(("", ">mean", ">std", ">p50", ">p95", ">p99"), _rows(told))
    least, most, asked = told["tokens_least"], told["tokens_most"], told["tokens_asked"]
    each = f"{least}" if least == most else f"{least} to {most}"
    short = "" if least == asked else f" (requested: {asked}; the model's limits end it earlier)"
    answers = "1 answer" if told["answers"] == 1 else f"{told['answers']} answers"
    peaks = ", ".join(size(peak["peak_bytes"]) for peak in told["memory"].get("peaks", ()))
    output.say(
        f"\n{answers} of {each} tokens{short}, {told['concurrency']} at once"
        + (f"; peak memory of each rank {peaks}" if peaks else "")
    )
    output.say(f"{told['prompt_tokens']} prompt tokens, {told['cached_tokens']} of them cached")
    for line in link_lines(told["links"]):
        output.say(line)


def _memory(api: NodeApi, model: str) -> dict[str, Any]:
    """Return the bytes of all ranks now, and the most that each took: ranks have their peaks at
    different times, so that a sum would be more than was ever taken."""
    state = api.state_if_it_answers(5.0)
    readings = [runner for runner in state.runners if runner.model == model] if state else []
    if not readings:
        return {}
    return {
        "active_bytes": sum(reading.active_bytes for reading in readings),
        "peaks": [
            {
                "node": one.node,
                "instance": one.instance,
                "rank": one.rank,
                "peak_bytes": one.peak_bytes,
            }
            for one in sorted(readings, key=lambda one: (one.instance, one.rank))
        ],
    }


def _save(path: Path, found: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(found, indent=2) + "\n")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error


def _rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for key in ("aggregate_tokens_per_s", "decode_tokens_per_s", "prefill_tokens_per_s", "wall_s"):
        numbers = found[key]
        words = key.replace("_per_s", "/s").replace("_s", " (s)").replace("_", " ")
        rows.append((words, f"{numbers['mean']:.1f}", f"{numbers['std']:.1f}", "", "", ""))
    for key, words in (("ttft_ms", "TTFT (ms)"), ("itl_ms", "ITL (ms)")):
        numbers = found[key]
        ranks = [f"{numbers[rank]:.1f}" for rank in ("p50", "p95", "p99")]
        rows.append((words, f"{numbers['mean']:.1f}", f"{numbers['std']:.1f}", *ranks))
    return rows
