"""Counting.

Pure. Numbers are written with plain digits; lists stand in one line with commas
unless lines are asked for.
"""

from __future__ import annotations

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import Sample, answer, user
from tests.tiny_model.wordings import worded
from tests.tiny_model.words import listed

WORDS = listed("zero one two three four five six seven eight nine ten eleven twelve")
TEENS = listed("thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
TENS = listed("twenty thirty forty fifty sixty seventy eighty ninety hundred")
SPELLED = dict(enumerate(WORDS + TEENS)) | {10 * (i + 2): word for i, word in enumerate(TENS)}

ASK = (
    "[Please |Can you |Could you |Would you |Now |I want you to |Will you |Just |"
    "Let us |Try to |||||||||||]"
)
WISH = "[ please|, please| for me| now| and stop| and then stop| aloud| in order||||||||||]"
END = "[.|.|!|?|||||]"
NUMBERS = (
    "[the numbers|the integers|all numbers|all the numbers|all integers|the whole numbers|"
    "every number|every integer|all the integers|numbers|integers|the natural numbers|"
    "each number|all whole numbers|me the numbers]"
)
LIST = (
    "[list|write|write down|give me|print|say|show|show me|name|tell me|enumerate|recite|output|"
    "type|display|return|spell out|read out|produce]"
)
RANGE = (
    "[from {a} to {b}|from {a} up to {b}|{a} to {b}|{a} through {b}|from {a} through {b}|"
    "between {a} and {b}|from {a} until {b}|{a}-{b}|from {a} till {b}|"
    "starting at {a} and ending at {b}|"
    "from {a} to {b}, both included|starting with {a} up to {b}|beginning at {a}, up to {b}]"
)
UP_TO = [
    f"{ASK}count [to|up to|to the number|until|till|as far as|all the way to|"
    f"upto] {{b}}{WISH}{END}",
    f"{ASK}count [to|up to] {{b}}{WISH}{END}",
    f"{ASK}count {RANGE}{WISH}{END}",
    f"{ASK}[start|begin] [at|with|from] {{a}} and count [to|up to|until] {{b}}{WISH}{END}",
    f"{ASK}{LIST} {NUMBERS} {RANGE}{WISH}{END}",
    f"{ASK}{LIST} {NUMBERS} {RANGE}{WISH}{END}",
    f"{ASK}{LIST} {NUMBERS} [up to|to|until] {{b}}{WISH}{END}",
    "[What are|Which are|Which numbers are] [the numbers|the integers|] [from {a} to {b}|between "
    "{a} and {b}]?",
    f"[Numbers|Integers|The numbers|All numbers|Counting] {RANGE}{WISH}{END}",
    "{a} to {b}[, please|]",
    "List the integers from {a} to {b}",
    "Count from {a} to {b}[.|]",
    "[How do you|How do I|Do you know how to|Are you able to|Can you] count [to|from {a} to] {b}?",
    "[I need|I want|I would like] [the numbers|all integers|all numbers] {a} to {b}[.|]",
    "[Let's|Let me see you|Show me how you|Show that you can] count to {b}[.|]",
    "[One two three, go on|Go on counting|Keep counting] [to|up to|until] {b}[.|]",
    "[And |So |Then |Ok, |][count|counting|now count] [slowly|quickly|aloud|for me|again|up|] "
    f"{RANGE}{END}",
    "[I want|I need|I would like|I'd like] [you to count|to hear you count|to see you count|a "
    f"count] {RANGE}[ please|]{END}",
    f"[Which|What] [numbers|integers|whole numbers] [come|are|lie|do you find] {RANGE}?",
    "[Fill in|Complete|Continue|Make] [the list|a list|the row] of [numbers|integers] "
    f"{RANGE}{WISH}{END}",
    f"[A list|The list|A row|The sequence|A sequence] of {NUMBERS} {RANGE}{WISH}{END}",
    "[Up to|As far as|All the way to] {b}, [count|please count|count for me][.|!|]",
    f"[From] [one|1] [on|onwards|upwards], count [to|up to] {{b}}{WISH}{END}",
]
DOWN = [
    f"{ASK}count [down|backwards|backward|back|in reverse] from {{a}} [to|until|"
    f"down to] {{b}}{WISH}{END}",
    f"{ASK}count down from {{a}} to {{b}}{WISH}{END}",
    f"{ASK}{LIST} {NUMBERS} from {{a}} [down to|back to|backwards to] {{b}}{WISH}{END}",
    f"{ASK}[give me|do|show|start] a countdown from {{a}} to {{b}}{WISH}{END}",
    f"[Numbers|A countdown|Countdown|The numbers] from {{a}} down to {{b}}{WISH}{END}",
    f"{ASK}[start|begin] [at|with|from] {{a}} and count down to {{b}}{WISH}{END}",
    f"{ASK}count from {{a}} [down|backwards|back] to {{b}}{WISH}{END}",
    "[And |So |Then |Ok, |][now |][count|counting] [slowly |quickly |aloud |]down from {a} [to|"
    f"until] {{b}}{WISH}{END}",
    "[The numbers|All numbers|Numbers|The integers|Integers] [backwards|in reverse|downwards] "
    f"from {{a}} to {{b}}{WISH}{END}",
    f"[Backwards|In reverse|Downwards], count from {{a}} to {{b}}{WISH}{END}",
]
LINES = [
    ", one per line",
    " one per line.",
    ", each on its own line.",
    ", one number per line",
    " on separate lines.",
    ", each on a new line",
    ", a line each.",
]
STEPS = [
    "[Count|count|Please count] from {a} to {b} in steps of {s}[.|]",
    "[Count|count|Please count] by {s}s from {a} to {b}[.|]",
    "[Count|count] from {a} to {b} by {s}[.|]",
    "[List|Write|Give me|Name] every {s}th number from {a} to {b}[.|]",
    "[Can you|Could you|Will you|Now|Please] count from {a} to {b} [in steps of|by|in jumps of] "
    "{s}[?|.|]",
    "[List|Write|Give me|Say|Print] the numbers from {a} to {b} in steps of {s}[.|]",
    "[In steps of|By] {s}, count from {a} to {b}[.|]",
    "[Start|Begin] at {a} and [count|go] to {b} in steps of {s}[.|]",
    "[Every|Each] {s}th number from {a} to {b}[, please|.|]",
]


def counting(dice: Dice, thinking: bool) -> Sample:
    """Up, down, in steps; in a line or one to a line; numbers in digits or in words."""
    kind = dice.between(1, 20)
    step = 1
    if kind <= 15:
        a, b = _ends(dice)
        form = worded(dice, UP_TO)
        if "{a}" not in form:
            a = 1
    elif kind <= 18:
        b, a = _ends(dice, 45)
        b = dice.one([b, 1, 1, 0])
        form = worded(dice, DOWN)
        step = -1
    else:
        step = dice.one([2, 3, 5, 10])
        a = dice.one([0, step])
        b = a + step * dice.between(4, 20)
        form = worded(dice, STEPS)
    numbers = [str(n) for n in range(a, b + (1 if step > 0 else -1), step)]
    spelled = dice.chance(0.2) and a in SPELLED and b in SPELLED and abs(step) == 1
    shown = {"a": SPELLED[a], "b": SPELLED[b]} if spelled else {"a": a, "b": b}
    prompt = form.format(**shown, s=step)
    prompt = prompt if dice.chance(0.3) else prompt[0].upper() + prompt[1:]
    lines = dice.chance(0.12)
    if lines:
        prompt = prompt.rstrip(".?!") + dice.one(LINES)
    thought = f"I count from {a} to {b}" + ("" if abs(step) == 1 else f" in steps of {step}") + "."
    said = ("\n" if lines else ", ").join(numbers)
    return Sample(
        "counting",
        (user(prompt), answer(said, thought if thinking else "")),
        thinking=thinking,
        key=form,
    )


def _ends(dice: Dice, most: int = 0) -> tuple[int, int]:
    """A first and a last number, often 1 and at most about a hundred apart."""
    if dice.chance(0.6):
        b = dice.weighted(
            [(dice.between(2, 40), 8), (dice.between(41, 120), 2), (30, 1), (10, 2), (100, 1)]
        )
        return (0 if dice.chance(0.06) else 1), min(b, most or b)
    a = dice.between(2, 130)
    return a, a + dice.between(1, min(30, most or 30))
