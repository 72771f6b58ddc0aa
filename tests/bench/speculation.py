# pyright: reportPrivateUsage=false
# (replaces the token source inside an engine)
"""Rows with and without drafts, in one run, interleaved. Run by hand:

    LD_PRELOAD=.../libopenblas.so.0 OPENBLAS_NUM_THREADS=1 \\
        python -m tests.bench.speculation [--rounds 3] [--tokens 256] \\
            [--skip widths,reading,replay,streams,free,draft] [--streams 4,16] [--kinds edit] \\
            [--family qwen3_next]

The speed of a text is shown on a *replay target*: a random model of 32 M parameters computes every
step in full, and its tokens are then replaced by those of a recorded text. So a text of any kind
runs at the speed of a real model. The texts are source of an installed package with a seeded edit
(every seventh line renamed or dropped), JSON of this repository's recorded answers, and its docs.
Free text is also sampled from the bundled model itself.

A draft model is shown on the replay target as well: the bundled model guesses a text that it wrote
itself, so that all guesses are right, and the docs, of which it knows little.

With `--family` there is only one stream of a model of a family whose KV cannot be cut, and the cost
of wrong guesses.

It first prints what the design needs: the cost of verifying W columns in one forward, and what it
costs to read each step before the next is planned, at 1, 4 and 16 rows.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
from tokenizers import Tokenizer

from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import (
    GenerationRequest,
    Sampling,
    Speculate,
    TokensPrompt,
    sum_drafters,
)
from bus.wire.proposals import sum_proposals
from runner.engine import PrefillChunk, RowId, RowSpec, StepPlan
from runner.mlx.engine import MlxEngine, load_engine
from runner.mlx.sampling import Drawn, DrawnRows
from runner.schedule import RowFinished, RowKey, RowToken, Scheduler, ScheduleSettings
from runner.schedule.drafting import LONGEST_DRAFT, NO_DRAFTS, DraftCounts
from runner.text import PreparedChoice, PreparedRequest
from tests.bench.models import ROOT, STATES, TINY, endless_tiny, random_qwen3, random_states

PROMPT_TOKENS = 320
SEED = 20261130
GREEDY = Sampling(temperature=0.0)
_names = itertools.count(1)


class Replay:
    """A token source whose rows say recorded texts, after it drew as usual. `texts`: what a row
    says after its prompt."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.texts: dict[tuple[int, ...], list[int]] = {}

    def draw(self, rows: Any, out: mx.array, pending: Any) -> Drawn:
        return self._replayed(rows, self._source.draw(rows, out, pending))

    def draw_again(self, rows: Any, out: mx.array, pending: Any) -> Drawn:
        return self._replayed(rows, self._source.draw_again(rows, out, pending))

    def draw_drafted(self, drafts: Any, logits: mx.array, pending: Any) -> list[DrawnRows]:
        first = {draft.row.name: (draft.row, draft.row.draw.position) for draft in drafts}
        drawn_rows = self._source.draw_drafted(drafts, logits, pending)
        tokens: list[int] = []
        for drawn in drawn_rows:
            row, position = first[drawn.rows[0][1]]
            tokens += [self._token(row, position + at) for at in range(len(drawn.rows))]
        (shared,) = {id(drawn.drawn): drawn.drawn for drawn in drawn_rows}.values()
        put = self._put(shared, tokens)
        return [replace(drawn, drawn=put) for drawn in drawn_rows]

    def write_back(self) -> None:
        self._source.write_back()

    def _replayed(self, rows: Any, drawn: Drawn) -> Drawn:
        tokens = [self._token(row, row.draw.position - 1) if row else 0 for row in rows]
        return self._put(drawn, tokens)

    def _token(self, row: Any, position: int) -> int:
        text = self.texts[row.spec.tokens]
        return text[(position - len(row.spec.tokens)) % len(text)]

    def _put(self, drawn: Drawn, tokens: Sequence[int]) -> Drawn:
        return replace(drawn, tokens=drawn.tokens * 0 + mx.array(list(tokens), mx.int32))


def replayed(engine: MlxEngine) -> Replay:
    """Make the engine replay."""
    forward = engine._forward
    batch = forward._microbatches[0]
    replay = Replay(batch._source)
    batch._source = replay  # pyright: ignore[reportAttributeAccessIssue]
    forward.prompts._source = replay  # pyright: ignore[reportAttributeAccessIssue]
    return replay


Outcome = tuple[float, float, list[list[int]], DraftCounts]
"""Tokens per second, and per second of processor time, after every row has its first token; the
tokens; the drafts."""


def submitted(
    scheduler: Scheduler, prompt: Sequence[int], count: int, sampling: Sampling, **parts: Any
) -> RowKey:
    request = GenerationRequest(
        request_id=RequestId(f"r{next(_names)}"),
        model=ModelId("bench"),
        prompt=TokensPrompt(token_ids=tuple(prompt)),
        sampling=sampling,
    )
    prepared = PreparedRequest(
        request,
        tuple(map(TokenId, prompt)),
        count,
        frozenset(),
        (PreparedChoice(0, 7),),
        is_kept=False,
        **parts,
    )
    scheduler.submit(prepared, seeds=[7], now=time.monotonic())
    return RowKey(request.request_id, 0)


def served(
    engine: MlxEngine,
    scheduler: Scheduler,
    prompts: Sequence[Sequence[int]],
    counts: Sequence[int],
    sampling: Sampling = GREEDY,
    **parts: Any,
) -> Outcome:
    """Run requests as a lead runner does. Rows wait until every prompt is computed, so that all
    decode together."""
    made: dict[RowKey, list[int]] = {
        submitted(scheduler, prompt, count, sampling, **parts): []
        for prompt, count in zip(prompts, counts, strict=True)
    }
    total = DraftCounts()
    began_at, last_at, used_s, before = 0.0, 0.0, 0.0, 0
    while True:
        plan, _ = scheduler.plan(time.monotonic())
        unread = scheduler.unread
        if plan is not None:
            engine.issue(plan)
        if unread == 2 or (unread and plan is None):
            result = engine.read()
            last_at = time.monotonic()
            for event in scheduler.commit(result, last_at):
                if isinstance(event, RowToken):
                    made[event.key].append(event.sampled.token)
                    if not began_at:
                        scheduler.pause(event.key, last_at)
                elif isinstance(event, RowFinished):
                    total = plus(total, event.cost.drafts)
            if not began_at and all(made.values()):
                for key in made:
                    scheduler.resume(key)
                began_at, used_s = last_at, time.process_time()
                before = sum(map(len, made.values()))
        elif plan is None:
            after, used_s = sum(map(len, made.values())) - before, time.process_time() - used_s
            return after / (last_at - began_at), after / used_s, list(made.values()), total


def plus(counts: DraftCounts, more: DraftCounts) -> DraftCounts:
    return DraftCounts(
        sum_drafters((counts.drafters, more.drafters)),
        proposals=sum_proposals((counts.proposals, more.proposals)),
    )


def contest(
    name: str, rounds: int, run: Callable[[bool], Outcome], *, warm_up: bool = True
) -> None:
    """Print one line: with and without drafts, in turn."""
    speeds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    texts: dict[bool, list[list[int]]] = {}
    counts = NO_DRAFTS
    for drafts in (False, True) if warm_up else ():
        run(drafts)
    for number in range(rounds):
        for drafts in (False, True) if number % 2 else (True, False):
            *speed, texts[drafts], seen = run(drafts)
            speeds[drafts].append((speed[0], speed[1]))
            counts = seen if drafts else counts
    pairs = list(zip(speeds[True], speeds[False], strict=True))
    wall = [one[0] / other[0] for one, other in pairs]
    used = [one[1] / other[1] for one, other in pairs]
    share = counts.accepted / counts.drafted if counts.drafted else 0.0
    sys.stdout.write(
        f"{name:26} {statistics.median(one[0] for one in speeds[False]):7.1f} -> "
        f"{statistics.median(one[0] for one in speeds[True]):7.1f} tok/s, ratio "
        f"{statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f}), by processor time "
        f"{statistics.median(used):.2f} ({min(used):.2f} to {max(used):.2f}); {counts.drafts} "
        f"drafts, {counts.drafted} tokens, accepted {share:.0%}{_costs(counts)}; same text "
        f"{texts[True] == texts[False]}\n"
    )
    sys.stdout.flush()


def _costs(counts: DraftCounts) -> str:
    """The passes and the peak memory of drafters with a network."""
    costs = counts.proposals.values()
    return "".join(f", {passes} passes, peak {peak >> 10} KiB" for passes, peak in costs)


def schedulers(engine: MlxEngine, drafter: Speculate = "ngram") -> dict[bool, Scheduler]:
    return {
        on: Scheduler(engine.facts, ScheduleSettings(speculate=drafter if on else "off"))
        for on in (False, True)
    }


def edited(text: str, chance: random.Random) -> str:
    """The text with every seventh line changed: dropped, or with a word renamed."""
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(keepends=True)):
        if number % 7 == 3:
            if chance.random() < 0.3:
                continue
            words = line.split(" ")
            at = chance.randrange(len(words))
            words[at] = words[at] + "_renamed"
            line = " ".join(words)
        lines.append(line)
    return "".join(lines)


def replay_texts(
    encode: Callable[[str], list[int]], tokens: int, stream: int = 0
) -> dict[str, tuple[list[int], list[int]]]:
    """Prompt and answer of each kind, as token ids; others for each stream."""
    chance = random.Random(SEED + stream)
    source = inspect.getsource(sys.modules["httpx._client"])
    at = chance.randrange(len(source) // 2)
    code = source[source.index("\n", at) + 1 :][:6000]
    docs = (ROOT / "docs" / "design.md").read_text()
    prose = docs[docs.index("\n", len(docs) // 3 + 400 * stream) :]
    pages = (ROOT / "tests" / "recorded" / "data" / "pages.json").read_text()
    pages = pages[20_000 + 1_500 * stream :][:40_000]
    copied = encode(code)[: PROMPT_TOKENS + 200]
    return {
        "copy": (copied, copied[:tokens]),
        "edit": (copied, encode(edited(code, chance))[:tokens]),
        "JSON": (encode(pages)[:PROMPT_TOKENS], encode(pages)[PROMPT_TOKENS:][:tokens]),
        "prose": (encode(prose)[:PROMPT_TOKENS], encode(prose)[PROMPT_TOKENS:][:tokens]),
        "random": (
            [chance.randrange(300, 2000) for _ in range(PROMPT_TOKENS)],
            [chance.randrange(300, 2000) for _ in range(tokens)],
        ),
    }


def print_widths(engine: MlxEngine, name: str, rounds: int) -> None:
    """The cost of verifying W columns against plain steps, which are one ahead."""
    step = itertools.count(1)
    seconds: dict[int, list[float]] = {}
    for _ in range(rounds):
        row = RowId(next(_names))
        prompt = tuple(TokenId(3 + at % 200) for at in range(PROMPT_TOKENS))
        spec = RowSpec(row, prompt, Sampling(temperature=0.0), 1)
        chunk = PrefillChunk(row, 0, len(prompt))
        engine.issue(StepPlan(next(step), admit=(spec,), prefill=((chunk,),)))
        engine.read()
        for _ in range(20):
            engine.issue(StepPlan(next(step), decode=(row,)))
            engine.read()
        engine.issue(StepPlan(next(step), decode=(row,)))
        began = time.perf_counter()
        for _ in range(30):
            engine.issue(StepPlan(next(step), decode=(row,)))
            engine.read()
        seconds.setdefault(1, []).append((time.perf_counter() - began) / 30)
        engine.read()
        for width in (2, 3, 5, 9, 17, 1 + LONGEST_DRAFT):
            draft = tuple(TokenId(5 + at) for at in range(width - 1))
            began = time.perf_counter()
            for _ in range(6):
                engine.issue(StepPlan(next(step), decode=(row,), drafts=((row, draft),)))
                engine.read()
            seconds.setdefault(width, []).append((time.perf_counter() - began) / 6)
        engine.issue(StepPlan(next(step), release=(row,)))
        engine.read()
    plain = statistics.median(seconds[1])
    costs = ", ".join(
        f"{width}: {statistics.median(times) / plain:.2f}" for width, times in seconds.items()
    )
    sys.stdout.write(f"{name} cost by width, of {plain * 1e3:.2f} ms: {costs}\n")


def print_reading(engine: MlxEngine, name: str, rounds: int) -> None:
    """What a step costs that is read before the next one is planned."""
    step = itertools.count(1)
    for rows in (1, 4, 16):
        names = tuple(RowId(next(_names)) for _ in range(rows))
        prompt = tuple(TokenId(3 + at % 200) for at in range(64))
        specs = tuple(RowSpec(row, prompt, Sampling(temperature=0.0), 1) for row in names)
        chunks = tuple((PrefillChunk(row, 0, len(prompt)),) for row in names)
        engine.issue(StepPlan(next(step), admit=specs, prefill=chunks))
        engine.read()
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(2 * rounds):
            for ahead in (True, False):
                if ahead:
                    engine.issue(StepPlan(next(step), decode=names))
                began = time.perf_counter()
                for _ in range(12):
                    engine.issue(StepPlan(next(step), decode=names))
                    engine.read()
                times[ahead].append((time.perf_counter() - began) / 12)
                if ahead:
                    engine.read()
        engine.issue(StepPlan(next(step), release=names))
        engine.read()
        ahead_s, read_s = statistics.median(times[True]), statistics.median(times[False])
        sys.stdout.write(
            f"{name} {rows:2} rows: {ahead_s * 1e3:.2f} ms ahead, {read_s * 1e3:.2f} ms if each "
            f"step is read first: {read_s / ahead_s:.2f} x\n"
        )
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--skip", default="")
    parser.add_argument("--streams", default="4,16")
    parser.add_argument("--kinds", default="copy,edit,JSON,prose,random,all")
    parser.add_argument("--family", choices=list(STATES))
    chosen = parser.parse_args()
    skip = set(chosen.skip.split(","))
    assert httpx.__version__
    encode_file = Tokenizer.from_file(str(TINY / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return encode_file.encode(text, add_special_tokens=False).ids

    with tempfile.TemporaryDirectory() as folder:
        if chosen.family is not None:
            of_family(chosen.family, Path(folder), encode, chosen.rounds, chosen.tokens)
            return
        for name, make in (("32 M", random_qwen3), ("bundled", endless_tiny)):
            path = Path(folder) / make.__name__
            path.mkdir()
            engine = load_engine(make(path), memory_limit_bytes=8 << 30, drafts=True)
            if "widths" not in skip:
                print_widths(engine, name, chosen.rounds)
            if "reading" not in skip:
                print_reading(engine, name, chosen.rounds)
            if name == "bundled":
                if "free" not in skip:
                    free(engine, encode, chosen.rounds, chosen.tokens)
            else:
                costs = engine.facts.shared_draft_costs
                sys.stdout.write(f"{name} cost by rows and width, at load: {costs}\n")
                replay = replayed(engine)
                if "replay" not in skip:
                    replays(engine, replay, encode, chosen.rounds, chosen.tokens)
                if "streams" not in skip:
                    for count in map(int, chosen.streams.split(",")):
                        of_streams = [
                            replay_texts(encode, chosen.tokens, stream) for stream in range(count)
                        ]
                        for kind in chosen.kinds.split(","):
                            streams(engine, replay, kind, of_streams, chosen.rounds)
            engine.close()
        if "draft" not in skip:
            large, small = (Path(folder) / make.__name__ for make in (random_qwen3, endless_tiny))
            by_model(large, small, encode, chosen.rounds, chosen.tokens)


def of_family(
    family: str, folder: Path, encode: Callable[[str], list[int]], rounds: int, tokens: int
) -> None:
    """One stream of a model whose KV cannot be cut."""
    path = random_states(folder / family, family)
    engine = load_engine(path, memory_limit_bytes=8 << 30, drafts=True)
    exact = engine.facts.extra["drafts_exactly"]
    sys.stdout.write(f"{family}: wide steps have the bits of plain ones: {exact}\n")
    print_widths(engine, family, rounds)
    print_misses(engine, family, rounds)
    replays(engine, replayed(engine), encode, rounds, tokens, family)
    engine.close()


def print_misses(engine: MlxEngine, name: str, rounds: int) -> None:
    """The processor time of a step whose draft is wrong from some guess on, and of the plain step
    after it, which computes the right tokens again; in plain steps."""
    step, row = itertools.count(1), RowId(next(_names))
    prompt = tuple(TokenId(3 + at % 200) for at in range(PROMPT_TOKENS))
    text = served(engine, schedulers(engine)[False], [prompt], [400])[2][0]
    spec = RowSpec(row, prompt, GREEDY, 1)
    chunk = PrefillChunk(row, 0, len(prompt))
    engine.issue(StepPlan(next(step), admit=(spec,), prefill=((chunk,),)))
    made = len(engine.read().tokens)

    def timed(draft: Sequence[int] = ()) -> float:
        """Run a step, with a draft or without; return its seconds."""
        nonlocal made
        drafts = ((row, tuple(map(TokenId, draft))),) if draft else ()
        began = time.process_time()
        engine.issue(StepPlan(next(step), decode=(row,), drafts=drafts))
        made += len(engine.read().tokens)
        return time.process_time() - began

    seconds: dict[tuple[int, int], list[tuple[float, float]]] = {}
    plain: list[float] = []
    for _ in range(4 * rounds):
        plain += [timed() for _ in range(3)]
        for length, right in ((1, 0), (4, 0), (4, 2), (8, 0), (8, 4)):
            draft = [*text[made : made + right], *[2047] * (length - right)]
            seconds.setdefault((length, right), []).append((timed(draft), timed()))
    engine.issue(StepPlan(next(step), release=(row,)))
    engine.read()
    one = statistics.median(plain)
    for (length, right), pairs in seconds.items():
        drafted, after = (statistics.median(times) / one for times in zip(*pairs, strict=True))
        sys.stdout.write(
            f"{name}: {right} of {length} guesses right: the step takes {drafted:.2f} plain steps "
            f"and the next one {after:.2f}, for {right + 2} tokens\n"
        )


def by_model(
    large: Path,
    small: Path,
    encode: Callable[[str], list[int]],
    rounds: int,
    tokens: int,
) -> None:
    """The model in `large` with the draft model in `small`."""
    prompt = encode("Tell me a story about a river and a town. ") * 3
    writer = load_engine(small, memory_limit_bytes=8 << 30)
    written = served(writer, schedulers(writer)[False], [prompt], [tokens], GREEDY)[2][0]
    writer.close()
    engine = load_engine(large, memory_limit_bytes=8 << 30, drafts=True, draft_path=small)
    cost = engine.facts.draft_token_cost
    sys.stdout.write(f"32 M, a guess of the bundled model: {cost:.3f} steps\n")
    texts = {"its own text": (prompt, written), "prose": replay_texts(encode, tokens)["prose"]}
    replay = replayed(engine)
    for name, (prompt, answer) in texts.items():
        replay.texts = {tuple(prompt): answer}
        planned = schedulers(engine, "draft_model")
        contest(
            f"32 M, draft model, {name}",
            rounds,
            lambda on, planned=planned, prompt=prompt, answer=answer: served(
                engine, planned[on], [prompt], [len(answer)]
            ),
        )
    engine.close()


def replays(
    engine: MlxEngine,
    replay: Replay,
    encode: Callable[[str], list[int]],
    rounds: int,
    tokens: int,
    name: str = "32 M",
) -> None:
    for kind, (prompt, answer) in replay_texts(encode, tokens).items():
        replay.texts = {tuple(prompt): answer}
        planned = schedulers(engine)
        contest(
            f"{name}, {kind}",
            rounds,
            lambda on, planned=planned, prompt=prompt, answer=answer: served(
                engine, planned[on], [prompt], [len(answer)]
            ),
        )
        if kind == "edit":
            planned = schedulers(engine)
            guess = tuple(map(TokenId, prompt[: len(answer)]))
            short = [prompt[0], *range(300, 340)]
            replay.texts = {tuple(short): answer}
            contest(
                f"{name}, edit by prediction",
                rounds,
                lambda on, planned=planned, short=short, answer=answer, guess=guess: served(
                    engine, planned[on], [short], [len(answer)], prediction_tokens=guess
                ),
            )


def streams(
    engine: MlxEngine,
    replay: Replay,
    kind: str,
    of_streams: Sequence[dict[str, tuple[list[int], list[int]]]],
    rounds: int,
) -> None:
    """Several streams at once, of one kind, or of "all" kinds in turn."""
    kinds = list(of_streams[0])
    pairs = [
        texts[kinds[at % len(kinds)] if kind == "all" else kind]
        for at, texts in enumerate(of_streams)
    ]
    # Equal prompts would get one text.
    prompts = [[300 + at, *prompt] for at, (prompt, _) in enumerate(pairs)]
    answers = [answer for _, answer in pairs]
    replay.texts = {tuple(prompt): answer for prompt, answer in zip(prompts, answers, strict=True)}
    planned = schedulers(engine)
    contest(
        f"32 M, {len(pairs):2} x {kind}",
        rounds,
        lambda on: served(engine, planned[on], prompts, list(map(len, answers))),
        warm_up=False,
    )


def free(engine: MlxEngine, encode: Callable[[str], list[int]], rounds: int, tokens: int) -> None:
    prompt = encode("Tell me a story about a river and a town. ") * 3
    for name, temperature in (("bundled, greedy", 0.0), ("bundled, sampled", 1.0)):
        planned, sampling = schedulers(engine), Sampling(temperature=temperature)
        contest(
            name,
            rounds,
            lambda on, planned=planned, sampling=sampling: served(
                engine, planned[on], [prompt], [tokens], sampling
            ),
        )


if __name__ == "__main__":
    main()
