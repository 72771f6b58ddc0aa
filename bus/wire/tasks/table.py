"""The types of `tasks.toml`, and the one reader of it: what is wrong is said with its line.

Pure. A provider's model is `NAME:model`, where NAME is a provider's and the rest is what the
provider calls it. A candidate of a task is such a name, or that of a model of the cluster; never
another task. The file has no key: `key_env` names the variable that has it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    field_validator,
)

from bus.wire.errors import ConfigError
from bus.wire.ids import is_model_id
from bus.wire.messages.derived import plain_name

TASKS_FILE = "tasks.toml"
MOST_BYTES = 256 << 10
MOST_CANDIDATES, MOST_NAMED, MOST_MODELS = 16, 200, 500
MOST_SECONDS = 7 * 24 * 3600.0
NAMES = "1 to 64 letters, digits, '.', '_' and '-', a letter or digit first"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FOREIGN = re.compile(r"[!-~]{1,200}")
"""What a provider may call a model: what is printed of ASCII, without a blank."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ProviderKind = Literal["openai", "anthropic"]
Seconds = Annotated[float, Field(strict=True, ge=0.0, le=MOST_SECONDS, allow_inf_nan=False)]
Budget = Annotated[float, Field(strict=True, gt=0.0, le=MOST_SECONDS, allow_inf_nan=False)]


def _foreign(name: str) -> str:
    if not _FOREIGN.fullmatch(name):
        raise ValueError("1 to 200 printed characters of ASCII, none of them blank")
    return name


ForeignName = Annotated[str, AfterValidator(_foreign)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Provider(_Table):
    """A server elsewhere that speaks OpenAI's or Anthropic's API. `key_env` names the variable of
    the gateway's environment that has its key; empty: it asks for none. `models` are those that are
    listed; others may be asked too."""

    kind: ProviderKind
    base_url: str
    key_env: str = ""
    models: Annotated[tuple[ForeignName, ...], Field(max_length=MOST_MODELS)] = ()

    @field_validator("base_url")
    @classmethod
    def _whole(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("no URL: write it as https://api.example.org/v1") from None
        if parts.username is not None or parts.password is not None:
            raise ValueError("a key does not stand in a URL: name its variable in key_env")
        whole = _FOREIGN.fullmatch(url) and parts.scheme in ("http", "https") and parts.hostname
        if not whole or parts.query or parts.fragment or port == 0:
            raise ValueError("no URL that can be asked: write it as https://api.example.org/v1")
        return url.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _variable(cls, name: str) -> str:
        if name and not _VARIABLE.fullmatch(name):
            raise ValueError("the name of a variable, not a key: letters, digits and underscores")
        return name


class NamedTask(_Table):
    """A name that the first of its candidates answers for, unless another one is loaded.

    `budget_s` is how long each candidate may take to its first token, the time to load it included;
    None: as long as a load may take. `keep_alive_s` is how long the model that answered stays in
    memory; None: as its own settings say. `pin_primary`: the first is asked first though another is
    loaded.
    """

    candidates: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_CANDIDATES)]
    budget_s: Budget | None = None
    keep_alive_s: Seconds | None = None
    pin_primary: StrictBool = False

    @field_validator("candidates")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := next((one for one in names if names.count(one) > 1), None):
            raise ValueError(f"'{twice}' is there twice")
        return names


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """A model of a provider: `model` is what that calls it."""

    provider: str
    model: str
    settings: Provider

    @property
    def name(self) -> str:
        """Return what it is called here."""
        return f"{self.provider}:{self.model}"


class TaskTable(_Table):
    """All that `tasks.toml` says."""

    providers: Annotated[dict[str, Provider], Field(max_length=MOST_NAMED)] = {}
    tasks: Annotated[dict[str, NamedTask], Field(max_length=MOST_NAMED)] = {}

    def __bool__(self) -> bool:
        """Return whether any name means something by this table."""
        return bool(self.providers or self.tasks)

    def task_named(self, name: str) -> str | None:
        """Return the task that a client's name means, in other letters if need be; None for
        none."""
        plain = plain_name(name)
        if plain in self.tasks:
            return plain
        folded = plain.casefold()
        return next((one for one in self.tasks if one.casefold() == folded), None)

    def provided(self, name: str) -> ProviderModel | None:
        """Return the provider's model that a name means; None where it is no provider's."""
        before, colon, model = name.partition(":")
        settings = self.providers.get(before) if colon else None
        if settings is None or not _FOREIGN.fullmatch(model):
            return None
        return ProviderModel(before, model, settings)

    def means(self, name: str) -> bool:
        """Return whether a client's name is a task's, or a provider's model's."""
        return self.task_named(name) is not None or self.provided(name) is not None

    def provided_models(self) -> list[ProviderModel]:
        """Return the providers' models that are named here, in lists or as candidates, by name."""
        listed = [f"{name}:{one}" for name, own in self.providers.items() for one in own.models]
        named = [*listed, *(one for task in self.tasks.values() for one in task.candidates)]
        found = {name: self.provided(name) for name in sorted(named)}
        return [one for one in found.values() if one is not None]


def read_tasks(text: str) -> TaskTable:
    """Return what the text of a `tasks.toml` says. Raises ConfigError, which names the line."""
    if len(text.encode()) > MOST_BYTES:
        raise ConfigError(f"{TASKS_FILE} has more than {MOST_BYTES >> 10} KiB")
    try:
        said = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{TASKS_FILE} is no TOML: {error}") from None
    try:
        table = TaskTable.model_validate(said)
    except ValidationError as error:
        raise ConfigError(_explained(error, text)) from None
    for path, wrong in _unsound(table):
        raise ConfigError(f"{_place(text, path)}: {'.'.join(path)}: {wrong}")
    return table


def _unsound(table: TaskTable) -> Iterator[tuple[list[str], str]]:
    """Yield what is wrong beyond the types of the values, each with the path of its key."""
    for kind, names in (("providers", table.providers), ("tasks", table.tasks)):
        for name in names:
            if not _NAME.fullmatch(name):
                yield [kind, name], f"not a name: {NAMES}"
    for name, other in combinations(table.tasks, 2):
        if name.casefold() == other.casefold():
            yield ["tasks", other], f"'{name}' is the same name in other letters"
    for name, task in table.tasks.items():
        for candidate in task.candidates:
            if table.provided(candidate) is None and not is_model_id(candidate):
                wrong = f"'{candidate[:80]}' cannot be the name of a model"
                yield ["tasks", name, "candidates"], wrong + _no_provider(candidate, table)


def _no_provider(candidate: str, table: TaskTable) -> str:
    before, colon, _ = candidate.partition(":")
    if not colon:
        return ""
    near = difflib.get_close_matches(before, list(table.providers), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f", and no provider is called '{before[:80]}'{hint}"


def _explained(error: ValidationError, text: str) -> str:
    details = error.errors(include_url=False)
    # a key that is misspelt is missing as well: its own name says more
    unknown = (one for one in details if one["type"] == "extra_forbidden")
    detail = next(unknown, details[0])
    path = [str(step) for step in detail["loc"] if isinstance(step, str)]
    where, key = _place(text, path), ".".join(path)
    if detail["type"] == "extra_forbidden":
        known = _known(path)
        near = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        return f"{where}: {key} is not known; {hint}"
    if detail["type"] == "missing":
        return f"{where}: {key} is missing"
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{where}: {key}: {message}" if key else f"{where}: {message}"


def _place(text: str, path: list[str]) -> str:
    line = line_of(text, path)
    return f"{TASKS_FILE}, line {line}" if line else TASKS_FILE


def _known(path: list[str]) -> list[str]:
    if len(path) < 3:
        return list(TaskTable.model_fields)
    fields = Provider if path[0] == "providers" else NamedTask
    return list(fields.model_fields)


def line_of(text: str, path: list[str]) -> int | None:
    """Return the number of the line that sets what a path leads to, or the nearest table around it;
    None where there is neither."""
    table: list[str] = []
    found: tuple[int, int] = (0, 0)
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("["):
            steps = table = _steps(bare.partition("#")[0].strip("[] "))
        elif "=" in bare and not bare.startswith("#"):
            steps = [*table, *_steps(bare.partition("=")[0])]
        else:
            continue
        alike = min(len(steps), len(path))
        if steps[:alike] == path[:alike] and alike > found[0]:
            found = (alike, number)
    return found[1] or None


def _steps(dotted: str) -> list[str]:
    return [step.strip(" \t\"'") for step in dotted.split(".")]
