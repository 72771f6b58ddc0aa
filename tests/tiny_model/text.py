"""The training text: which skill how often, and streams of samples from a seed.

Pure. `training(seed)` never yields a held-out sample and `evaluation(skill)` yields
nothing else. A run goes through three phases: short things to copy, everything, and at
last also long conversations. A finished model that is taken up again learns everything at
once, and mostly what people try first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import Sample, answer, held_out, system
from tests.tiny_model.skills.about import about, itself, unknown
from tests.tiny_model.skills.calling import calls, no_call, parallel, tool_talk, uses_result
from tests.tiny_model.skills.copying import repeat, word_games
from tests.tiny_model.skills.manners import KINDLY, manners
from tests.tiny_model.skills.memory import long_memory, memory, needle
from tests.tiny_model.skills.numbers import counting
from tests.tiny_model.skills.objects import objects
from tests.tiny_model.skills.stories import story
from tests.tiny_model.skills.sums import arithmetic, recited

Make = Callable[[Dice, bool], Sample]
MIX: list[tuple[Make, float]] = [
    (about, 8.0),
    (itself, 7.0),
    (unknown, 3.0),
    (counting, 9.0),
    (arithmetic, 18.0),
    (repeat, 14.0),
    (word_games, 9.0),
    (story, 2.5),
    (manners, 10.0),
    (calls, 5.0),
    (parallel, 5.0),
    (uses_result, 1.0),
    (no_call, 5.0),
    (tool_talk, 7.0),
    (objects, 11.0),
    (memory, 4.0),
    (needle, 1.0),
]
LONG_WINDED = (calls, tool_talk, parallel, uses_result, no_call, memory, needle, story)
AGAIN: dict[Make, float] = {
    about: 4.5,
    itself: 5.0,
    unknown: 12.0,
    counting: 4.5,
    story: 3.0,
    arithmetic: 4.0,
    repeat: 3.0,
    word_games: 3.0,
    manners: 3.0,
    calls: 2.0,
    parallel: 1.5,
    objects: 2.0,
    tool_talk: 0.6,
    memory: 2.5,
}
"""How much more of each skill when a finished model is taken up again: what people try first, and
less of the long talks, which take most of the tokens."""
Phase = Literal["early", "main", "late", "again"]
PHASES: Mapping[Phase, list[tuple[Make, float]]] = {
    "early": [(make, weight * (0.3 if make in LONG_WINDED else 1.0)) for make, weight in MIX],
    "main": MIX,
    "late": [
        *MIX,
        (long_memory, 2.0),
        (needle, 0.7),
        (arithmetic, 9.0),
        (repeat, 5.0),
        (parallel, 2.0),
    ],
    "again": [
        *((make, weight * AGAIN.get(make, 1.0)) for make, weight in MIX),
        (long_memory, 0.7),
        (recited, 15.0),
    ],
}
SKILLS: dict[str, Make] = {
    "about": about,
    "greeting": itself,
    "unknown": unknown,
    "counting": counting,
    "arithmetic": arithmetic,
    "repeat": repeat,
    "word games": word_games,
    "stories": story,
    "system prompt": manners,
    "tool calls": calls,
    "parallel calls": parallel,
    "tool results": uses_result,
    "no call": no_call,
    "tool talk": tool_talk,
    "json": objects,
    "memory": memory,
    "long memory": long_memory,
    "long text": needle,
}
THINKING = 0.2


def drawn(dice: Dice, make: Make, thinking: float) -> Sample:
    """One sample, at times under a system prompt that changes nothing."""
    sample = make(dice, dice.chance(thinking))
    first = sample.messages[0]["role"]
    if first == "user" and not sample.tools and dice.chance(0.2):
        return _under(sample, dice.one(KINDLY))
    return sample


def _under(sample: Sample, told: str) -> Sample:
    return Sample(
        sample.skill,
        (system(told), *sample.messages),
        sample.tools,
        sample.thinking,
        sample.check,
        sample.wanted,
        sample.key,
        sample.recalls,
    )


def training(seed: int, phase: Phase = "main") -> Iterator[Sample]:
    """Samples without end; the same for the same seed."""
    dice = Dice(seed)
    mix = PHASES[phase]
    while True:
        sample = drawn(dice, dice.weighted(mix), THINKING)
        if not held_out(sample):
            yield sample


def evaluation(skill: str, seed: int = 1, thinking: bool = False) -> Iterator[Sample]:
    """Held-out samples of one skill, each prompt once."""
    dice = Dice(seed * 7919 + sum(skill.encode()))
    seen: set[str] = set()
    misses = 0
    while misses < 5000:
        sample = SKILLS[skill](dice, thinking)
        prompt = str([m["content"] for m in sample.messages if m["role"] in ("system", "user")])
        if not held_out(sample) or prompt in seen:
            misses += 1
            continue
        misses = 0
        seen.add(prompt)
        yield sample


def question(sample: Sample) -> Sample:
    """The sample without its answer: what an evaluation sends."""
    return Sample(
        sample.skill,
        (*sample.messages[:-1], answer("")),
        sample.tools,
        sample.thinking,
        sample.check,
        sample.wanted,
        sample.key,
    )
