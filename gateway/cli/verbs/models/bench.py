"""Talks to the node's API with many concurrent requests: `shoal bench`.

Every answer is greedy and has the requested length, or the model's maximum (`ignore_eos`). Every
prompt is new to the node, so that the prefix cache does not flatter the figures. Warm-up rounds do
not count. A failed request (a full queue, an interrupt) costs only its own answer. The other
figures are shown, and the exit code says that some are missing.
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
from gateway.cli.verbs.models.bench_math import Run, TimedAnswer, summary

WORDS = ("shoal", "reef", "tide", "current", "school", "silver", "kelp", "drift", "salt", "wave")


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What to measure: concurrent requests and tokens per answer. `name` is unique and begins each
    prompt."""

    model: str
    concurrency: int
    tokens: int
    prompt_words: int
    name: str

    def prompt(self, number: int) -> str:
        """Return prompt number `number`. It differs from every other prompt from its first words
        on."""
        chosen = [
            WORDS[(number * 7 + n * (number + 3)) % len(WORDS)] for n in range(self.prompt_words)
        ]
        return f"{self.name}, {number}: tell a story with these words: {' '.join(chosen)}"


@dataclass(slots=True)
class Rounds:
    """The answers of the measured rounds, and the failed requests of all rounds, warm-up
    included."""

    runs: list[Run] = field(default_factory=list[Run])
    problems: list[CliError] = field(default_factory=list[CliError])
    interrupted: bool = False

    def problem(self) -> CliError | None:
        """Return the error for the missing answers; None if none is missing."""
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
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=256, help="Requests at the same time.")
    ] = 1,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Measured rounds.")] = 3,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Warm-up rounds.")] = 1,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens per answer.")] = 256,
    prompt_words: Annotated[
        int, typer.Option("--prompt-words", min=1, help="Words per prompt.")
    ] = 64,
    save: Annotated[Path | None, typer.Option("--save", help="Write JSON to this file.")] = None,
) -> None:
    """Measure tokens per second, time to first token and gaps between tokens."""
    api, output = invocation.api(), invocation.output
    name = model or invocation.settings().default_model
    settings = BenchSettings(name, concurrency, tokens, prompt_words, secrets.token_hex(4))
    rounds = measure(api, output, settings, warmup, runs)
    report: dict[str, Any] = {
        "model": name,
        "url": api.url,
        "at_s": round(wall(), 3),
        "concurrency": concurrency,
        "tokens_asked": tokens,
        "warmup": warmup,
        "missing": len(rounds.problems),
        **summary(rounds.runs),
        "memory": _memory(api, name),
        "links": probe_links(api, name) if not rounds.problem() else {},
    }
    problem = rounds.problem()
    if rounds.runs:
        if problem is not None:
            report["problem"] = {"message": problem.message, "code": problem.code}
        if save is not None:
            _save(save, report)
        output.document(report)
        _show(output, report)
    if problem is not None:
        if not (output.as_json and rounds.runs):
            output.error(problem)
        raise typer.Exit(problem.code)


def measure(
    api: NodeApi, output: Output, settings: BenchSettings, warmup: int, runs: int
) -> Rounds:
    """Run all rounds in order. Stops early after an interrupt, or if a round has no answer."""
    rounds = Rounds()
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
                answers, problems = run_round(api, settings, number)
            except KeyboardInterrupt:
                rounds.interrupted = True
                return rounds
            rounds.problems += problems
            if not answers:
                return rounds
            if number >= warmup:
                rounds.runs.append(Run(answers))
            progress.update(bar, advance=1, description="runs")
    return rounds


def run_round(
    api: NodeApi, settings: BenchSettings, number: int
) -> tuple[tuple[TimedAnswer, ...], list[CliError]]:
    """Send all prompts of a round at the same time. Return the answers and the failures."""
    answers: list[TimedAnswer] = []
    problems: list[CliError] = []
    start = threading.Barrier(settings.concurrency)

    def ask(position: int) -> None:
        prompt = settings.prompt(number * settings.concurrency + position)
        start.wait()
        try:
            answers.append(time_answer(api, settings.model, prompt, settings.tokens))
        except CliError as problem:
            problems.append(problem)

    # after an interrupt the daemon threads end with the process, and their requests with them
    threads = [
        threading.Thread(target=ask, args=(n,), daemon=True) for n in range(settings.concurrency)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(answers), problems


def time_answer(api: NodeApi, model: str, prompt: str, tokens: int) -> TimedAnswer:
    """Request one streamed answer of `tokens` tokens and time it. Raises CliError."""
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
    return TimedAnswer(
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


def _show(output: Output, report: dict[str, Any]) -> None:
    output.table(("", ">mean", ">std", ">p50", ">p95", ">p99"), _rows(report))
    least, most, wanted = report["tokens_least"], report["tokens_most"], report["tokens_asked"]
    each = f"{least}" if least == most else f"{least} to {most}"
    short = (
        "" if least == wanted else f" (requested: {wanted}; the model's limits end answers earlier)"
    )
    answers = "1 answer" if report["answers"] == 1 else f"{report['answers']} answers"
    peaks = ", ".join(size(peak["peak_bytes"]) for peak in report["memory"].get("peaks", ()))
    output.say(
        f"\n{answers} of {each} tokens{short}, {report['concurrency']} at once"
        + (f"; peak memory of each rank {peaks}" if peaks else "")
    )
    output.say(f"{report['prompt_tokens']} prompt tokens, {report['cached_tokens']} of them cached")
    for line in link_lines(report["links"]):
        output.say(line)


def _memory(api: NodeApi, model: str) -> dict[str, Any]:
    """Return the memory that all ranks use now, and the peak of each rank. Ranks reach their peaks
    at different times, so the sum of the peaks is never in use."""
    state = api.state_if_it_answers(5.0)
    readings = [runner for runner in state.runners if runner.model == model] if state else []
    if not readings:
        return {}
    return {
        "active_bytes": sum(reading.active_bytes for reading in readings),
        "peaks": [
            {
                "node": reading.node,
                "instance": reading.instance,
                "rank": reading.rank,
                "peak_bytes": reading.peak_bytes,
            }
            for reading in sorted(readings, key=lambda reading: (reading.instance, reading.rank))
        ],
    }


def _save(path: Path, report: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error


def _rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for key in ("aggregate_tokens_per_s", "decode_tokens_per_s", "prefill_tokens_per_s", "wall_s"):
        numbers = report[key]
        words = key.replace("_per_s", "/s").replace("_s", " (s)").replace("_", " ")
        rows.append((words, f"{numbers['mean']:.1f}", f"{numbers['std']:.1f}", "", "", ""))
    for key, words in (("ttft_ms", "TTFT (ms)"), ("itl_ms", "ITL (ms)")):
        numbers = report[key]
        ranks = [f"{numbers[rank]:.1f}" for rank in ("p50", "p95", "p99")]
        rows.append((words, f"{numbers['mean']:.1f}", f"{numbers['std']:.1f}", *ranks))
    return rows
