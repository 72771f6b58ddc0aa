"""The words that samples are made of.

Pure. Common words come from lists; `coined` makes words that no list holds, so that
copying is learned as copying and not as knowing the word.
"""

from __future__ import annotations

from tests.tiny_model.dice import Dice


def listed(words: str) -> list[str]:
    """The words of a text."""
    return words.split()


NAMES = listed("""
Ada Ben Cara Dan Eva Finn Gina Hugo Ines Jack Kira Leo Mia Noah Olga Paul Quinn Rosa Sam
Tara Uma Vera Will Xena Yara Zoe Alice Bob Carol David Emma Frank Grace Henry Iris James Kate Liam
Maria Nina Oscar Petra Ravi Sara Tom Anna Peter Lucy Max Clara Theo Julia Omar Lena Ivan Maya
Felix Nora Simon Elsa Bruno Dora Emil Fatima Gustav Hana Igor Jana Karim Luca Mara Nils Otto Priya
Rita Stefan Tina Viktor Wendy Yusuf John Mary Anton Bella
""")
CITIES = listed("""
Paris London Berlin Rome Madrid Vienna Prague Oslo Lisbon Dublin Athens Warsaw Tokyo Kyoto
Delhi Mumbai Cairo Lagos Nairobi Boston Chicago Denver Seattle Austin Toronto Lima Quito Bogota
Sydney Perth Zurich Geneva Munich Hamburg Milan Naples Turin Lyon Nice Porto Krakow Riga Tallinn
Helsinki Stockholm Bergen Reykjavik Moscow Istanbul Ankara Tehran Baghdad Karachi Dhaka Bangkok
Hanoi Manila Jakarta Seoul Beijing Shanghai Taipei Osaka Auckland Havana Santiago Amsterdam
Brussels Antwerp Ghent Basel Bern Graz Brno Budapest Sofia Zagreb
""")
TWO_WORD_CITIES = [
    "New York",
    "San Francisco",
    "Los Angeles",
    "Cape Town",
    "Buenos Aires",
    "Hong Kong",
    "Mexico City",
    "Tel Aviv",
    "Abu Dhabi",
    "Kuala Lumpur",
    "Sao Paulo",
    "San Diego",
]
COUNTRIES = listed("""
France Spain Italy Germany Japan China India Brazil Canada Mexico Norway Sweden Poland
Greece Egypt Kenya Peru Chile Turkey Ireland Austria Portugal
""")
ANIMALS = listed("""
fish whale crab otter seal shark dolphin turtle octopus squid gull duck fox bear cat dog
mouse owl rabbit horse cow goat sheep frog bee ant snail hedgehog wolf deer lion tiger monkey
elephant penguin parrot swan goose hen pig badger mole bat spider lizard eel salmon herring
""")
ADJECTIVES = listed("""
small big red blue green old young brave quiet happy sad kind clever slow quick warm cold
bright dark soft loud gentle shy proud tired hungry silver golden strange round tall tiny huge calm
wild lazy busy friendly lonely curious honest careful funny lucky wise yellow purple white black
heavy light empty deep sharp sweet fresh
""")
NOUNS = listed("""
river table window garden lamp book stone tree house boat bridge cloud star moon sun sea lake
mountain valley road door key box cup plate spoon chair bed clock bell ship sail rope net map coin
letter song drum flute kite ball hat coat shoe ring apple pear bread cheese soup tea milk honey salt
sugar pepper rice bean carrot onion potato lemon cherry plum grape nut leaf flower grass seed root
sand shell wave wind rain snow ice fire smoke dust paper pencil brush wheel engine train market
school castle tower village island forest field farm mill harbour lighthouse cave pond well cable
machine server network message signal button screen basket candle mirror carpet pillow blanket
ladder hammer needle thread bottle barrel wagon lantern
""")
VERBS = listed("""
run walk swim sing dance read write cook sleep climb jump paint build dig fly draw listen laugh
wait think play hide search wander rest work help dream
""")
COLOURS = listed("red blue green yellow purple orange white black pink brown grey silver gold")
FOODS = listed("""
pizza soup bread cheese rice pasta salad cake pancakes noodles curry stew toast apples grapes
cherries cookies sushi tacos beans
""")
JOBS = listed("""
teacher baker doctor farmer sailor painter cook nurse pilot writer engineer singer gardener
builder carpenter driver
""")
HOBBIES = listed("""
reading chess painting sailing hiking swimming cooking gardening running fishing music
knitting cycling dancing photography
""")
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("""
January February March April May June July August September October November
December
""")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
EVERYDAY = NOUNS + ADJECTIVES + VERBS + ANIMALS + FOODS

_HEADS = listed("b c d f g h j k l m n p r s t v w z br cr dr fl gr kl pl pr sh sl sn st tr th ch")
_VOWELS = listed("a e i o u a e i o ai ea oo ou ee")
_TAILS = listed("b d g k l m n p r s t x z nd nt rk st ck sh ng")


def coined(dice: Dice) -> str:
    """A word that nobody has used."""
    parts = [
        dice.one(_HEADS) + dice.one(_VOWELS) + (dice.one(_TAILS) if dice.chance(0.4) else "")
        for _ in range(dice.between(1, 3))
    ]
    return "".join(parts)


def scrambled(dice: Dice, least: int = 3, most: int = 8) -> str:
    """Letters in no order, sometimes with digits: the hardest thing to copy."""
    alphabet = LETTERS + ("0123456789" if dice.chance(0.4) else "")
    word = "".join(dice.one(alphabet) for _ in range(dice.between(least, most)))
    return word.upper() if dice.chance(0.3) else word


def any_word(dice: Dice) -> str:
    """Mostly everyday words, some coined, some capitalised."""
    kind = dice.between(1, 10)
    if kind <= 5:
        return dice.one(EVERYDAY)
    if kind <= 7:
        return coined(dice)
    if kind == 8:
        return coined(dice).capitalize()
    if kind == 9:
        return dice.one(NAMES + CITIES)
    return scrambled(dice)


def name(dice: Dice) -> str:
    """A person's name, known or coined."""
    return coined(dice).capitalize() if dice.chance(0.25) else dice.one(NAMES)


def city(dice: Dice) -> str:
    """A city's name, known or coined."""
    kind = dice.between(1, 10)
    if kind <= 6:
        return dice.one(CITIES)
    return coined(dice).capitalize() if kind <= 8 else dice.one(TWO_WORD_CITIES)


def sentence(dice: Dice) -> str:
    """A short plain sentence without its full stop."""
    adjective, noun = dice.one(ADJECTIVES), dice.one(NOUNS)
    return dice.one(
        [
            f"the {adjective} {dice.one(ANIMALS)} likes the {noun}",
            f"{name(dice)} has a {adjective} {noun}",
            f"the {noun} is {adjective} and {dice.one(ADJECTIVES)}",
            f"my {dice.one(ANIMALS)} can {dice.one(VERBS)} and {dice.one(VERBS)}",
            f"we {dice.one(VERBS)} near the {adjective} {noun}",
            f"{name(dice)} went to {city(dice)} with a {noun}",
            f"there are {dice.between(2, 99)} {dice.one(ANIMALS)}s in the {noun}",
            f"please bring the {adjective} {noun} to {name(dice)}",
            f"I saw a {adjective} {noun} on {dice.one(DAYS)}",
        ]
    )
