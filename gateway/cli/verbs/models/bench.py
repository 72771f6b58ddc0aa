"""Talks to the node's API, many requests at once: `shoal bench`.

Every answer is greedy, of the same length (`ignore_eos`), and from a prompt of its own, so that the
prefix cache does not flatter the figures. Warm-up rounds are not counted.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bus.process.clock import wall
from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import size
from gateway.cli.output.errors import CliError
from gateway.cli.verbs.models.bench_links import link_lines, probe_links
from gateway.cli.verbs.models.bench_math import Answered, Run, summary

WORDS = ("shoal", "reef", "tide", "current", "school", "silver", "kelp", "drift", "salt", "wave")


def bench(
    invocation: Invocation,
    model: Annotated[str | None, typer.Argument(help="A model; the default one without.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=256)] = 1,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Rounds that count.")] = 3,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Rounds before.")] = 1,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens of each answer.")] = 256,
    prompt_words: Annotated[int, typer.Option("--prompt-words", min=1)] = 64,
    save: Annotated[Path | None, typer.Option("--save", help="Write the JSON there.")] = None,
) -> None:
    """Measure tokens per second, time to first token and gaps between tokens."""
    api, output = invocation.api(), invocation.output
    name = model or invocation.settings().default_model
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    measured: list[Run] = []
    with Progress(
        *columns, console=output.err, transient=True, disable=not output.live
    ) as progress:
        bar = progress.add_task("warm-up" if warmup else "runs", total=warmup + runs)
        for number in range(warmup + runs):
            prompts = [_prompt(number * concurrency + n, prompt_words) for n in range(concurrency)]
            done = one_round(api, name, prompts, tokens)
            if number >= warmup:
                measured.append(done)
            progress.update(bar, advance=1, description="runs")
    found: dict[str, Any] = {
        "model": name,
        "url": api.url,
        "at_s": round(wall(), 3),
        "tokens_each": tokens,
        "warmup": warmup,
        **summary(measured),
        "memory": _memory(api, name),
        "links": probe_links(api, name),
    }
    if save is not None:
        _save(save, found)
    output.document(found)
    output.table(("", ">mean", ">std", ">p50", ">p95", ">p99"), _rows(found))
    peak = found["memory"].get("peak_bytes")
    answers = len(measured) * concurrency
    output.say(
        f"\n{answers} answers of {tokens} tokens, {concurrency} at once"
        + (f"; peak memory of the runner {size(peak)}" if peak else "")
    )
    for line in link_lines(found["links"]):
        output.say(line)


def one_round(api: NodeApi, model: str, prompts: list[str], tokens: int) -> Run:
    """Ask all prompts at once. Raises the first CliError, once every request has ended."""
    found: list[Answered | None] = [None] * len(prompts)
    problems: list[CliError] = []
    start = threading.Barrier(len(prompts))

    def ask(position: int) -> None:
        """Ask the prompt at `position`, once all threads are ready."""
        start.wait()
        try:
            found[position] = ask_one(api, model, prompts[position], tokens)
        except CliError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return Run(tuple(answer for answer in found if answer is not None))


def ask_one(api: NodeApi, model: str, prompt: str, tokens: int) -> Answered:
    """Ask for one streamed answer of exactly `tokens` tokens, timed here."""
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
    return Answered(
        sent_at=sent_at,
        token_at=tuple(token_at),
        ended_at=ended_at,
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        tokens=int(usage.get("completion_tokens", 0)),
    )


def _spoke(choice: dict[str, Any]) -> bool:
    delta = cast(dict[str, Any], choice.get("delta") or {})
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


def _prompt(number: int, words: int) -> str:
    chosen = [WORDS[(number * 7 + n * (number + 3)) % len(WORDS)] for n in range(words)]
    return f"{number}: tell a story with these words: {' '.join(chosen)}"


def _memory(api: NodeApi, model: str) -> dict[str, int]:
    state = api.state()
    readings = [one for one in state.runners if one.model == model]
    if not readings:
        return {}
    return {
        "active_bytes": sum(one.active_bytes for one in readings),
        "peak_bytes": sum(one.peak_bytes for one in readings),
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
        rows.append((words, f"{numbers['mean']:.1f}", "", *ranks))
    return rows
