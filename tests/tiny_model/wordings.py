"""Ways of asking: patterns whose brackets hold alternatives.

Pure. `[a|b|]` stands for one of its alternatives, perhaps none; brackets do not nest. A wording
is a pattern with its choices made, before names and numbers are put in: it is what is held out, so
that an examination asks in words that no lesson used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.tiny_model.dice import Dice

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
OPENINGS = [
    "Please: ",
    "Hi! ",
    "Hello, ",
    "Hello! ",
    "Hi, ",
    "Hey, ",
    "Quick question: ",
    "A question: ",
    "Tell me: ",
    "So, ",
    "Ok, ",
    "Now, ",
    "Well, ",
    "And ",
    "Excuse me, ",
    "Sorry, ",
]
ENDINGS = ["??", "!", " :)", " ?", "...", " please", ", please", " thanks", " Thanks!"]


def worded(dice: Dice, patterns: Sequence[str]) -> str:
    """Return one pattern with its choices made."""
    return _CHOICE.sub(lambda found: dice.one(found[1].split("|")), dice.one(patterns))


def dressed(dice: Dice, asked: str) -> str:
    """Return the question as people type it: mostly as it is, at times with a word before it, in
    small letters, without its mark, or with another one."""
    kind = dice.between(1, 16)
    if kind <= 2:
        opening = dice.one(OPENINGS)
        small = opening.endswith((", ", "And "))
        return opening + (asked[0].lower() + asked[1:] if small else asked)
    if kind <= 4:
        return asked.lower()
    if kind == 5:
        return asked.rstrip("?.!")
    if kind == 6:
        return asked.rstrip("?.!").lower()
    if kind == 7:
        return asked.rstrip("?.!") + dice.one(ENDINGS)
    return asked
