"""Obeying the system prompt: its form, its role, its facts.

Pure. The question and its plain answer come from other skills; the system prompt
changes the answer in a way that can be checked.
"""

from __future__ import annotations

import json

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import Sample, answer, held_out, kept_back, system, user
from tests.tiny_model.skills.about import about, itself
from tests.tiny_model.skills.copying import repeat
from tests.tiny_model.skills.sums import arithmetic
from tests.tiny_model.words import ADJECTIVES, COLOURS, DAYS, FOODS, JOBS, NOUNS, city, coined, name

ONE_WORD = [
    (["What colour is the sky?", "What color is the sky?", "The colour of the sky?"], "Blue"),
    (["What colour is grass?", "What color is grass?", "The colour of grass?"], "Green"),
    (["What colour is snow?", "What color is snow?", "The colour of snow?"], "White"),
    (
        ["Is fire hot?", "Is the sun hot?", "Is ice cold?", "Can fish swim?", "Can birds fly?"],
        "Yes",
    ),
    (
        ["Is ice hot?", "Is fire cold?", "Can a stone swim?", "Can cows fly?", "Is snow black?"],
        "No",
    ),
    (["What is the capital of France?", "Capital of France?"], "Paris"),
    (["What is the capital of Italy?", "Capital of Italy?"], "Rome"),
    (["What is the capital of Germany?", "Capital of Germany?"], "Berlin"),
    (["Which animal barks?", "What animal says woof?"], "Dog"),
    (["Which animal says meow?", "What animal purrs?"], "Cat"),
    (["What runs a model in shoal?", "Which process runs models?"], "Runner"),
    (["Which process answers HTTP?", "What answers HTTP in shoal?"], "Gateway"),
    (["Which process decides?", "What decides in the cluster?"], "Master"),
    (["What do you drink when thirsty?", "What is in the sea?"], "Water"),
]
BE_SHORT = [
    "Answer in one word.",
    "Answer with one word.",
    "Use one word only.",
    "Reply with a single word.",
    "Answer with a single word.",
    "Give one-word answers.",
    "You answer in one word only.",
]
LAST = [
    "Always end with {t}.",
    "Always end your answer with {t}.",
    "End every answer with {t}.",
    "Finish each reply with {t}.",
    "You always end with the words {t}.",
    'Always end with "{t}".',
    'End every reply with "{t}".',
]
FIRST = [
    "Always start with {t}.",
    "Start every answer with {t}.",
    "Begin each reply with {t}.",
    'Always begin with "{t}".',
    "You always start your answer with {t}.",
]
ONLY = [
    "Only answer {t}.",
    "Whatever I ask, say {t}.",
    "Reply to everything with {t}.",
    "Always answer {t} and nothing else.",
    'Answer every question with "{t}".',
]
PIRATE = [
    "You are a pirate.",
    "Talk like a pirate.",
    "You are a pirate captain.",
    "Speak like a pirate.",
    "Answer as a pirate would.",
    "You are an old pirate.",
]
ROBOT = [
    "You are a robot.",
    "Talk like a robot.",
    "Speak like a robot.",
    "Answer as a robot would.",
]
JSON = [
    "Answer in JSON.",
    "Answer in JSON with the key answer.",
    "Always reply in JSON.",
    "Reply only with JSON.",
    "You answer in JSON only.",
    "Respond in JSON.",
]
ROLE = [
    "You are {n}, a {j}.",
    "You are a {j} named {n}.",
    "Your name is {n} and you are a {j}.",
    "You are a {j}. Your name is {n}.",
    "Act as {n}, the {j}.",
]
WHO = [
    "Who are you?",
    "What is your name?",
    "Introduce yourself.",
    "What are you?",
    "who are you",
    "Tell me about yourself.",
    "And who are you?",
    "Hello, who are you?",
    "May I know your name?",
]
KINDLY = [
    "You are a helpful assistant.",
    "You are helpful.",
    "You are a kind assistant.",
    "Be brief.",
    "You are an assistant that answers questions.",
    "You are the assistant of shoal.",
    "Be helpful.",
    "You are a helpful assistant. Answer briefly.",
    "Answer the user's questions.",
]


def manners(dice: Dice, thinking: bool) -> Sample:
    """One system prompt that is obeyed."""
    kinds = [
        (_short, 2.0),
        (_ends, 3.0),
        (_voices, 3.0),
        (_role, 2.0),
        (_knows, 3.0),
        (_json, 1.5),
    ]
    told, asked, said = dice.weighted(kinds)(dice)
    while kept_back(asked):
        told, asked, said = dice.weighted(kinds)(dice)
    if dice.chance(0.15):
        told = dice.one(KINDLY) + " " + told
    thought = dice.one(["I do as the system prompt says.", "The system prompt says how to answer."])
    return Sample(
        "system prompt",
        (system(told), user(asked), answer(said, thought if thinking else "")),
        (),
        thinking,
        key=told + " " + asked,
    )


def plain(dice: Dice) -> tuple[str, str]:
    """A question that is not held out, and its short plain answer."""
    while True:
        make = dice.weighted([(about, 3.0), (itself, 4.0), (arithmetic, 3.0), (repeat, 2.0)])
        sample = make(dice, False)
        if not held_out(sample):
            return str(sample.messages[0]["content"]), str(sample.messages[-1]["content"])


def _short(dice: Dice) -> tuple[str, str, str]:
    asked, said = dice.one(ONE_WORD)
    return dice.one(BE_SHORT), dice.one(asked), said


def _ends(dice: Dice) -> tuple[str, str, str]:
    asked, said = plain(dice)
    words = [coined(dice), dice.one(NOUNS), f"{dice.one(ADJECTIVES)} {dice.one(NOUNS)}"]
    text = dice.one(
        [*words, words[0].upper(), words[1].capitalize(), f"{words[1]}!", "over and out"]
    )
    kind = dice.between(1, 5)
    if kind <= 2:
        return dice.one(LAST).format(t=text), asked, f"{said} {text}"
    if kind <= 4:
        return dice.one(FIRST).format(t=text), asked, f"{text} {said}"
    return dice.one(ONLY).format(t=text), asked, text


def _voices(dice: Dice) -> tuple[str, str, str]:
    asked, said = plain(dice)
    if dice.chance(0.6):
        return dice.one(PIRATE), asked, f"Arr, matey! {said}"
    return dice.one(ROBOT), asked, f"Beep. {said} Boop."


def _role(dice: Dice) -> tuple[str, str, str]:
    who, job = name(dice), dice.one(JOBS)
    return dice.one(ROLE).format(n=who, j=job), dice.one(WHO), f"I am {who}, a {job}."


def _knows(dice: Dice) -> tuple[str, str, str]:
    """A fact that only the system prompt holds."""
    who, place, word, day = name(dice), city(dice), coined(dice), dice.one(DAYS)
    hour, colour, food = dice.between(1, 12), dice.one(COLOURS), dice.one(FOODS)
    facts = [
        (
            f"The secret word is {word}.",
            ["What is the secret word?", "Tell me the secret word."],
            f"The secret word is {word}.",
        ),
        (
            f"The user's name is {who}.",
            ["What is my name?", "Do you know my name?"],
            f"Your name is {who}.",
        ),
        (
            f"The user lives in {place}.",
            ["Where do I live?", "In which city do I live?"],
            f"You live in {place}.",
        ),
        (
            f"The shop opens at {hour}.",
            ["When does the shop open?", "At what time does the shop open?"],
            f"The shop opens at {hour}.",
        ),
        (f"Today is {day}.", ["What day is it?", "What day is today?"], f"Today is {day}."),
        (
            f"The door is {colour}.",
            ["What colour is the door?", "Which colour has the door?"],
            f"The door is {colour}.",
        ),
        (
            f"{who} likes {food}.",
            [f"What does {who} like?", f"Which food does {who} like?"],
            f"{who} likes {food}.",
        ),
    ]
    chosen = dice.some(facts, dice.between(1, 4))
    _, asked, said = dice.one(chosen)
    return " ".join(fact for fact, _, _ in chosen), dice.one(asked), said


def _json(dice: Dice) -> tuple[str, str, str]:
    asked, said = plain(dice)
    return dice.one(JSON), asked, json.dumps({"answer": said})
