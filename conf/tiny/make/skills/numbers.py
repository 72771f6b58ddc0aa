"""Counting and small sums.

Pure. Numbers are written with plain digits; lists stand in one line with commas
unless lines are asked for.
"""

from __future__ import annotations

from conf.tiny.make.dice import Dice
from conf.tiny.make.sample import Sample, answer, user
from conf.tiny.make.words import listed, name

WORDS = listed("zero one two three four five six seven eight nine ten eleven twelve")

UP_TO = [
    "Count to {b}",
    "count to {b}",
    "Count up to {b}",
    "Please count to {b}",
    "Can you count to {b}?",
    "Count from {a} to {b}",
    "count from {a} to {b}",
    "Count from {a} up to {b}.",
    "Please count from {a} to {b}.",
    "List the integers from {a} to {b}",
    "List the integers from {a} to {b}.",
    "list the integers from {a} to {b}",
    "List the numbers from {a} to {b}.",
    "List all numbers from {a} to {b}",
    "Write the numbers {a} to {b}.",
    "Write down the integers from {a} to {b}",
    "Give me the numbers from {a} to {b}",
    "Print the numbers from {a} to {b}.",
    "Say the numbers {a} to {b}",
    "Numbers from {a} to {b}, please.",
    "Show the integers {a} to {b}.",
    "Could you list the integers from {a} to {b}?",
    "Enumerate the integers from {a} to {b}.",
    "Start at {a} and count to {b}.",
    "What are the numbers from {a} to {b}?",
    "List the whole numbers between {a} and {b}, both included.",
]
DOWN = [
    "Count down from {a} to {b}",
    "Count down from {a} to {b}.",
    "count backwards from {a} to {b}",
    "Count backwards from {a} to {b}.",
    "List the integers from {a} down to {b}",
    "Please count down from {a} to {b}.",
    "Give me a countdown from {a} to {b}.",
    "Numbers from {a} down to {b}, please.",
    "Start at {a} and count down to {b}.",
]
LINES = [
    ", one per line",
    " one per line.",
    ", each on its own line.",
    ", one number per line",
    " on separate lines.",
]
STEPS = [
    "Count from {a} to {b} in steps of {s}.",
    "Count by {s}s from {a} to {b}.",
    "Count from {a} to {b} by {s}",
    "List every {s}th number from {a} to {b}.",
]


def counting(dice: Dice, thinking: bool) -> Sample:
    """Up, down, in steps; in a line or one to a line."""
    kind = dice.between(1, 20)
    step = 1
    if kind <= 14:
        a, b = _ends(dice)
        asked = dice.one(UP_TO)
        if "{a}" not in asked:
            a = 1
    elif kind <= 18:
        b, a = _ends(dice, 45)
        b = dice.one([b, 1, 1, 0])
        asked = dice.one(DOWN)
        step = -1
    else:
        step = dice.one([2, 3, 5, 10])
        a = dice.one([0, step])
        b = a + step * dice.between(4, 20)
        asked = dice.one(STEPS)
    numbers = [str(n) for n in range(a, b + (1 if step > 0 else -1), step)]
    prompt = asked.format(a=a, b=b, s=step)
    lines = dice.chance(0.12)
    if lines:
        prompt = prompt.rstrip(".?") + dice.one(LINES)
    thought = f"I count from {a} to {b}" + ("" if abs(step) == 1 else f" in steps of {step}") + "."
    said = ("\n" if lines else ", ").join(numbers)
    return Sample(
        "counting", (user(prompt), answer(said, thought if thinking else "")), thinking=thinking
    )


def _ends(dice: Dice, most: int = 0) -> tuple[int, int]:
    """A first and a last number, often 1 and at most about a hundred apart."""
    if dice.chance(0.55):
        b = dice.weighted([(dice.between(3, 40), 8), (dice.between(41, 120), 2), (30, 1)])
        return (0 if dice.chance(0.06) else 1), min(b, most or b)
    a = dice.between(2, 130)
    return a, a + dice.between(3, min(30, most or 30))


SUM_FORMS = [
    "What is {q}?",
    "what is {q}",
    "Calculate {q}.",
    "{q}",
    "{q} = ?",
    "How much is {q}?",
    "What's {q}?",
    "Compute {q}",
    "Please calculate {q}.",
    "Solve {q}.",
    "Can you tell me what {q} is?",
    "What does {q} make?",
    "Tell me {q}",
]
SPOKEN = {"+": ["plus", "and"], "-": ["minus"], "*": ["times", "multiplied by"]}


def arithmetic(dice: Dice, thinking: bool) -> Sample:
    """Sums, differences and products that a child knows."""
    sign = dice.weighted([("+", 4.0), ("-", 3.0), ("*", 2.0)])
    if sign == "*":
        a, b = dice.between(0, 10), dice.between(0, 10)
        value = a * b
    elif dice.chance(0.6):
        a, b = dice.between(0, 10), dice.between(0, 10)
        value = a + b
    else:
        a, b = dice.between(0, 50), dice.between(0, 50)
        value = a + b
    if sign == "-":
        if a < b:
            a, b = b, a
        value = a - b
    if dice.chance(0.2) and sign != "*":
        return _told(dice, sign, a, b, value, thinking)
    small = a <= 12 and b <= 12
    left, right = (WORDS[a], WORDS[b]) if small and dice.chance(0.2) else (str(a), str(b))
    spoken = dice.one(SPOKEN[sign]) if dice.chance(0.4) or left == WORDS[min(a, 12)] else sign
    asked = dice.one(SUM_FORMS).format(q=f"{left} {spoken} {right}")
    said = f"{a} {sign} {b} = {value}"
    return Sample(
        "arithmetic",
        (user(asked), answer(said, f"{a} {sign} {b} is {value}." if thinking else "")),
        thinking=thinking,
    )


def _told(dice: Dice, sign: str, a: int, b: int, value: int, thinking: bool) -> Sample:
    """The same sum wrapped in a small event."""
    who, what = name(dice), dice.one(["apples", "shells", "coins", "books", "stones", "cups"])
    more, less = dice.one(["gets", "finds", "buys"]), dice.one(["loses", "gives away", "sells"])
    asked = f"{who} has {a} {what} and {more if sign == '+' else less} {b}"
    asked += " more" if sign == "+" else ""
    asked += dice.one(
        [f". How many {what} does {who} have now?", f". How many {what} are there now?"]
    )
    said = f"{a} {sign} {b} = {value}, so {who} has {value} {what}."
    thought = f"{who} {more if sign == '+' else less} {b} {what}: {a} {sign} {b} is {value}."
    return Sample(
        "arithmetic", (user(asked), answer(said, thought if thinking else "")), thinking=thinking
    )
