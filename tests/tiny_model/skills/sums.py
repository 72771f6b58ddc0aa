"""Sums learned by heart, and those that are declined.

Pure. Every sum and difference of two numbers from 0 to 20 and every product of two from 0 to 10 is
taught in plain words; what is held out are other wordings, never a sum. Whatever lies beyond is
declined in words, so that no answer is a guess. An answer says the sum again before its result:
all wordings share one way of recalling it.
"""

from __future__ import annotations

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import Sample, answer, user
from tests.tiny_model.skills.numbers import SPELLED, TENS
from tests.tiny_model.wordings import dressed, worded
from tests.tiny_model.words import name

MOST = {"+": 20, "-": 20, "*": 10}
Sum = tuple[str, int, int]
BY_HEART: list[Sum] = [
    (sign, a, b) for sign, most in MOST.items() for a in range(most + 1) for b in range(most + 1)
]
TOO_HARD = "That is more than I know by heart. Ask me for sums of two numbers from 0 to 20."
PLAIN = ["{q}", "{q}?", "{q} = ?", "{q} =", "What is {q}?", "How much is {q}?", "Calculate {q}."]
PLAIN_KEY = "a plain sum"
FORMS = [
    "{q}[?|=|= ?| =|=?| equals| equals?| is| is?| makes?|.|!]",
    "[What is|What's|Whats|what is|How much is|How much are|What are|What will be] {q}[?||?|.]",
    "[And|So|Then|Now|Next] [what is|what's|how much is] {q}?",
    "[What|How much] [does|do|would|will|can] {q} [make|give|equal|come to|yield|get me]?",
    "[Calculate|Compute|Solve|Work out|Evaluate|Find|Do|Figure out|Tell me|Give me|Say|Reckon] "
    "{q}[.|!|| for me| please| now|, please.]",
    "[Please|Now|Just|Quickly] [calculate|compute|solve|work out|tell me|answer|find] {q}[.|!|]",
    "[Can|Could|Would|Will] you [calculate|compute|solve|work out|tell me|find|do] {q}"
    "[?| for me?| please?| now?]",
    "[Can you tell me|Do you know|Tell me|Say|I want to know|I need to know|I wonder] what {q} "
    "[is|makes|gives|equals|comes to][?|.|]",
    "[What is|What's|Tell me|Give me|Find|I need] the [answer|result|value|solution] "
    "[of|to|for] {q}[?|.|]",
    "[The|My|An|This] [homework|exercise|sum|problem|question|riddle] [is|says|asks][:|] {q}[.|?|]",
    "[I have|I wrote|Here is one|Next one|And|Then|So|Maths|Easy|A sum|Question|Solve this|"
    "Calculate this|Try this]: {q}[.|?|]",
    "[And|So|Then|Now|Ok,|Also] {q}[?| please| now]",
    "{q}, [what is that|how much is it|what does it make|do you know|please|right|quickly][?|]",
    "[If I|When I|When you] [type|enter|write|calculate|see] {q}, what [do I get|comes out|is it]?",
    "[Do you|Can you] [know|do|solve|calculate] {q}?",
    "[How|What] about {q}?",
    "[Help me with|I need help with|I am stuck at|I cannot do] {q}[.|!|]",
]
INFIX = {
    "+": "{a} [+|+|+|plus|plus|added to] {b}",
    "-": "{a} [-|-|-|minus|minus|take away|less] {b}",
    "*": "{a} [*|*|x|times|times|multiplied by] {b}",
}
SPACED = {"+": "{a} + {b}", "-": "{a} - {b}", "*": "{a} * {b}"}
TIGHT = {"+": "{a}+{b}", "-": "{a}-{b}", "*": "{a}*{b}"}
SPOKEN = {"+": "{a} plus {b}", "-": "{a} minus {b}", "*": "{a} times {b}"}
PLAINEST = {
    form.replace("{q}", one[sign])
    for form in PLAIN
    for one in (SPACED, TIGHT, SPOKEN)
    for sign in "+-*"
}
WORDY = {
    "+": [
        "[Add|Sum|Add up|Sum up|Please add|Can you add|Add together|Now add] {a} and {b}[.|]",
        "[What is|What's|Tell me|Give me|Find|Calculate|How much is] the [sum|total] of {a} and {b}"
        "[?|.|]",
        "[What|How much] do {a} and {b} [make|give|come to|add up to][ together|]?",
        "[How much|What] [is|are] {a} and {b} [together|in all|altogether|in total|added up]?",
        "[What do I get|What do you get|What comes out|What happens] [if I add|when I add|"
        "if you add|after adding] {a} and {b}?",
        "[How much|What] [is|do I have with] {a} and {b} more?",
        "[I have|There are] {a} and [get|add|then come] {b} more. How many [is that|are there]?",
        "[What number|Which number] is {b} more than {a}?",
    ],
    "-": [
        "[Subtract|Take|Take away|Please subtract|Can you subtract|Deduct|Now take] {b} from {a}"
        "[.|]",
        "[What is|What's|Tell me|Give me|Find|Calculate] the difference [of|between] {a} and {b}"
        "[?|.|]",
        "[What|How much] [is left|remains|stays] [of|from] {a} [without|after taking away|minus|"
        "less] {b}?",
        "[What do I get|What do you get|What comes out] [if I take|when I take|if you subtract|"
        "after taking] {b} from {a}?",
        "[What number|Which number] is {b} less than {a}?",
        "{a} [reduced by|diminished by|without|lowered by] {b}[?|]",
    ],
    "*": [
        "[Multiply|Please multiply|Can you multiply|Now multiply] {a} [by|with|and] {b}[.|]",
        "[What is|What's|Tell me|Give me|Find|Calculate] the product of {a} and {b}[?|.|]",
        "[What do I get|What comes out] [if I multiply|when I multiply] {a} [and|by] {b}?",
    ],
}
MANY = [
    "[What is|What are|What's|How much is|How much are] {q}?",
    "[Calculate|Compute|Solve|Work out|Do|Find|Answer|Tell me|Give me] {q}[.|!||, please.]",
    "[Calculate|Compute|Solve|Work out|Find|Answer] [these|these sums|all of these|the following|"
    "each]: {q}[.|]",
    "[Can|Could|Would] you [calculate|compute|solve|work out|do|tell me] {q}?",
    "[Some sums|Sums|Exercises|My homework|Next|Now these|A few more|Maths|Quickly]: {q}[.|?|]",
    "[And|Then|So|Now] {q}?",
    "{q}[|?|.]",
]
RECITE = ["Recite some sums.", "Say sums that you know.", "Some sums that you know, please."]
BEYOND = [
    "{b} / {a}",
    "{a} / {b}",
    "{b} [divided by|over|by] {a}",
    "{a} [divided by|:|into] {b}",
    "{a} + {b} + {c}",
    "{a} [-|+] {b} [-|+] {c}",
    "{a} plus {b} [plus|minus] {c}",
    "{a} [*|x] {b} [+|-] {c}",
    "{a} [+|-] {b} [*|x] {c}",
    "({a} + {b}) * {c}",
    "{a} * {b} * {c}",
    "{a} [^|**|to the power of] {b}",
    "{b}[%| percent] of {c}",
    "[the square root of|the root of|half of|a third of|the logarithm of] {b}",
    "{a} [squared|cubed|mod {b}|modulo {b}|factorial]",
    "{a}.{b} [+|-|*] {c}",
    "{a} [+|-|*] {b}.{c}",
    "1/{a} [+|-] 1/{b}",
    "-{a} [+|-] {b}",
]
TOLD = [
    "{p} has {a} {t} and {v} {b}{x}. How many {t} [does {p} have|are there|has {p} got] "
    "[now|in the end|then]?",
    "There [are|were] {a} {t}. {p} {v} {b}{x}. How many [{t} |][are there|are left|do we have] "
    "now?",
    "{p} {v} {b} {t} and had {a} before. How many {t} does {p} have now?",
    "If {p} has {a} {t} and {v} {b}{x}, how many [{t} |][does {p} have|are there][ then|]?",
]
THINGS = ["apples", "shells", "coins", "books", "stones", "cups", "pens", "eggs", "balls", "keys"]
MORE = ["gets", "finds", "buys", "receives"]
LESS = ["loses", "gives away", "sells", "breaks"]


def arithmetic(dice: Dice, thinking: bool) -> Sample:
    """One sum, several at once, one in a small event, or one that is declined."""
    make = dice.weighted([(_one, 40.0), (_many, 34.0), (_hard, 20.0), (_told, 6.0)])
    key, asked, said, thought = make(dice)
    return Sample(
        "arithmetic",
        (user(asked), answer(said, thought if thinking else "")),
        thinking=thinking,
        key=key,
    )


def recited(dice: Dice, thinking: bool) -> Sample:
    """Sums drawn by lot with their results: the shortest way to learn many by heart."""
    drawn = [dice.one(BY_HEART) for _ in range(dice.between(8, 16))]
    said = ", ".join(solved(*each) for each in drawn) + "."
    asked = dice.one(RECITE)
    return Sample("arithmetic", (user(asked), answer(said)), key=asked, recalls=True)


def plainly(sign: str, a: int, b: int) -> Sample:
    """Ask for one sum in plain words, answered if it is learned and declined if not."""
    known = (sign, a, b) in BY_HEART
    said = solved(sign, a, b) if known else TOO_HARD
    return Sample("arithmetic", (user(f"What is {a} {sign} {b}?"), answer(said)))


def solved(sign: str, a: int, b: int) -> str:
    """Return the whole line that is the answer."""
    return f"{a} {sign} {b} = {a + b if sign == '+' else a - b if sign == '-' else a * b}"


def _form(dice: Dice, sign: str) -> str:
    """A wording with {a} and {b} left open."""
    kind = dice.between(1, 10)
    if kind <= 2:
        return worded(dice, WORDY[sign])
    inner = TIGHT[sign] if kind <= 4 else worded(dice, [INFIX[sign]])
    if dice.chance(0.35):
        return dice.one(PLAIN).replace("{q}", inner)
    return worded(dice, FORMS).replace("{q}", inner)


def _key(form: str) -> str:
    """What is held out: the wording, unless it is one of the plainest, which are always taught."""
    return PLAIN_KEY if form in PLAINEST else form


def _put(dice: Dice, form: str, a: int, b: int) -> str:
    """The wording with its numbers, now and then as words."""
    if dice.chance(0.12):
        return form.format(a=_spelled(a), b=_spelled(b))
    return form.format(a=a, b=b)


def _spelled(n: int) -> str:
    if n in SPELLED:
        return SPELLED[n]
    return f"{TENS[n // 10 - 2]} {SPELLED[n % 10]}" if n < 100 else str(n)


def _one(dice: Dice) -> tuple[str, str, str, str]:
    sign, a, b = dice.one(BY_HEART)
    form = _form(dice, sign)
    said = solved(sign, a, b)
    return _key(form), dressed(dice, _put(dice, form, a, b)), said, f"{said}."


def _many(dice: Dice) -> tuple[str, str, str, str]:
    """Several sums in one question; one that is too hard among them declines all."""
    drawn = [dice.one(BY_HEART) for _ in range(dice.between(2, 7))]
    items = [(TIGHT if dice.chance(0.2) else SPACED)[sign].format(a=a, b=b) for sign, a, b in drawn]
    said, thought = ", ".join(solved(*each) for each in drawn), "I know these by heart."
    if dice.chance(0.12):
        sign, a, b = large(dice)
        items[dice.between(0, len(items) - 1)] = f"{a} {sign} {b}"
        said, thought = TOO_HARD, "I do not know all of these by heart."
    form = worded(dice, MANY)
    joint = dice.one([", ", ", ", "; ", "\n"])
    listed = joint.join(items[:-1]) + dice.one([joint, " and "]) + items[-1]
    return "many: " + form, dressed(dice, form.replace("{q}", listed)), said, thought


def large(dice: Dice) -> Sum:
    """A sign and two numbers of which one or both are beyond what is learned."""
    sign = dice.weighted([("+", 4.0), ("-", 3.0), ("*", 3.0)])
    most = MOST[sign]
    above = dice.weighted(
        [
            (dice.between(most + 1, most + 10), 4.0),
            (dice.between(most + 1, 99), 6.0),
            (dice.between(100, 999), 2.0),
            (dice.between(1000, 99999), 1.0),
        ]
    )
    other = dice.weighted(
        [(dice.between(0, most), 5.0), (dice.between(most + 1, 99), 4.0), (above + 1, 1.0)]
    )
    return (sign, above, other) if dice.chance(0.5) else (sign, other, above)


def _hard(dice: Dice) -> tuple[str, str, str, str]:
    if dice.chance(0.7):
        sign, a, b = large(dice)
        form = _form(dice, sign)
        key, asked = _key(form), _put(dice, form, a, b)
    else:
        key = worded(dice, PLAIN if dice.chance(0.4) else FORMS)
        key = key.replace("{q}", worded(dice, BEYOND))
        asked = key.format(a=dice.between(1, 20), b=dice.between(1, 20), c=dice.between(1, 99))
    return key, dressed(dice, asked), TOO_HARD, "This is more than I know by heart."


def _told(dice: Dice) -> tuple[str, str, str, str]:
    """A sum wrapped in a small event."""
    sign = dice.one("+-")
    hard = dice.chance(0.15)
    a, b = (dice.between(21, 99) for _ in "ab") if hard else (dice.between(0, 20) for _ in "ab")
    if sign == "-" and a < b:
        a, b = b, a
    value = a + b if sign == "+" else a - b
    who, things, form = name(dice), dice.one(THINGS), worded(dice, TOLD)
    done, more = (dice.one(MORE), dice.one([" more", ""])) if sign == "+" else (dice.one(LESS), "")
    asked = form.format(p=who, a=a, b=b, t=things, v=done, x=more)
    said = TOO_HARD if hard else f"{solved(sign, a, b)}, so there are {value} {things}."
    return form, asked, said, "This is a sum."
