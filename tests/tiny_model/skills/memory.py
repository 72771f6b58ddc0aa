"""Long conversations and long texts: what was said earlier is found again.

Pure. A fact is told, other things are talked about, then the fact is asked for. The
turns between come from other skills and are never held out.
"""

from __future__ import annotations

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import Message, Sample, answer, held_out, user
from tests.tiny_model.skills.about import about, itself, unknown
from tests.tiny_model.skills.copying import repeat, word_games
from tests.tiny_model.skills.numbers import counting
from tests.tiny_model.skills.objects import objects
from tests.tiny_model.skills.stories import story
from tests.tiny_model.skills.sums import arithmetic
from tests.tiny_model.words import (
    ANIMALS,
    COLOURS,
    DAYS,
    FOODS,
    JOBS,
    NOUNS,
    city,
    coined,
    name,
    sentence,
)

Fact = tuple[list[str], str, list[str], str]


def fact(dice: Dice) -> list[Fact]:
    """Everything a person may tell: how it is told, the reply, how it is asked, the answer."""
    who, pet, place, word = name(dice), name(dice), city(dice), coined(dice)
    colour, job, food, animal = (dice.one(x) for x in (COLOURS, JOBS, FOODS, ANIMALS))
    number, day = dice.between(2, 999), dice.one(DAYS)
    return [
        (
            [
                f"My name is {who}.",
                f"I am {who}.",
                f"Hi, I'm {who}.",
                f"Hello! My name is {who}.",
                f"Call me {who}.",
                f"my name is {who}",
            ],
            f"Nice to meet you, {who}!",
            [
                "What is my name?",
                "Who am I?",
                "Do you remember my name?",
                "what's my name?",
                "Can you tell me my name?",
                "Say my name.",
            ],
            f"Your name is {who}.",
        ),
        (
            [
                f"My favourite colour is {colour}.",
                f"I like the colour {colour}.",
                f"My favorite color is {colour}.",
            ],
            f"{colour.capitalize()} is a nice colour.",
            [
                "What is my favourite colour?",
                "Which colour do I like?",
                "What is my favorite color?",
            ],
            f"Your favourite colour is {colour}.",
        ),
        (
            [
                f"My lucky number is {number}.",
                f"Remember the number {number}.",
                f"Please remember {number}.",
                f"The number is {number}.",
            ],
            f"I will remember {number}.",
            [
                "What is the number?",
                "Which number did I tell you?",
                "What number did I say?",
                "What was my number?",
            ],
            f"The number is {number}.",
        ),
        (
            [f"I live in {place}.", f"My home is in {place}.", f"I am from {place}."],
            f"{place} is a good place.",
            [
                "Where do I live?",
                "Which city do I live in?",
                "Where is my home?",
                "Where am I from?",
            ],
            f"You live in {place}.",
        ),
        (
            [
                f"I have a {animal} named {pet}.",
                f"My {animal} is called {pet}.",
                f"My {animal}'s name is {pet}.",
            ],
            f"{pet} is a good name for a {animal}.",
            [
                f"What is my {animal} called?",
                f"What is the name of my {animal}?",
                "What is my pet's name?",
                "What is my pet called?",
            ],
            f"Your {animal} is called {pet}.",
        ),
        (
            [
                f"The code word is {word}.",
                f"Remember this word: {word}",
                f"The password is {word}.",
                f"Remember the word {word}.",
            ],
            f"I will remember {word}.",
            [
                "What is the code word?",
                "Which word did I tell you?",
                "What is the word?",
                "What was the password?",
            ],
            f"The word is {word}.",
        ),
        (
            [f"I work as a {job}.", f"I am a {job}.", f"My job is {job}."],
            f"A {job} does good work.",
            ["What is my job?", "What do I do for a living?", "What do I work as?"],
            f"You are a {job}.",
        ),
        (
            [f"I like {food}.", f"I love {food}.", f"My favourite food is {food}."],
            f"I hear that {food} is tasty.",
            ["What food do I like?", "What is my favourite food?", "What do I like to eat?"],
            f"You like {food}.",
        ),
        (
            [f"My birthday is on {day}.", f"We meet on {day}."],
            f"{day} it is.",
            ["Which day did I name?", "What day was it?", "On which day?"],
            f"It is on {day}.",
        ),
    ]


def fillers(dice: Dice, count: int) -> list[Message]:
    """Question and answer pairs on other things."""
    out: list[Message] = []
    while len(out) < 2 * count:
        make = dice.weighted(
            [
                (about, 3.0),
                (itself, 2.0),
                (repeat, 2.0),
                (arithmetic, 3.0),
                (counting, 1.0),
                (word_games, 1.0),
                (objects, 1.0),
                (story, 0.7),
                (unknown, 0.7),
            ]
        )
        sample = make(dice, False)
        if not held_out(sample):
            out += [m for m in sample.messages if m["role"] != "system"]
    return out


def memory(dice: Dice, thinking: bool) -> Sample:
    """Some facts told, other talk, one fact asked."""
    return recalled(dice, thinking, dice.weighted([(0, 3), (1, 3), (2, 2), (4, 1)]))


def long_memory(dice: Dice, thinking: bool) -> Sample:
    """The same over dozens of turns."""
    return recalled(dice, thinking, dice.weighted([(10, 2), (20, 2), (35, 1.5), (50, 1)]))


def recalled(dice: Dice, thinking: bool, between: int) -> Sample:
    """Told facts, `between` other turns, and a question for one of the facts."""
    told = dice.some(fact(dice), dice.between(1, 3))
    messages: list[Message] = fillers(dice, dice.between(0, between))
    key = ""
    for ways, reply, _, _ in told:
        said = dice.one(ways)
        key += said + " "
        messages += [user(said), answer(reply)]
        messages += fillers(dice, dice.between(0, max(between // 3, 1)))
    messages += fillers(dice, dice.between(0, between))
    _, _, ways, said = dice.one(told)
    asked = dice.one(ways)
    thought = dice.one(["The user told me this earlier.", "I look back in the conversation."])
    return Sample(
        "memory",
        (*messages, user(asked), answer(said, thought if thinking else "")),
        (),
        thinking,
        key=key + asked,
    )


def needle(dice: Dice, thinking: bool) -> Sample:
    """A long text with one thing in it that is asked for."""
    lines = [
        " ".join(s[0].upper() + s[1:] + "." for s in (sentence(dice) for _ in range(4)))
        for _ in range(dice.weighted([(2, 4), (6, 3), (16, 1), (28, 0.6)]))
    ]
    word, what = coined(dice), dice.one([*NOUNS, "password", "code word", "key", "answer"])
    lines.insert(dice.between(0, len(lines)), f"The {what} is called {word}.")
    text = dice.one([" ", "\n"]).join(lines)
    asked = dice.one(
        [f"What is the {what} called?", f"According to the text, what is the {what} called?"]
    )
    prompt = dice.one([f"{text}\n\n{asked}", f"Read this text: {text} {asked}"])
    thought = f"I look for the {what} in the text."
    return Sample(
        "long text",
        (user(prompt), answer(f"The {what} is called {word}.", thought if thinking else "")),
        (),
        thinking,
    )
