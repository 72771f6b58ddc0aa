"""Saying again what was said, and small games with words.

Pure. Half of the words are coined or scrambled, so that only copying helps.
"""

from __future__ import annotations

from tests.tiny_model.dice import Dice
from tests.tiny_model.sample import Sample, answer, user
from tests.tiny_model.words import any_word, sentence

FORMS = [
    "Repeat after me: {t}",
    "repeat after me: {t}",
    "Please repeat after me: {t}",
    "Repeat: {t}",
    "Repeat this: {t}",
    "Say: {t}",
    "Say this: {t}",
    "Repeat after me\n{t}",
    "Repeat the words {t}",
    "Echo: {t}",
    "Repeat exactly: {t}",
    "Repeat the following: {t}",
    "Please say: {t}",
    "Say exactly this: {t}",
    "Copy this text: {t}",
    "Repeat back to me: {t}",
    "Write this: {t}",
    "Repeat this text: {t}",
    "Say only this: {t}",
    "Please echo this back: {t}",
    "Repeat the following text exactly:\n{t}",
    "Output exactly: {t}",
    "Reply with exactly: {t}",
]
QUOTED = [
    'Say "{t}"',
    'Repeat "{t}"',
    'Please say "{t}".',
    'Repeat after me: "{t}"',
    'Just say "{t}"',
    'Repeat the word "{t}"',
    'Write "{t}" and nothing else.',
    'Answer with "{t}"',
    "Say '{t}'",
    "Repeat '{t}' exactly.",
    'Reply with "{t}".',
]


def repeat(dice: Dice, thinking: bool) -> Sample:
    """Words, coined words or a sentence, said back unchanged."""
    kind = dice.between(1, 10)
    if kind <= 6:
        said = " ".join(any_word(dice) for _ in range(dice.between(1, 8)))
    elif kind <= 9:
        said = sentence(dice)
        said = said[0].upper() + said[1:] if dice.chance(0.5) else said
        said += dice.one(["", ".", "!", "?"])
    else:
        said = ", ".join(any_word(dice) for _ in range(dice.between(2, 6)))
    asked = dice.one(QUOTED if dice.chance(0.25) else FORMS).format(t=said)
    thought = dice.one(["I say the same words again.", "The user wants the words repeated."])
    return Sample(
        "repeat", (user(asked), answer(said, thought if thinking else "")), thinking=thinking
    )


def word_games(dice: Dice, thinking: bool) -> Sample:
    """First or last of a list, upper case, how many, repeated n times, spelled."""
    words = [any_word(dice) for _ in range(dice.between(3, 6))]
    listed, word = ", ".join(words), words[0]
    times = dice.between(2, 5)
    asked, said = dice.one(
        [
            (f"What is the first word in this list: {listed}?", words[0]),
            (f"What is the last word in this list: {listed}?", words[-1]),
            (f"Give me the first of these: {listed}", words[0]),
            (f"Give me the last of these: {listed}", words[-1]),
            (f"Which word comes second: {listed}?", words[1]),
            (f"Which word comes after {words[1]} in this list: {listed}?", words[2]),
            (f"How many words are in this list: {listed}?", str(len(words))),
            (f"Say {word} {times} times.", " ".join([word] * times)),
            (f'Repeat the word "{word}" {times} times.', " ".join([word] * times)),
            (f"Write these as a list with dashes: {listed}", "\n".join(f"- {w}" for w in words)),
            (
                f"Make a numbered list of these: {listed}",
                "\n".join(f"{i}. {w}" for i, w in enumerate(words, 1)),
            ),
            (f"Join these with plus signs: {listed}", " + ".join(words)),
            (f"Put these words in quotes: {listed}", ", ".join(f'"{w}"' for w in words)),
        ]
    )
    thought = dice.one(["I look at the list.", "I go through the words in order."])
    return Sample(
        "word games", (user(asked), answer(said, thought if thinking else "")), thinking=thinking
    )
