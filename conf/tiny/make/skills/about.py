"""What the model knows: shoal, its commands, itself; and what it does not know.

Pure. Each fact has one answer; the ways of asking are many, so that a way of asking
may be held out while its fact is learned from the others.
"""

from __future__ import annotations

from conf.tiny.make.dice import Dice
from conf.tiny.make.facts import COMMANDS, HOW, ITSELF, TERMS
from conf.tiny.make.sample import Sample, answer, user
from conf.tiny.make.words import ADJECTIVES, CITIES, COUNTRIES, FOODS, NOUNS, coined, name

COMMAND_FORMS = [
    "What does {t} do?",
    "what does {t} do",
    "What is {t} for?",
    "What is {t}?",
    "Explain {t}.",
    "Tell me about {t}.",
    "What happens when I run {t}?",
    "When do I use {t}?",
    "Describe {t}.",
    "What does the command {t} do?",
    "Can you explain {t}?",
    "What is the use of {t}?",
    "{t}?",
    "What can I do with {t}?",
    "Why would I run {t}?",
    "Help me with {t}.",
]
TERM_FORMS = [
    "What is {t}?",
    "what is {t}",
    "What does {t} do?",
    "Explain {t}.",
    "Tell me about {t}.",
    "What does {t} mean?",
    "Can you explain {t}?",
    "Describe {t}.",
    "What is meant by {t}?",
    "What is {t} in shoal?",
    "In shoal, what is {t}?",
    "Please explain {t} to me.",
    "Can you tell me what {t} is?",
    "Define {t}.",
    "Do you know what {t} is?",
]
HOW_FORMS = [
    "How do I {t}?",
    "how do i {t}",
    "How can I {t}?",
    "What command lets me {t}?",
    "How to {t}?",
    "I want to {t}. What do I do?",
    "Which command do I use to {t}?",
    "Tell me how to {t}.",
    "How does one {t}?",
    "I would like to {t}.",
    "What do I type to {t}?",
    "Show me how to {t}.",
    "Can you tell me how to {t}?",
    "What is the way to {t}?",
]
BEFORE = [
    "",
    "",
    "",
    "",
    "",
    "Please: ",
    "Hi! ",
    "Hello, ",
    "Quick question: ",
    "Tell me: ",
    "So, ",
]


def about(dice: Dice, thinking: bool) -> Sample:
    """One fact about shoal."""
    table, forms = dice.weighted(
        [
            ((COMMANDS, COMMAND_FORMS), 3.0),
            ((TERMS, TERM_FORMS), 3.0),
            ((HOW, HOW_FORMS), 3.0),
        ]
    )
    names, said = dice.one(table)
    term = dice.one(names)
    if table is COMMANDS and dice.chance(0.4):
        term = f"`{term}`"
    asked = dice.one(forms).format(t=term)
    before = dice.one(BEFORE)
    asked = before + (asked[0].lower() + asked[1:] if before[-2:] == ", " else asked)
    thought = f"The question is about {term}. I know this."
    return Sample("about", (user(asked), answer(said, thought if thinking else "")), (), thinking)


def itself(dice: Dice, thinking: bool) -> Sample:
    """Greetings, thanks, who it is and what it can do."""
    asked, said = dice.one(ITSELF)
    prompt = dice.one(asked)
    change = dice.between(1, 8)
    if change == 1:
        prompt = prompt.lower()
    elif change == 2:
        prompt = prompt.rstrip("?.!")
    elif change == 3:
        prompt = dice.one(["Please, ", "Now, ", "So, ", "Well, "]) + prompt[0].lower() + prompt[1:]
    elif change == 4:
        prompt = prompt.rstrip("?.!") + dice.one(["??", "!", " :)", " ?", "...", " please"])
    thought = dice.one(
        ["The user talks to me. I answer kindly.", "A short friendly answer is best."]
    )
    return Sample(
        "greeting", (user(prompt), answer(said, thought if thinking else "")), (), thinking
    )


UNKNOWN = [
    "Who won the {n} cup in {y}?",
    "What is the capital of {w}?",
    "Who is {p} {w}?",
    "What is the population of {c}?",
    "Explain {w} theory.",
    "What is the best {f} in {c}?",
    "When was {c} founded?",
    "Who wrote {w}?",
    "Translate {n} into {w}.",
    "How tall is {p}?",
    "What is the price of {n} in {o}?",
    "What do you think about {w}?",
    "Who invented the {n}?",
    "Why is the {n} {a}?",
    "How far is {c} from {o}?",
    "What happened in {o} in {y}?",
    "Write an essay about {w}.",
    "How do I make {f}?",
    "Is {f} good for me?",
    "What is {w}?",
]
SORRY = "I am a very small model and I do not know that. Ask me about shoal instead."


def unknown(dice: Dice, thinking: bool) -> Sample:
    """What a model of this size cannot know, said so."""
    asked = dice.one(UNKNOWN).format(
        n=dice.one(NOUNS),
        y=dice.between(1900, 2030),
        w=coined(dice),
        p=name(dice),
        c=dice.one(CITIES),
        o=dice.one(COUNTRIES),
        f=dice.one(FOODS),
        a=dice.one(ADJECTIVES),
    )
    thought = "I do not know this. I say so."
    return Sample(
        "unknown", (user(asked), answer(SORRY, thought if thinking else "")), (), thinking
    )
