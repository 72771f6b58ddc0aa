"""The keys of a `card.toml` beside a model's weights: for loading it, and defaults for its
requests.

Pure. A card is accepted or refused as a whole. An unknown key or an invalid value refuses it, with
a suggestion and the line; the model is then served without the card. Defaults for requests use the
mechanism of derived models (`bus.wire.messages.derived`).
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

from bus.models.cards.lines import line_of
from bus.models.cards.parsers import REASONING_PARSERS, TOOL_PARSERS
from bus.models.lora import FOLDER, is_adapter_name
from bus.models.mtp_heads import MOST_DEPTH
from bus.wire.errors import first_problem
from bus.wire.ids import ModelId, is_model_id
from bus.wire.kv import KvKind, not_a_kind
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.requests import SPECULATE, DraftWeights, Sampling, Speculate
from bus.wire.shares import MAX_PRIORITY, PRIORITIES

CARD_FILE = "card.toml"
CARD_BYTES = 64 << 10
DEFAULTS_BYTES = 16 << 10
"""Maximum size of a card's defaults for requests; all nodes get them every half minute."""
MOST_ALIASES, MOST_STOPS, STOP_CHARACTERS = 16, 16, 200
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
FOR_PEOPLE = ("name", "summary", "license")
MEANT = {
    "alias": "aliases", "num_ctx": "context_tokens", "context": "context_tokens",
    "max_context": "context_tokens", "num_predict": "default_max_tokens",
    "max_tokens": "default_max_tokens", "keep_alive": "keep_alive_s", "ttl": "keep_alive_s",
    "repeat_penalty": "repetition_penalty", "system_prompt": "system", "temp": "temperature",
    "think": "thinking_default", "thinking": "thinking_default",
    "enable_thinking": "thinking_default", "kv_backend": "kv", "kv_bits": "kv", "pinned": "pin",
    "x_priority": "priority", "fast_synch": "metal_fast_synch", "lora": "adapters",
    "storage_size": "memory_bytes", "tool_call_parser": "tool_parser",
    "special_tokens": "special_tokens_in_messages", "speculative": "speculate",
    "x_speculate": "speculate", "drafter": "speculate", "draft": "draft_model",
}  # fmt: skip
"""Names that other programs use for our keys. The search for similar names does not find them,
because their spelling is too different."""
OLLAMA_WORDS = {"repetition_penalty": "repeat_penalty"}
NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
    "repetition_penalty",
)  # fmt: skip
"""Sampling keys, by the names of `Sampling`."""

NEUTRAL = Sampling()


class BadCard(ValueError):
    """A card that is refused. The text is the reason, and after a semicolon the remedy, if any.
    `key`: the wrong key (empty: none); `line`: its line, from 1 on (0: unknown)."""

    def __init__(self, why: str, key: str = "", line: int = 0) -> None:
        super().__init__(why)
        self.key = key
        self.line = line


@dataclass(frozen=True, slots=True)
class Notes:
    """The content of a `card.toml`. None, or empty: not set.

    `context_tokens` can only lower the model's own limit. `default_max_tokens`: the limit of an
    answer whose request has none. `compatible_backends` (empty: any) and `backend_preference` (best
    first) are `<engine>-<compute>` tags. `kv`: the KV format; it overrides the node's setting.
    `pin` keeps the model in memory. `priority` applies to requests without one. `memory_bytes`: the
    memory of its weights; it overrides the estimate from its files.

    `adapters`: the adapters to load (None: all in the model's folder). `adapter`: the default of
    requests that name none. `tool_parser` and `reasoning_parser`: names in
    `bus.models.cards.parsers`; if empty, the chat template decides. `special_tokens_in_messages`:
    special tokens in the text of messages count as tokens, not as text. `speculate`: how requests
    that do not say it are drafted; None: as the runner's setting says. `draft_model`: the smaller
    model that guesses its tokens. `mtp_folder`: the folder inside the model's folder with the
    weights of its MTP head; empty: they are in the model's own files. `mtp_depth`: the most tokens
    that the head guesses in a row; 0: not set. `block_folder`: the folder inside the model's folder
    with its block drafter; empty: none. `prefill_on`: the node that computes long prompts
    for instances on other nodes; `auto`: the fastest; empty: none does. `said`: the keys that the
    file sets. `template`: a Go template, which earlier versions accepted; requests to the model are
    refused while it is set.
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
    speculate: Speculate | None = None
    draft_model: DraftWeights | None = None
    mtp_folder: str = ""
    mtp_depth: int = 0
    block_folder: str = ""
    prefill_on: str = ""

    def defaults(self, model: ModelId, *, can_think: bool) -> DerivedModel | None:
        """Return the defaults of the model's requests; None if the card has none."""
        sampled = tuple(sorted(self.sampling.model_fields_set))
        shown: dict[str, Any] = {
            OLLAMA_WORDS.get(name, name): getattr(self.sampling, name) for name in sampled
        }
        if self.stop:
            shown["stop"] = list(self.stop)
        derived = DerivedModel(
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
        return None if derived == DerivedModel(name=model, base=model) else derived


def read_card(data: bytes) -> Notes:
    """Parse the text of a `card.toml`. Raises BadCard with the line of the fault."""
    if len(data) > CARD_BYTES:
        raise BadCard(f"the card has more than {CARD_BYTES >> 10} KiB")
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise BadCard(
            f"the card is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    except RecursionError as error:
        raise BadCard("the card is nested too deeply") from error
    except ValueError as error:
        match = _AT_LINE.search(str(error))
        raise BadCard(
            f"the card is not valid TOML: {error}", line=int(match[1]) if match else 0
        ) from error
    try:
        return notes_from(table)
    except BadCard as error:
        line = line_of(text, error.key)
        why = f"line {line}: {error}" if line else str(error)
        raise BadCard(why, error.key, line) from error


def notes_from(table: Mapping[str, Any]) -> Notes:
    """Return the settings of a parsed `card.toml`. Raises BadCard with the first fault."""
    check_keys(table)
    values = {
        key: _checked(check, key, table[key]) for key, check in CHECKS.items() if key in table
    }
    for key in FOR_PEOPLE:
        _checked(_text, key, table.get(key, ""))
    numbers = {key: table[key] for key in NUMBERS if key in table}
    wrong = next((key for key, value in numbers.items() if type(value) not in (int, float)), None)
    if wrong is not None:
        raise BadCard(f"{wrong} must be a number", wrong)
    try:
        sampling = Sampling.model_validate(numbers)
    except ValidationError as error:
        key = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        raise BadCard(first_problem(error), key) from error
    notes = Notes(**values, sampling=sampling, said=tuple(table))
    if notes.adapter and notes.adapters is not None and notes.adapter not in notes.adapters:
        raise BadCard(
            f"the adapter {notes.adapter} is not in adapters; add it there, or remove adapter",
            "adapter",
        )
    if len(notes.system) + len(notes.template) + sum(map(len, notes.stop)) > DEFAULTS_BYTES:
        raise BadCard(
            f"system, template and stop together have more than {DEFAULTS_BYTES >> 10} KiB"
        )
    return notes


def check_keys(keys: Iterable[str]) -> None:
    """Raise BadCard for the first unknown key in `keys`, with a suggestion."""
    unknown = next((key for key in keys if key not in KNOWN_KEYS), None)
    if unknown is not None:
        raise BadCard(_unknown(unknown), unknown)


def _checked(check: Callable[[str, object], Any], key: str, value: object) -> Any:
    try:
        return check(key, value)
    except ValueError as error:
        raise BadCard(str(error), key) from error


def _unknown(key: str) -> str:
    near = [MEANT[key]] if key in MEANT else difflib.get_close_matches(key, KNOWN_KEYS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"the card has no key {key[:80]!r}; {hint}the known keys are {', '.join(KNOWN_KEYS)}"


def _switch(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false")
    return value


def _count(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise ValueError(f"{key} must be a whole number above 0")
    return value


def _seconds(key: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{key} must be a number of seconds")
    return float(value)


def _priority(key: str, value: object) -> int:
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PRIORITY:
        return value
    raise ValueError(
        f"{key} must be {', '.join(PRIORITIES)}, or a whole number from 0 (first) to {MAX_PRIORITY}"
    )


def _bytes(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 50:
        raise ValueError(f"{key} must be a whole number of bytes above 0")
    return value


def _adapter(key: str, value: object) -> str:
    name = _text(key, value)
    if not is_adapter_name(name):
        raise ValueError(
            f"{key}: {name[:80]!r} is not the name of an adapter (a folder in adapters/)"
        )
    return name


def _adapters(key: str, value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_adapter(key, name) for name in _texts(key, value)))


def _tool_parser(key: str, value: object) -> str:
    return _choice(TOOL_PARSERS, key, value)


def _reasoning_parser(key: str, value: object) -> str:
    return _choice(REASONING_PARSERS, key, value)


def _model(key: str, value: object) -> DraftWeights:
    if is_model_id(name := _text(key, value)):
        return DraftWeights(model=ModelId(name))
    raise ValueError(f"{key}: {name[:80]!r} cannot be the name of a model")


def _folder(key: str, value: object) -> str:
    if is_adapter_name(name := _text(key, value)) and name != FOLDER:
        return name
    raise ValueError(f"{key}: {name[:80]!r} is not the name of a folder inside the model's folder")


def _depth(key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_DEPTH:
        return value
    raise ValueError(f"{key} must be a whole number from 1 to {MOST_DEPTH}")


def _node(key: str, value: object) -> str:
    name = _text(key, value)
    if _NODE.fullmatch(name):
        return name
    raise ValueError(f"{key}: {name[:80]!r} is neither auto nor the name or id of a node")


def _speculate(key: str, value: object) -> Speculate:
    return cast(Speculate, _choice(SPECULATE, key, value))


def _choice(words: tuple[str, ...], key: str, value: object) -> str:
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{key} must be one of {', '.join(words)}")
    return value


def _kv(key: str, value: object) -> KvKind:
    if (wrong := not_a_kind(value)) is not None:
        raise ValueError(f"{key} = {str(value)[:80]}: {wrong.replace(';', ',')}")
    return cast(KvKind, value)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} must be a string")
    return value


def _texts(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):  # pyright: ignore[reportUnknownVariableType]
        raise ValueError(f"{key} must be a list of strings")
    return tuple(cast(list[str], value))


def _stops(key: str, value: object) -> tuple[str, ...]:
    stops = _texts(key, [value] if isinstance(value, str) else value)
    if len(stops) > MOST_STOPS or not all(0 < len(stop) <= STOP_CHARACTERS for stop in stops):
        raise ValueError(
            f"{key} has at most {MOST_STOPS} strings of 1 to {STOP_CHARACTERS} characters"
        )
    return stops


def _aliases(key: str, value: object) -> tuple[ModelId, ...]:
    names = _texts(key, value)
    wrong = next(
        (name for name in names if not is_model_id(name) or name.endswith(":latest")), None
    )
    if wrong is not None:
        raise ValueError(f"{key}: {wrong[:80]!r} cannot be the name of a model")
    if len(names) > MOST_ALIASES:
        raise ValueError(f"{key} must have at most {MOST_ALIASES} names; it has {len(names)}")
    return tuple(ModelId(name) for name in dict.fromkeys(names))


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
    "speculate": _speculate,
    "draft_model": _model,
    "mtp_folder": _folder,
    "mtp_depth": _depth,
    "block_folder": _folder,
    "prefill_on": _node,
}
"""The function that checks the value of each effective key, except the keys of `NUMBERS`."""
KNOWN_KEYS = (*CHECKS, *NUMBERS, *FOR_PEOPLE)
"""All keys that a card may have."""
