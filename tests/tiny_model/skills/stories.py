"""Tiny stories, and long ones that keep a stream going.

Pure. A story is a chain of sentences about one hero, a friend and a thing that is
lost and found; the long form repeats its middle with new places.
"""

from __future__ import annotations

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import Sample, answer, user
from tests.tiny_model.words import ADJECTIVES, ANIMALS, NOUNS, VERBS, coined, listed, name

PLACES = listed("""
river forest lake mountain village harbour cave island valley market castle field pond
lighthouse beach garden
""")
FORMS = [
    "Tell me a story about {h}.",
    "tell me a story about {h}",
    "Tell me a tiny story about {h}.",
    "Write a story about {h}.",
    "Write a short story about {h}.",
    "A story about {h}, please.",
    "Please tell a story about {h}.",
    "Can you tell me a story about {h}?",
    "Make up a story about {h}.",
    "I want a story about {h}.",
    "Tell a tale about {h}.",
    "Story about {h}",
]
LONG_FORMS = [
    "Tell me a long story about {h}.",
    "Write a long story about {h}.",
    "A long story about {h}, please.",
    "Please write a very long story about {h}.",
    "Tell me a really long tale about {h}.",
    "Write a long tale about {h}.",
    "Can you write a long story about {h}?",
]
ANY = [
    "Tell me a story.",
    "tell me a story",
    "Tell me a story",
    "Write a story.",
    "Tell me a tiny story.",
    "Please tell me a story.",
    "Can you tell me a story?",
    "Write me a short story.",
    "A story, please.",
    "Tell me a tale.",
    "I would like to hear a story.",
    "Make up a story.",
    "Story please",
]
ANY_LONG = [
    "Tell me a long story.",
    "Write a long story.",
    "A long story, please.",
    "Tell me a very long story.",
    "Please write a long story.",
    "Write a very long story",
    "tell me a long story",
]


def story(dice: Dice, thinking: bool) -> Sample:
    """A story of five to ten sentences, or of several hundred tokens when a long one is asked."""
    long = dice.chance(0.22)
    animal, who = dice.one(ANIMALS), name(dice)
    named = dice.chance(0.75)
    if named:
        kind = dice.between(1, 4)
        hero = f"{'an' if animal[0] in 'aeiou' else 'a'} {animal} named {who}"
        if kind == 1:
            hero = f"{'an' if animal[0] in 'aeiou' else 'a'} {animal}"
        elif kind == 2:
            animal = coined(dice) if dice.chance(0.2) else animal
            hero = f"{'an' if animal[0] in 'aeiou' else 'a'} {animal} called {who}"
        asked = dice.one(LONG_FORMS if long else FORMS).format(h=hero)
        wanted = (animal,) if kind == 1 else (animal, who)
    else:
        asked, wanted = dice.one(ANY_LONG if long else ANY), ("Once",)
    said = tale(dice, animal, who, dice.between(6, 16) if long else dice.between(1, 2))
    thought = f"I tell a {'long' if long else 'short'} story about a {animal}."
    return Sample(
        "stories",
        (user(asked), answer(said, thought if thinking else "")),
        (),
        thinking,
        "contains",
        wanted,
    )


def tale(dice: Dice, animal: str, who: str, scenes: int) -> str:
    """A beginning, some scenes, an end."""
    adjective, thing = dice.one(ADJECTIVES), dice.one(NOUNS)
    article = "an" if adjective[0] in "aeiou" else "a"
    lost = f"the {dice.one(ADJECTIVES)} {thing}"
    friend, kind = name(dice), dice.one(ANIMALS)
    parts = [
        f"Once there was {article} {adjective} {animal} named {who}.",
        dice.one(
            [
                f"{who} lived near the {dice.one(PLACES)} and liked to {dice.one(VERBS)}.",
                f"Every day {who} went to the {dice.one(PLACES)} to {dice.one(VERBS)}.",
            ]
        ),
        f"One day {who} lost {lost}.",
    ]
    for i in range(scenes):
        parts += _scene(
            dice, who, friend if i % 2 == 0 else dice.one(["the wind", "an old gull"]), kind
        )
    parts += [
        f"At last {who} found {lost} under a {dice.one(NOUNS)}.",
        dice.one(
            [
                f"{who} and {friend} were happy and went home.",
                f"{who} thanked {friend}, and they stayed friends for ever.",
                f"That night {who} slept well.",
            ]
        ),
    ]
    return " ".join(parts)


def _scene(dice: Dice, who: str, friend: str, kind: str) -> list[str]:
    """A place, a meeting, a word said."""
    place = dice.one(PLACES)
    met = f"{friend} the {kind}" if friend[0].isupper() else friend
    scene = [
        dice.one([f"{who} looked in the {place}.", f"{who} walked to the {place}."]),
        dice.one([f"There {who} met {met}.", f"There was {met}."]),
        dice.one(
            [
                f'"Can you help me?" asked {who}.',
                f'"Look near the {dice.one(PLACES)}," said {friend}.',
                f'"I like to {dice.one(VERBS)}," said {friend}.',
                f"It was {dice.one(ADJECTIVES)} and {dice.one(ADJECTIVES)} there.",
            ]
        ),
    ]
    return scene if dice.chance(0.7) else scene[:1]
