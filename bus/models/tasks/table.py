"""The types of `tasks.toml`, and the checks that go beyond types.

Pure. Requests name a provider's model as `NAME:model`: `NAME` is the provider's name in this file,
and `model` is the model's name at that provider. A candidate of a task is a provider's model or a
model of the cluster, never another task. The file contains no key: `key_env` names the environment
variable that has it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictBool, field_validator

from bus.models.tasks.reading import MOST_SECONDS, FileTable, Seconds, read_table
from bus.wire.ids import is_model_id
from bus.wire.messages.derived import plain_name

TASKS_FILE = "tasks.toml"
MOST_CANDIDATES, MOST_NAMED, MOST_MODELS = 16, 200, 500
NAMES = "use 1 to 64 letters, digits, '.', '_' and '-'; begin with a letter or digit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FOREIGN = re.compile(r"[!-~]{1,200}")
"""A provider's name of a model: printable ASCII without blanks."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ProviderKind = Literal["openai", "anthropic"]
Budget = Annotated[float, Field(strict=True, gt=0.0, le=MOST_SECONDS, allow_inf_nan=False)]


def _foreign(name: str) -> str:
    if not _FOREIGN.fullmatch(name):
        raise ValueError("use 1 to 200 printable ASCII characters without blanks")
    return name


ForeignName = Annotated[str, AfterValidator(_foreign)]


class Provider(FileTable):
    """A remote server with OpenAI's or Anthropic's API. `key_env`: the variable of the gateway's
    environment with its key; empty: it needs none. `models`: the models to list; requests may name
    others."""

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
            raise ValueError("not a URL: write it as https://api.example.org/v1") from None
        if parts.username is not None or parts.password is not None:
            raise ValueError("a URL must not contain a key: name its variable in key_env")
        whole = _FOREIGN.fullmatch(url) and parts.scheme in ("http", "https") and parts.hostname
        if not whole or parts.query or parts.fragment or port == 0:
            raise ValueError("not a usable URL: write it as https://api.example.org/v1")
        return url.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _variable(cls, name: str) -> str:
        if name and not _VARIABLE.fullmatch(name):
            raise ValueError(
                "give the name of a variable, not a key: letters, digits and underscores"
            )
        return name


class NamedTask(FileTable):
    """A name for which several models can answer. The first candidate answers, unless only another
    candidate is loaded.

    `budget_s`: the time that each candidate has until its first token, loading included; None: the
    time that a load may take. `keep_alive_s`: how long the answering model stays in memory; None:
    as its own settings say. `pin_primary`: use the first candidate even if another one is loaded.
    `spill_to`: the provider's model that answers if no candidate has begun `spill_after_s` after
    the request's arrival. Both are set, or neither.
    """

    candidates: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_CANDIDATES)]
    budget_s: Budget | None = None
    keep_alive_s: Seconds | None = None
    pin_primary: StrictBool = False
    spill_to: str | None = None
    spill_after_s: Budget | None = None

    @field_validator("candidates")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"'{twice}' is listed twice")
        return names


class SpillingModel(FileTable):
    """A model of the cluster whose requests spill over: `spill_to`, a provider's model, answers a
    request that has not begun `spill_after_s` after its arrival."""

    spill_to: str
    spill_after_s: Budget


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """A model of a provider; `model` is the provider's own name for it."""

    provider: str
    model: str
    settings: Provider

    @property
    def name(self) -> str:
        """Return the name by which requests use this model: `PROVIDER:MODEL`."""
        return f"{self.provider}:{self.model}"


@dataclass(frozen=True, slots=True)
class SpillOver:
    """The provider's model that takes requests which would wait longer than `after_s`."""

    to: ProviderModel
    after_s: float


class TaskTable(FileTable):
    """The content of `tasks.toml`."""

    providers: Annotated[dict[str, Provider], Field(max_length=MOST_NAMED)] = {}
    tasks: Annotated[dict[str, NamedTask], Field(max_length=MOST_NAMED)] = {}
    models: Annotated[dict[str, SpillingModel], Field(max_length=MOST_MODELS)] = {}

    def __bool__(self) -> bool:
        """Return whether there is any provider or task."""
        return bool(self.providers or self.tasks)

    def task_named(self, name: str) -> str | None:
        """Return the task that a request means by `name`; upper and lower case may differ. None if
        there is no such task."""
        plain = plain_name(name)
        if plain in self.tasks:
            return plain
        folded = plain.casefold()
        return next((task for task in self.tasks if task.casefold() == folded), None)

    def provided(self, name: str) -> ProviderModel | None:
        """Return the provider's model that a request means by `name`; None if `name` is no
        provider's model."""
        before, colon, model = name.partition(":")
        settings = self.providers.get(before) if colon else None
        if settings is None or not _FOREIGN.fullmatch(model):
            return None
        return ProviderModel(before, model, settings)

    def means(self, name: str) -> bool:
        """Return whether `name` is the name of a task or of a provider's model."""
        return self.task_named(name) is not None or self.provided(name) is not None

    def spill_of(self, settings: NamedTask | SpillingModel) -> SpillOver | None:
        """Return where the requests of a task or model spill over to; None if they never do."""
        to = None if settings.spill_to is None else self.provided(settings.spill_to)
        if to is None or settings.spill_after_s is None:
            return None
        return SpillOver(to, settings.spill_after_s)

    def provided_models(self) -> list[ProviderModel]:
        """Return the models of providers that a provider's `models`, a task's `candidates` or a
        `spill_to` name, sorted by name."""
        listed = [f"{name}:{model}" for name, own in self.providers.items() for model in own.models]
        named = [
            *listed,
            *(candidate for task in self.tasks.values() for candidate in task.candidates),
            *(
                own.spill_to
                for own in (*self.tasks.values(), *self.models.values())
                if own.spill_to is not None
            ),
        ]
        models = {name: self.provided(name) for name in sorted(named)}
        return [model for model in models.values() if model is not None]


def read_tasks(text: str) -> TaskTable:
    """Parse the text of a `tasks.toml`. Raises ConfigError with the line."""
    return read_table(TASKS_FILE, TaskTable, _unsound, text)


def _unsound(table: TaskTable) -> Iterator[tuple[list[str], str]]:
    """Yield the faults that the types of the values do not exclude: the path of the key, and the
    fault."""
    for kind, names in (("providers", table.providers), ("tasks", table.tasks)):
        for name in names:
            if not _NAME.fullmatch(name):
                yield [kind, name], f"not a valid name: {NAMES}"
    for name, other in combinations(table.tasks, 2):
        if name.casefold() == other.casefold():
            yield ["tasks", other], f"'{name}' differs only in case"
    for name, task in table.tasks.items():
        for candidate in task.candidates:
            if table.provided(candidate) is None and not is_model_id(candidate):
                wrong = f"'{candidate[:80]}' is not a valid model name"
                yield ["tasks", name, "candidates"], wrong + _no_provider(candidate, table)
        yield from _unsound_spill(table, ["tasks", name], task)
        if task.spill_to in task.candidates:
            yield ["tasks", name, "spill_to"], f"'{task.spill_to}' is already a candidate"
    for name, model in table.models.items():
        if table.task_named(name) is not None:
            yield ["models", name], "a task has this name: set spill_to in the task"
        elif table.provided(name) is not None or not is_model_id(name):
            yield ["models", name], "not the name of a model of the cluster"
        yield from _unsound_spill(table, ["models", name], model)


def _unsound_spill(
    table: TaskTable, path: list[str], settings: NamedTask | SpillingModel
) -> Iterator[tuple[list[str], str]]:
    to, after_s = settings.spill_to, settings.spill_after_s
    if to is None and after_s is not None:
        yield [*path, "spill_after_s"], "needs spill_to, a provider's model (PROVIDER:MODEL)"
    if to is not None and after_s is None:
        yield [*path, "spill_to"], "needs spill_after_s, the seconds that a request waits at most"
    if to is not None and table.provided(to) is None:
        wrong = f"'{to[:80]}' is not a provider's model (PROVIDER:MODEL)"
        yield [*path, "spill_to"], wrong + _no_provider(to, table)


def _no_provider(candidate: str, table: TaskTable) -> str:
    before, colon, _ = candidate.partition(":")
    if not colon:
        return ""
    near = difflib.get_close_matches(before, list(table.providers), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f", and no provider is called '{before[:80]}'{hint}"
