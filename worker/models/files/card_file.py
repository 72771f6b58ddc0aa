"""What a `card.toml` beside a model's weights says: of loading it, and of requests for it.

Pure. A card is taken whole or refused whole: an unknown key, or one whose value cannot be, refuses
it with a suggestion, and the model is served without it. What it says to requests goes the way of
derived models (`bus.wire.messages.derived`): as defaults of what a request leaves unsaid.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from pydantic import ValidationError

from bus.wire.codec import first_problem
from bus.wire.go_templates import TEMPLATE_BYTES, GoTemplateError, parse_template
from bus.wire.ids import ModelId, is_model_id
from bus.wire.kv import KvKind, not_a_kind
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.requests import Sampling
from worker.models.passed_over import Unfit

CARD_BYTES = 64 << 10
SAID_BYTES = 16 << 10
"""What one card may say to requests: it goes to all nodes each half minute."""
MOST_ALIASES, MOST_STOPS, STOP_CHARACTERS = 16, 16, 200
_ALIASES = re.compile(r"(?m)^[ \t]*aliases[ \t]*=[ \t]*\[([^\]]*)")
_QUOTED = re.compile(r"""["']([^"'\n]*)["']""")
FOR_PEOPLE = ("name", "summary", "license")
NOT_YET = frozenset({
    "adapters", "draft_model", "memory_bytes", "metal_fast_synch", "priority", "reasoning_parser",
    "tool_parser",
})  # fmt: skip
"""Keys that are to come with the code that obeys them."""
MEANT = {
    "alias": "aliases", "num_ctx": "context_tokens", "context": "context_tokens",
    "max_context": "context_tokens", "num_predict": "default_max_tokens",
    "max_tokens": "default_max_tokens", "keep_alive": "keep_alive_s", "ttl": "keep_alive_s",
    "repeat_penalty": "repetition_penalty", "system_prompt": "system", "temp": "temperature",
    "think": "thinking_default", "thinking": "thinking_default",
    "enable_thinking": "thinking_default", "kv_backend": "kv", "kv_bits": "kv", "pinned": "pin",
}  # fmt: skip
"""What others call our keys, where spelling is no guide."""
OLLAMA_WORDS = {"repetition_penalty": "repeat_penalty"}
NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
    "repetition_penalty",
)  # fmt: skip
"""How the next token is chosen, by the names of `Sampling`."""

NEUTRAL = Sampling()


@dataclass(frozen=True, slots=True)
class Notes:
    """What a card says beyond the model's own files. None, or empty: nothing said.

    `context_tokens` may lower, never raise, what the model was made for. `default_max_tokens` is
    what an answer may have unless its request names another limit. Backends are
    `<engine>-<compute>` tags: those that can run it (empty: any), and which are better, in order.
    `kv` is how its KV is held, and goes before the node's setting. `pin` keeps it in memory. `said`
    are the keys that the card has.
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
        )
        return None if said == DerivedModel(name=model, base=model) else said


def read_card(data: bytes) -> Notes:
    """Return what the bytes of a card say. Raises ValueError for one that is refused."""
    if len(data) > CARD_BYTES:
        raise ValueError(f"it has more than {CARD_BYTES >> 10} KiB")
    return notes_from(tomllib.loads(data.decode()))


def notes_from(table: Mapping[str, Any]) -> Notes:
    """Return what a card says. Raises ValueError with the first thing that refuses it."""
    for key in table:
        if key not in CHECKS and key not in NUMBERS and key not in FOR_PEOPLE:
            raise ValueError(_unknown(key))
    found = {key: check(key, table[key]) for key, check in CHECKS.items() if key in table}
    for key in FOR_PEOPLE:
        _text(key, table.get(key, ""))
    numbers = {key: table[key] for key in NUMBERS if key in table}
    wrong = next((key for key, value in numbers.items() if type(value) not in (int, float)), None)
    if wrong is not None:
        raise ValueError(f"{wrong} is a number")
    try:
        sampling = Sampling.model_validate(numbers)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    notes = Notes(**found, sampling=sampling, said=tuple(table))
    if len(notes.system) + len(notes.template) + sum(map(len, notes.stop)) > SAID_BYTES:
        raise ValueError(
            f"system, template and stop have more than {SAID_BYTES >> 10} KiB together"
        )
    return notes


def refused(error: Exception, data: bytes) -> Unfit:
    """Return what is said of a card that is refused, with the aliases that its bytes give, as far
    as they can be read; the model is served without it."""
    why, _, hint = str(error).partition("; ")
    remedy = hint or "mend it, or take it away; it is read again at once"
    why = f"card.toml is refused, all of it: {why}"
    return Unfit("bad_card", why, remedy, _named_in(data[:CARD_BYTES]))


def _named_in(data: bytes) -> tuple[ModelId, ...]:
    """Return the aliases of a card that is refused: of one that is no TOML, the quoted words of
    what looks like their line."""
    text = data.decode(errors="replace")
    try:
        said: object = tomllib.loads(text).get("aliases")
    except (ValueError, RecursionError):
        line = _ALIASES.search(text)
        said = _QUOTED.findall(line[1]) if line else []
    words = cast(list[object], said) if isinstance(said, list) else []
    names = (ModelId(one) for one in words if isinstance(one, str) and is_model_id(one))
    return tuple(islice(dict.fromkeys(names), MOST_ALIASES))


def _unknown(key: str) -> str:
    if key in NOT_YET:
        return f"{key} is not there yet; take it out of the card"
    known = [*CHECKS, *NUMBERS, *FOR_PEOPLE]
    near = [MEANT[key]] if key in MEANT else difflib.get_close_matches(key, known, n=1)
    hint = f"is {near[0]} meant? " if near else ""
    return f"it has no key {key!r}; {hint}known are {', '.join(known)}"


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


def _template(key: str, value: object) -> str:
    text = _text(key, value)
    if len(text.encode(errors="replace")) > TEMPLATE_BYTES:
        raise ValueError(f"{key} has more than {TEMPLATE_BYTES} bytes")
    try:
        parse_template(text)
    except GoTemplateError as error:
        raise ValueError(f"{key} is none of Ollama's, in Go's language: {error}") from error
    return text


CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "aliases": _aliases,
    "system": _text,
    "template": _template,
    "stop": _stops,
    "thinking_default": _switch,
    "context_tokens": _count,
    "default_max_tokens": _count,
    "keep_alive_s": _seconds,
    "compatible_backends": _texts,
    "backend_preference": _texts,
    "kv": _kv,
    "pin": _switch,
}
"""The keys that are obeyed beside `NUMBERS`, and what their values are."""
