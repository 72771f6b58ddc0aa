"""Talks to an OpenAI-compatible server: how often the tiny model is right, skill by skill.

Prompts are held out from training. Greedy unless told otherwise; one table at the end,
its rows in the order of the skills, and a few wrong answers when asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any
from urllib.request import Request, urlopen

from tests.tiny_model.dice import Dice
from tests.tiny_model.judge import request, right
from tests.tiny_model.sample import Sample, answer, user
from tests.tiny_model.skills.sums import BY_HEART, large, plainly
from tests.tiny_model.text import SKILLS, evaluation

WAIT_S = 120.0
AT_ONCE = 8
Wrong = tuple[Sample, Mapping[str, Any]]


@dataclass
class Tally:
    """One row of the table."""

    skill: str
    asked: int = 0
    good: int = 0
    wrong: list[Wrong] = field(default_factory=list[Wrong])


def say(line: str) -> None:
    """A line for whoever runs the evaluation."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def ask(url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The server's message for one request."""
    sent = Request(
        f"{url.rstrip('/')}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(sent, timeout=WAIT_S) as got:
        found: dict[str, Any] = json.load(got)
    message: dict[str, Any] = found["choices"][0]["message"]
    return message


def measured(
    url: str, model: str, skill: str, count: int, thinking: bool, temperature: float
) -> Tally:
    """One skill's row."""
    tally = Tally(skill + (" (thinking)" if thinking else ""))
    samples = list(islice(evaluation(skill, thinking=thinking), count))
    return answered(url, model, tally, samples, temperature)


def answered(
    url: str, model: str, tally: Tally, samples: Sequence[Sample], temperature: float = 0.0
) -> Tally:
    """The row with the answers to its samples counted."""
    bodies = [request(sample, model, temperature) for sample in samples]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(partial(ask, url), bodies))
    for sample, said in zip(samples, answers, strict=True):
        tally.asked += 1
        if right(sample, said):
            tally.good += 1
        else:
            tally.wrong.append((sample, said))
    return tally


def counted(url: str, model: str) -> Tally:
    """The integers from 1 to 30, twenty times at temperature 0.2."""
    tally = Tally("1 to 30, temperature 0.2")
    said = answer(", ".join(str(n) for n in range(1, 31)))
    sample = Sample("counting", (user("List the integers from 1 to 30"), said))
    for seed in range(20):
        body = request(sample, model, 0.2, 400) | {"seed": seed}
        got = ask(url, body)
        tally.asked += 1
        tally.good += right(sample, got)
    return tally


def sums(url: str, model: str) -> list[Tally]:
    """Every sum that is to be known by heart, and some that are to be declined."""
    known = [plainly(*each) for each in BY_HEART]
    dice = Dice(5)
    beyond = [plainly(*large(dice)) for _ in range(300)]
    return [
        answered(url, model, Tally("sums by heart"), known),
        answered(url, model, Tally("sums beyond"), beyond),
    ]


def show(tally: Tally, most: int) -> None:
    """Some of the wrong answers, for whoever improves the lessons."""
    for sample, said in tally.wrong[:most]:
        asked = str(sample.messages[-2]["content"])[-160:]
        say(f"    asked  {asked!r}")
        say(f"    wanted {str(dict(sample.messages[-1]))[:300]}")
        say(f"    got    {str(dict(said))[:300]}")


def main() -> None:
    """Read the command line, ask, print the table."""
    parser = argparse.ArgumentParser(description="Exact-match rates of the tiny model per skill.")
    parser.add_argument("--url", default="http://127.0.0.1:52415")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--skill", choices=sorted(SKILLS), action="append")
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong answers a skill")
    given = parser.parse_args()
    rows: list[Tally] = []
    for thinking in (False, True):
        for skill in given.skill or list(SKILLS):
            count = given.count if not thinking else max(1, given.count // 4)
            tally = measured(given.url, given.model, skill, count, thinking, given.temperature)
            say(f"{tally.skill}: {tally.good} of {tally.asked}")
            show(tally, given.wrong)
            rows.append(tally)
    rows.append(counted(given.url, given.model))
    for tally in sums(given.url, given.model) if "arithmetic" in (given.skill or SKILLS) else ():
        show(tally, given.wrong)
        rows.append(tally)
    say("\n| skill | right | of | rate |\n| --- | ---: | ---: | ---: |")
    for row in rows:
        say(f"| {row.skill} | {row.good} | {row.asked} | {100 * row.good / row.asked:.0f} % |")
    good, asked = sum(r.good for r in rows), sum(r.asked for r in rows)
    say(f"| all | {good} | {asked} | {100 * good / asked:.1f} % |")


if __name__ == "__main__":
    main()
