"""What the model knows: shoal, its commands, itself; and what it does not know.

Pure. Each fact has one answer; the ways of asking are many and made of alternatives, and a wording
that is held out is held out for every fact.
"""

from __future__ import annotations

from tests.tiny_model.dice import Dice
from tests.tiny_model.facts import (
    COMMAND_FORMS,
    COMMANDS,
    HELP,
    HELP_FORMS,
    HOW,
    HOW_FORMS,
    MAKE,
    SHOAL,
    SHOAL_FORMS,
    TERM_FORMS,
    TERMS,
)
from tests.tiny_model.sample import Sample, answer, user
from tests.tiny_model.smalltalk import ITSELF
from tests.tiny_model.topics import FIELDS, PHRASES, UNKNOWN
from tests.tiny_model.wordings import dressed, worded
from tests.tiny_model.words import (
    ADJECTIVES,
    CITIES,
    COUNTRIES,
    DAYS,
    FOODS,
    NOUNS,
    TWO_WORD_CITIES,
    VERBS,
    coined,
    name,
)

CAPITALS_KNOWN = ("France", "Germany", "Italy")
SORRY = "I am a very small model and I do not know that. Ask me about shoal instead."


def about(dice: Dice, thinking: bool) -> Sample:
    """One fact about shoal."""
    form, term, said = dice.weighted([(_shoal, 3.0), (_term, 3.0), (_command, 2.0), (_how, 3.0)])(
        dice
    )
    asked = dressed(dice, form.replace("{t}", term))
    thought = f"The question is about {term}. I know this."
    return Sample(
        "about", (user(asked), answer(said, thought if thinking else "")), (), thinking, key=form
    )


def _shoal(dice: Dice) -> tuple[str, str, str]:
    return worded(dice, SHOAL_FORMS), "shoal", SHOAL


def _term(dice: Dice) -> tuple[str, str, str]:
    names, said = dice.one(TERMS)
    return worded(dice, TERM_FORMS), dice.one(names), said


def _command(dice: Dice) -> tuple[str, str, str]:
    """What a command does: its own help says so, whatever the command is."""
    form = worded(dice, COMMAND_FORMS)
    if dice.chance(0.25):
        names, said = dice.one(MAKE)
        term = names[0]
    else:
        verb = coined(dice) if dice.chance(0.3) else dice.one(COMMANDS)
        term, said = f"shoal {verb}", f"Run `shoal --help`, then `shoal {verb} --help`."
    return form, f"`{term}`" if dice.chance(0.4) else term, said


def _how(dice: Dice) -> tuple[str, str, str]:
    if dice.chance(0.2):
        return worded(dice, HELP_FORMS), "the commands", HELP
    tasks, said = dice.one(HOW) if dice.chance(0.5) else HOW[0]
    return worded(dice, HOW_FORMS), dice.one(tasks), said


def itself(dice: Dice, thinking: bool) -> Sample:
    """Greetings, thanks, who it is and what it can do."""
    patterns, said = dice.one(ITSELF[:6]) if dice.chance(0.5) else dice.one(ITSELF)
    prompt = worded(dice, patterns).strip()
    thought = dice.one(
        ["The user talks to me. I answer kindly.", "A short friendly answer is best."]
    )
    return Sample(
        "greeting",
        (user(dressed(dice, prompt)), answer(said, thought if thinking else "")),
        (),
        thinking,
        key=prompt.rstrip("?.!,"),
    )


def unknown(dice: Dice, thinking: bool) -> Sample:
    """What a model of this size cannot know, said so."""
    form = worded(dice, UNKNOWN)
    country = dice.one([one for one in COUNTRIES if one not in CAPITALS_KNOWN])
    city = dice.one(CITIES) if dice.chance(0.7) else dice.one(TWO_WORD_CITIES)
    topic = dice.one([dice.one(FIELDS), dice.one(FIELDS), dice.one(PHRASES)])
    asked = form.format(
        t=topic.lower() if dice.chance(0.2) else topic,
        n=dice.one(NOUNS),
        y=dice.between(1900, 2030),
        w=coined(dice).capitalize() if dice.chance(0.3) else coined(dice),
        p=name(dice),
        c=city,
        o=dice.one(COUNTRIES),
        x=country,
        f=dice.one(FOODS),
        a=dice.one(ADJECTIVES),
        m=dice.one(NOUNS),
        b=dice.one(ADJECTIVES),
        u=dice.one(VERBS),
        v=dice.one(VERBS),
        d=dice.one(DAYS),
        q=name(dice),
    )
    thought = "I do not know this. I say so."
    return Sample(
        "unknown",
        (user(dressed(dice, asked)), answer(SORRY, thought if thinking else "")),
        (),
        thinking,
        key=form,
    )
