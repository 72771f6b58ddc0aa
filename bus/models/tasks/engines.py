"""The types of `engines.toml`: programs on a node that serve a model over HTTP.

Pure. The name of an engine is the name of its model. `fill` fills the placeholders of its command
and of its environment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, StrictBool, field_validator

from bus.models.tasks.reading import MOST_SECONDS, FileTable, Seconds, Wrong, read_table
from bus.models.tasks.table import ProviderKind
from bus.wire.ids import is_model_id

ENGINES_FILE = "engines.toml"
COMMAND_DTYPE, COMMAND_TAG = "command", "command-"
"""The number type in the card of such a model, and the beginning of its backend's tag. The rest of
the tag is the engine's name, so only a node with this engine can run the model."""
MOST_ENGINES, MOST_TEXT = 100, 4_000
MOST_CONTEXT, MOST_AT_ONCE = 1 << 28, 1_024
ENVIRONMENT_NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
"""A name of an environment, as a regular expression."""
PLACEHOLDERS = ("capacity", "context", "gpus", "key", "model", "port")
"""The names of the placeholders that a command may contain, such as `{port}`."""
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Extra = Literal[
    "top_k", "min_p", "repetition_penalty", "logit_bias", "ignore_eos", "min_tokens",
    "chat_template_kwargs", "thinking_token_budget", "return_token_ids",
]  # fmt: skip
"""A request field that OpenAI's API lacks, by its name in vLLM's API
(`bus.translation.EXTRA_FIELDS`)."""
Format = Literal["json_object", "json_schema", "regex", "choice"]
USUAL_FIELDS: tuple[Extra, ...] = (
    "top_k", "min_p", "repetition_penalty", "logit_bias", "chat_template_kwargs",
)  # fmt: skip
"""The default of `fields`: what vLLM, SGLang, llama-server and mlx_lm.server all read."""
Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]
Wait = Annotated[float, Field(strict=True, ge=1.0, le=MOST_SECONDS, allow_inf_nan=False)]


class CommandEngine(FileTable):
    """A program that answers requests over HTTP on this machine.

    `command`: how to start it, with the placeholders `{port}`, `{model}`, `{context}`, `{gpus}`,
    `{capacity}` and `{key}`. `model`: the text for `{model}`, also the model's name in requests to
    the program; empty: the engine's own name. `dialect`: its API. `health`: the path that answers
    200 when it is ready. `capacity`: the most requests at a time. `memory_bytes`: the memory that
    it takes, in bytes; None: as measured at its last load. `venv`: the environment of `shoal
    engine` that it runs in; empty: none. `gpus`: the GPUs that it may use, by number. `stop_signal`
    ends it; after `stop_s` it is killed. If it sends nothing for `stall_s`, neither part of an
    answer nor its health, it is ended. `fields`: the fields beyond OpenAI's that the program obeys;
    requests get a notice about others. `formats`: the formats of answers that it enforces; others
    are refused. `thinks`, `calls_tools` and `sees`: whether its model can; tools and images are
    refused if not.
    """

    command: Text
    memory_bytes: Annotated[int, Field(strict=True, gt=0)] | None = None
    model: Annotated[str, Field(max_length=MOST_TEXT)] = ""
    dialect: ProviderKind = "openai"
    health: Annotated[str, Field(pattern=r"^/[!-~]{0,200}$")] = "/health"
    context_tokens: Annotated[int, Field(strict=True, ge=1, le=MOST_CONTEXT)] = 8_192
    capacity: Annotated[int, Field(strict=True, ge=1, le=MOST_AT_ONCE)] = 8
    environment: dict[str, str] = {}
    venv: Annotated[str, Field(pattern=rf"^(?:{ENVIRONMENT_NAME})?$")] = ""
    gpus: tuple[Annotated[int, Field(strict=True, ge=0, lt=1_024)], ...] = ()
    stop_signal: Literal["TERM", "INT", "QUIT", "HUP", "KILL"] = "TERM"
    stop_s: Seconds = 5.0
    stall_s: Wait = 60.0
    keep_alive_s: Seconds | None = None
    fields: tuple[Extra, ...] = USUAL_FIELDS
    formats: tuple[Format, ...] = ()
    thinks: StrictBool = False
    calls_tools: StrictBool = False
    sees: StrictBool = False

    @field_validator("command")
    @classmethod
    def _words(cls, command: str) -> str:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"the command cannot be split into words: {error}") from None
        if not words:
            raise ValueError("the command must begin with a program")
        return command

    @field_validator("environment")
    @classmethod
    def _variables(cls, environment: dict[str, str]) -> dict[str, str]:
        for name, value in environment.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"'{name[:80]}' is not the name of a variable")
            if "\0" in value or len(value) > MOST_TEXT:
                raise ValueError(f"{name} must have at most {MOST_TEXT:,} characters")
        return environment

    @property
    def program(self) -> str:
        """Return the first word of the command."""
        return shlex.split(self.command)[0]

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts in which placeholders are filled."""
        return (self.command, *self.environment.values())

    def fill(self, values: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
        """Return the words of the command and the variables of its environment, with the
        placeholders filled. A value never becomes more than one word."""

        def filled(text: str) -> str:
            return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)

        words = [filled(word) for word in shlex.split(self.command)]
        return words, {name: filled(value) for name, value in self.environment.items()}


class EngineTable(FileTable):
    """The content of `engines.toml`."""

    engines: Annotated[dict[str, CommandEngine], Field(max_length=MOST_ENGINES)] = {}


def read_engines(text: str) -> EngineTable:
    """Parse the text of an `engines.toml`. Raises ConfigError with the line."""
    return read_table(ENGINES_FILE, EngineTable, _unsound, text)


def lack_of(name: str) -> tuple[str, str]:
    """Return the message that this node has no environment `name`, and the remedy."""
    why = f"there is no environment {name} on this node"
    return why, f"create the environment: `shoal engine add {name} PACKAGE==VERSION`"


def _unsound(table: EngineTable) -> Iterator[Wrong]:
    for name, engine in table.engines.items():
        path = ["engines", name]
        if not is_model_id(name):
            yield path, "not a valid model name"
        if not any("{port}" in text for text in engine.texts):
            yield [*path, "command"], "must have {port}, the port at which shoal expects an answer"
        for text in engine.texts:
            for word in _PLACEHOLDER.findall(text):
                if word not in PLACEHOLDERS:
                    all_words = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
                    yield [*path, "command"], f"{{{word}}} is not known; use {all_words}"
        if not engine.gpus and any("{gpus}" in text for text in engine.texts):
            yield [*path, "gpus"], "{gpus} needs the numbers of GPUs, such as gpus = [0, 1]"
