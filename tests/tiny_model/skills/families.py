"""The familiar tools: under which names, with which parameters, asked for how, returning what.

Pure data, with the draws of each parameter's value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.tiny_model.dice import Dice
from tests.tiny_model.words import (
    ADJECTIVES,
    ANIMALS,
    DAYS,
    FOODS,
    MONTHS,
    NOUNS,
    city,
    coined,
    listed,
    name,
    sentence,
)

Draw = Callable[[Dice], Any]
LANGUAGES = listed("French German Spanish Italian Dutch Polish Greek Latin Swedish Danish")
MONEY = listed("USD EUR GBP JPY CHF SEK NOK DKK CAD AUD")
ROOMS = listed("kitchen bedroom bathroom hall garage office attic cellar study")


@dataclass(frozen=True)
class Slot:
    """One parameter: the names it may have, its JSON type and how a value is drawn."""

    names: str
    kind: str
    draw: Draw
    about: str


@dataclass(frozen=True)
class Family:
    """A familiar tool: names, description, slots, and questions with {0}, {1} for values."""

    names: str
    about: str
    slots: tuple[Slot, ...]
    asks: tuple[str, ...]
    results: tuple[str, ...]


def drawn_int(low: int, high: int) -> Draw:
    return lambda dice: dice.between(low, high)


def drawn_of(options: list[str]) -> Draw:
    return lambda dice: dice.one(options)


CITY = Slot("city city city location place town city_name", "string", city, "The city")
PERSON = Slot("to person name recipient user contact", "string", name, "The person")
TEXT = Slot("text message content body", "string", sentence, "The text")
TOPIC = Slot(
    "query q topic search term",
    "string",
    lambda d: d.one(
        [d.one(NOUNS), f"{d.one(ADJECTIVES)} {d.one(NOUNS)}", coined(d), d.one(ANIMALS)]
    ),
    "What to search for",
)
LEFT = Slot("a x left first", "integer", drawn_int(0, 999), "First number")
RIGHT = Slot("b y right second", "integer", drawn_int(0, 999), "Second number")

FAMILIES = (
    Family(
        "get_weather get_weather get_weather weather fetch_weather current_weather getWeather "
        "get_current_weather weather_lookup",
        "Get the weather for a city",
        (CITY,),
        (
            "What is the weather in {0}?",
            "what's the weather in {0}",
            "How is the weather in {0}?",
            "What's the weather like in {0}?",
            "Is it raining in {0}?",
            "Weather in {0}?",
            "Tell me the weather in {0}.",
            "How warm is it in {0}?",
            "Is it cold in {0} today?",
            "Do I need a coat in {0}?",
            "Check the weather for {0}.",
            "What is the weather in {0} now?",
        ),
        (
            '{{"temperature": {n}, "condition": "{w}"}}',
            "{n} degrees and {w}",
            "{w}, {n}C",
            '{{"temp": {n}, "sky": "{w}"}}',
            '{{"city": "{0}", "temperature": {n}}}',
            "{w}",
        ),
    ),
    Family(
        "get_time current_time time_in getTime local_time clock",
        "Get the local time in a city",
        (CITY,),
        (
            "What time is it in {0}?",
            "Tell me the time in {0}.",
            "What is the local time in {0}?",
            "How late is it in {0}?",
            "Time in {0}?",
            "what time is it in {0}",
        ),
        ("{n}:{m}", '{{"time": "{n}:{m}"}}', '{{"hour": {n}, "minute": {m}}}'),
    ),
    Family(
        "add sum add_numbers plus calculate_sum",
        "Add two numbers",
        (LEFT, RIGHT),
        (
            "What is {0} plus {1}?",
            "Add {0} and {1}.",
            "Use the tool to add {0} and {1}.",
            "Please add {0} and {1}",
            "Compute {0} + {1}.",
            "What is {0} + {1}?",
            "Sum {0} and {1}.",
        ),
        ("{k}", '{{"result": {k}}}', '{{"sum": {k}}}'),
    ),
    Family(
        "multiply times product mul",
        "Multiply two numbers",
        (LEFT, RIGHT),
        (
            "What is {0} times {1}?",
            "Multiply {0} by {1}.",
            "Multiply {0} and {1}",
            "Compute {0} * {1}.",
            "What is the product of {0} and {1}?",
        ),
        ("{k}", '{{"result": {k}}}', '{{"product": {k}}}'),
    ),
    Family(
        "search web_search search_web find lookup google",
        "Search the web",
        (TOPIC,),
        (
            "Search for {0}.",
            "Search the web for {0}",
            "Find something about {0}.",
            "Look up {0}.",
            "Please search for {0}.",
            "Can you look up {0}?",
            "Find out about {0}.",
        ),
        ('{{"title": "{w} {w2}", "hits": {k}}}', "{k} pages about {0}", "{w2} and {w}"),
    ),
    Family(
        "send_message send_text message sendMessage notify",
        "Send a message to a person",
        (PERSON, TEXT),
        (
            'Send {0} the message "{1}".',
            "Tell {0} that {1}.",
            "Send a message to {0}: {1}",
            "Write to {0}: {1}",
            "Message {0}: {1}",
            "Let {0} know that {1}.",
        ),
        ("sent", '{{"status": "sent"}}', '{{"ok": true, "id": {k}}}'),
    ),
    Family(
        "set_timer timer start_timer setTimer countdown",
        "Start a timer",
        (Slot("minutes duration minutes mins", "integer", drawn_int(1, 120), "How many minutes"),),
        (
            "Set a timer for {0} minutes.",
            "Start a timer of {0} minutes.",
            "Timer for {0} minutes",
            "Wake me in {0} minutes.",
            "Set the timer to {0} minutes please.",
        ),
        ("timer set", '{{"status": "running"}}', '{{"id": {k}}}'),
    ),
    Family(
        "translate translate_text translator",
        "Translate a text into a language",
        (
            TEXT,
            Slot("language target lang target_language", "string", drawn_of(LANGUAGES), "Language"),
        ),
        (
            'Translate "{0}" into {1}.',
            "Translate this to {1}: {0}",
            "How do you say {0} in {1}?",
            'Say "{0}" in {1}.',
        ),
        ("{w2} {w}", '{{"translation": "{w2} {w}"}}'),
    ),
    Family(
        "convert_currency convert exchange currency_converter",
        "Convert money",
        (
            Slot("amount value sum", "integer", drawn_int(1, 9999), "Amount"),
            Slot("from source from_currency", "string", drawn_of(MONEY), "Currency now"),
            Slot("to target to_currency", "string", drawn_of(MONEY), "Currency wanted"),
        ),
        (
            "Convert {0} {1} to {2}.",
            "How much is {0} {1} in {2}?",
            "Exchange {0} {1} for {2}.",
            "What are {0} {1} worth in {2}?",
        ),
        ("{k}", '{{"amount": {k}}}', '{{"result": {k}, "rate": {n}}}'),
    ),
    Family(
        "turn_on_light light_on switch_on_light lights",
        "Switch on the light in a room",
        (Slot("room place location", "string", drawn_of(ROOMS), "The room"),),
        (
            "Turn on the light in the {0}.",
            "Light in the {0} please.",
            "Switch on the {0} light.",
            "Make it bright in the {0}.",
        ),
        ("on", '{{"status": "on"}}', "done"),
    ),
    Family(
        "book_table reserve_table book reservation",
        "Book a table in a restaurant",
        (
            Slot("name guest", "string", name, "Name"),
            Slot("people guests count", "integer", drawn_int(1, 12), "How many"),
            Slot("day date", "string", drawn_of(DAYS), "Day"),
        ),
        (
            "Book a table for {1} people on {2}, name {0}.",
            "Reserve a table for {1} on {2} for {0}.",
            "{0} wants a table for {1} on {2}.",
        ),
        ("booked", '{{"status": "booked", "table": {n}}}'),
    ),
    Family(
        "create_event add_event calendar_add schedule",
        "Add an event to the calendar",
        (
            Slot(
                "title event name",
                "string",
                lambda d: f"{d.one(ADJECTIVES)} {d.one(NOUNS)}",
                "Title",
            ),
            Slot("month when", "string", drawn_of(MONTHS), "Month"),
            Slot("day date", "integer", drawn_int(1, 28), "Day of the month"),
        ),
        (
            'Add "{0}" to my calendar on {1} {2}.',
            "Put {0} on {1} {2} in my calendar.",
            "Create an event called {0} on {1} {2}.",
        ),
        ("added", '{{"id": {k}}}', '{{"status": "added"}}'),
    ),
    Family(
        "play_music play play_song music_player",
        "Play music",
        (
            Slot(
                "artist song title", "string", lambda d: d.one([name(d), coined(d)]), "What to play"
            ),
        ),
        ("Play {0}.", "Play some {0}.", "I want to hear {0}.", "Play music by {0}."),
        ("playing", '{{"status": "playing"}}'),
    ),
    Family(
        "read_file open_file cat get_file",
        "Read a file",
        (
            Slot(
                "path file filename",
                "string",
                lambda d: (
                    f"{d.one(['', '/tmp/', 'docs/'])}{d.one(NOUNS)}.{d.one(['txt', 'md', 'py'])}"
                ),
                "Path",
            ),
        ),
        ("Read the file {0}.", "Open {0}.", "What is in {0}?", "Show me {0}."),
        ("{w} {w2}", '{{"text": "{w2}"}}'),
    ),
    Family(
        "order_food order food_order",
        "Order food",
        (
            Slot("dish food item", "string", drawn_of(FOODS), "What to order"),
            Slot("count amount quantity", "integer", drawn_int(1, 9), "How many"),
        ),
        ("Order {1} {0}.", "I want {1} {0}.", "Please order {1} portions of {0}."),
        ("ordered", '{{"status": "ordered", "minutes": {n}}}'),
    ),
    Family(
        "get_user lookup_user find_user user_info",
        "Find a user by number",
        (Slot("id user_id number", "integer", drawn_int(1, 9999), "The user's number"),),
        ("Who is user {0}?", "Find user {0}.", "Show user number {0}.", "Look up user {0}."),
        ('{{"name": "{p}", "age": {n}}}', "{p}", '{{"name": "{p}", "city": "{c}"}}'),
    ),
)
