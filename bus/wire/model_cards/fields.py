"""What a `card.toml` beside a model's weights may say: of loading it, and of requests for it.

Pure. A card is taken whole or refused whole: an unknown key, or one whose value cannot be, refuses
it with a suggestion and its line, and the model is served without it. What it says to requests goes
the way of derived models (`bus.wire.messages.derived`): as defaults of what a request leaves
unsaid.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from bus.wire.errors import first_problem
from bus.wire.ids import ModelId, is_model_id
from bus.wire.kv import KvKind, not_a_kind
from bus.wire.lora import is_adapter_name
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.requests import Sampling
from bus.wire.model_cards.parsers import REASONING_PARSERS, TOOL_PARSERS
from bus.wire.shares import MAX_PRIORITY, PRIORITIES

CARD_FILE = "card.toml"
CARD_BYTES = 64 << 10
SAID_BYTES = 16 << 10
"""What one card may say to requests: it goes to all nodes each half minute."""
MOST_ALIASES, MOST_STOPS, STOP_CHARACTERS = 16, 16, 200
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_KEY = re.compile(r"""[ \t]*\[{0,2}[ \t]*["']?([A-Za-z0-9_-]+)""")
FOR_PEOPLE = ("name", "summary", "license")
NOT_YET = frozenset({"draft_model"})
"""Keys that are to come with the code that obeys them."""
MEANT = {
    "alias": "aliases", "num_ctx": "context_tokens", "context": "context_tokens",
    "max_context": "context_tokens", "num_predict": "default_max_tokens",
    "max_tokens": "default_max_tokens", "keep_alive": "keep_alive_s", "ttl": "keep_alive_s",
    "repeat_penalty": "repetition_penalty", "system_prompt": "system", "temp": "temperature",
    "think": "thinking_default", "thinking": "thinking_default",
    "enable_thinking": "thinking_default", "kv_backend": "kv", "kv_bits": "kv", "pinned": "pin",
    "x_priority": "priority", "fast_synch": "metal_fast_synch", "lora": "adapters",
    "storage_size": "memory_bytes", "tool_call_parser": "tool_parser",
    "special_tokens": "special_tokens_in_messages",
}  # fmt: skip
"""What others call our keys, where spelling is no guide."""
OLLAMA_WORDS = {"repetition_penalty": "repeat_penalty"}
NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
    "repetition_penalty",
)  # fmt: skip
"""How the next token is chosen, by the names of `Sampling`."""

NEUTRAL = Sampling()


class BadCard(ValueError):
    """A card that is refused: why, and the way out behind a semicolon where there is one. `key` is
    the one at fault (empty: none), `line` where it stands, from 1 on (0: not known)."""

    def __init__(self, why: str, key: str = "", line: int = 0) -> None:
        super().__init__(why)
        self.key = key
        self.line = line


@dataclass(frozen=True, slots=True)
class Notes:
    """What a card says beyond the model's own files. None, or empty: nothing said.

    `context_tokens` may lower, never raise, what the model was made for. `default_max_tokens` is
    what an answer may have unless its request names another limit. Backends are
    `<engine>-<compute>` tags: those that can run it (empty: any), and which are better, in order.
    `kv` is how its KV is held, and goes before the node's setting. `pin` keeps it in memory.
    `priority` is that of requests that name none. `memory_bytes` are what its weights take in
    memory, before what its files say. `adapters` are those that are loaded (None: all that lie
    beside it), `adapter` the one of requests that name none. The parsers are those of
    `bus.wire.model_cards.parsers` (empty: as its template says). `special_tokens_in_messages`:
    those that messages spell are tokens, not text. `said` are the keys that the card
    has. `template` is in Go's language, of an earlier build, and requests are refused for it.
    """

    thinking_default: bool | None = None
    context_tokens: int | None = None
    keep_alive_s: float | None = None
    default_max_tokens: int | None = None
    compatible_backends: tuple[str, ...] = ()
    backend_preference: tuple[str, ...] = ()
    aliases: tuple[ModelId, ...] = ()
    system: str = ""
    template: str = ""
    stop: tuple[str, ...] = ()
    sampling: Sampling = NEUTRAL
    said: tuple[str, ...] = ()
    kv: KvKind | None = None
    pin: bool = False
    priority: int | None = None
    memory_bytes: int = 0
    metal_fast_synch: bool | None = None
    adapters: tuple[str, ...] | None = None
    adapter: str = ""
    tool_parser: str = ""
    reasoning_parser: str = ""
    special_tokens_in_messages: bool = False

    def defaults(self, model: ModelId, *, can_think: bool) -> DerivedModel | None:
        """Return what a request for the model gets where it says nothing itself; None: nothing."""
        sampled = tuple(sorted(self.sampling.model_fields_set))
        shown: dict[str, Any] = {
            OLLAMA_WORDS.get(name, name): getattr(self.sampling, name) for name in sampled
        }
        if self.stop:
            shown["stop"] = list(self.stop)
        said = DerivedModel(
            name=model,
            base=model,
            system=self.system,
            template=self.template,
            sampling=self.sampling,
            sampled=sampled,
            stop=self.stop,
            thinking=self.thinking_default if can_think else None,
            parameters=shown,
            priority=self.priority,
            adapter=self.adapter,
        )
        return None if said == DerivedModel(name=model, base=model) else said


def read_card(data: bytes) -> Notes:
    """Return what the bytes of a card say. Raises BadCard for one that is refused, with the line
    that is at fault."""
    if len(data) > CARD_BYTES:
        raise BadCard(f"it has more than {CARD_BYTES >> 10} KiB")
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise BadCard(f"it is no text in UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise BadCard("it is too deep") from error
    except ValueError as error:
        found = _AT_LINE.search(str(error))
        raise BadCard(f"it is no TOML: {error}", line=int(found[1]) if found else 0) from error
    try:
        return notes_from(table)
    except BadCard as error:
        line = _line_of(text, error.key)
        why = f"line {line}: {error}" if line else str(error)
        raise BadCard(why, error.key, line) from error


def notes_from(table: Mapping[str, Any]) -> Notes:
    """Return what a card says. Raises BadCard with the first thing that refuses it."""
    check_keys(table)
    found = {key: _checked(check, key, table[key]) for key, check in CHECKS.items() if key in table}
    for key in FOR_PEOPLE:
        _checked(_text, key, table.get(key, ""))
    numbers = {key: table[key] for key in NUMBERS if key in table}
    wrong = next((key for key, value in numbers.items() if type(value) not in (int, float)), None)
    if wrong is not None:
        raise BadCard(f"{wrong} is a number", wrong)
    try:
        sampling = Sampling.model_validate(numbers)
    except ValidationError as error:
        key = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        raise BadCard(first_problem(error), key) from error
    notes = Notes(**found, sampling=sampling, said=tuple(table))
    if notes.adapter and notes.adapters is not None and notes.adapter not in notes.adapters:
        raise BadCard(f"adapter = {notes.adapter}: adapters, which are loaded, lack it", "adapter")
    if len(notes.system) + len(notes.template) + sum(map(len, notes.stop)) > SAID_BYTES:
        raise BadCard(f"system, template and stop have more than {SAID_BYTES >> 10} KiB together")
    return notes


def check_keys(keys: Iterable[str]) -> None:
    """Raise BadCard for the first key that no card has, with the one that may be meant."""
    unknown = next((key for key in keys if key not in KNOWN_KEYS), None)
    if unknown is not None:
        raise BadCard(_unknown(unknown), unknown)


def _checked(check: Callable[[str, object], Any], key: str, value: object) -> Any:
    try:
        return check(key, value)
    except ValueError as error:
        raise BadCard(str(error), key) from error


def _line_of(text: str, key: str) -> int:
    """Return the line on which a key of a card begins, from 1 on; 0 where it is not found. A line
    inside of a longer text is none: what is before it would be no TOML."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        found = _KEY.match(line)
        if not key or found is None or found[1] != key:
            continue
        try:
            tomllib.loads("".join(lines[: number - 1]))
        except ValueError:
            continue
        return number
    return 0


def _unknown(key: str) -> str:
    if key in NOT_YET:
        return f"{key} is not there yet; take it out of the card"
    near = [MEANT[key]] if key in MEANT else difflib.get_close_matches(key, KNOWN_KEYS, n=1)
    hint = f"is {near[0]} meant? " if near else ""
    return f"it has no key {key[:80]!r}; {hint}known are {', '.join(KNOWN_KEYS)}"


def _switch(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} is true or false")
    return value


def _count(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise ValueError(f"{key} is a whole number above 0")
    return value


def _seconds(key: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{key} is a number of seconds")
    return float(value)


def _priority(key: str, value: object) -> int:
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PRIORITY:
        return value
    raise ValueError(
        f"{key} is {', '.join(PRIORITIES)}, or a whole number from 0 (first) to {MAX_PRIORITY}"
    )


def _bytes(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 50:
        raise ValueError(f"{key} is a whole number of bytes above 0")
    return value


def _adapter(key: str, value: object) -> str:
    name = _text(key, value)
    if not is_adapter_name(name):
        raise ValueError(f"{key}: {name[:80]!r} is no name of an adapter, a folder in adapters/")
    return name


def _adapters(key: str, value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_adapter(key, one) for one in _texts(key, value)))


def _tool_parser(key: str, value: object) -> str:
    return _one_of(TOOL_PARSERS, key, value)


def _reasoning_parser(key: str, value: object) -> str:
    return _one_of(REASONING_PARSERS, key, value)


def _one_of(words: tuple[str, ...], key: str, value: object) -> str:
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{key} is one of {', '.join(words)}")
    return value


def _kv(key: str, value: object) -> KvKind:
    if (wrong := not_a_kind(value)) is not None:
        raise ValueError(f"{key} = {str(value)[:80]}: {wrong.replace(';', ',')}")
    return cast(KvKind, value)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is a text")
    return value


def _texts(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):  # pyright: ignore[reportUnknownVariableType]
        raise ValueError(f"{key} is a list of texts")
    return tuple(cast(list[str], value))


def _stops(key: str, value: object) -> tuple[str, ...]:
    stops = _texts(key, [value] if isinstance(value, str) else value)
    if len(stops) > MOST_STOPS or not all(0 < len(one) <= STOP_CHARACTERS for one in stops):
        raise ValueError(f"{key} has at most {MOST_STOPS} texts of 1 to {STOP_CHARACTERS} letters")
    return stops


def _aliases(key: str, value: object) -> tuple[ModelId, ...]:
    names = _texts(key, value)
    wrong = next((one for one in names if not is_model_id(one) or one.endswith(":latest")), None)
    if wrong is not None:
        raise ValueError(f"{key}: {wrong[:80]!r} cannot be the name of a model")
    if len(names) > MOST_ALIASES:
        raise ValueError(f"{key} has at most {MOST_ALIASES} names")
    return tuple(ModelId(one) for one in dict.fromkeys(names))


CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "aliases": _aliases,
    "system": _text,
    "template": _text,
    "stop": _stops,
    "thinking_default": _switch,
    "context_tokens": _count,
    "default_max_tokens": _count,
    "keep_alive_s": _seconds,
    "compatible_backends": _texts,
    "backend_preference": _texts,
    "kv": _kv,
    "pin": _switch,
    "priority": _priority,
    "memory_bytes": _bytes,
    "metal_fast_synch": _switch,
    "adapters": _adapters,
    "adapter": _adapter,
    "tool_parser": _tool_parser,
    "reasoning_parser": _reasoning_parser,
    "special_tokens_in_messages": _switch,
}
"""The keys that are obeyed beside `NUMBERS`, and what their values are."""
KNOWN_KEYS = (*CHECKS, *NUMBERS, *FOR_PEOPLE)
"""All keys that a card may have."""
