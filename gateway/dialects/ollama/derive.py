"""Ollama's `create` and `copy`: bodies that make derived models, and what is made of them.

Pure. What is made of a derived model has its defaults too, each until the body says another; its
turns are replaced together. Parameters without effect in a request have none here, and are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, Tag

from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId
from bus.wire.lora import is_adapter_name
from bus.wire.messages.derived import DerivedModel, DerivedTurn, plain_name
from gateway.dialects.api_table import AskedDerivation
from gateway.dialects.body import (
    MAX_PATH,
    Closed,
    FieldTable,
    bad_field,
    by_type,
    read_body,
    validate,
)
from gateway.dialects.dialect import Limits
from gateway.dialects.ollama import bodies, fields
from gateway.dialects.ollama.modelfile import ROLES, read_modelfile
from gateway.dialects.shared_fields import named_model, stops_of

QUANTISED = (
    "a derived model has no weights of its own; use `shoal quantize MODEL --bits "
    "4` to make a model in "
    "fewer bits, then name that model in 'from'"
)
CREATE_TABLE = FieldTable(
    empty_asks_nothing=True,
    harmless={"requires": "a version of Ollama's own program"},
    refused={
        "adapters": "files cannot be uploaded; put them into adapters/NAME of the model's folder, "
        "and name them with 'adapter', or ADAPTER in the Modelfile",
        "files": "files cannot be uploaded; put the model's folder into <data>/models",
        "quantize": QUANTISED,
        "quantization": QUANTISED,
        "path": "send the text of the Modelfile as 'modelfile'",
        "remote_host": "models come from this cluster only",
        "renderer": "prompts are made by the model's chat template",
        "template": bodies.NO_GO_TEMPLATES,
        "parser": "the model decides how calls are parsed",
        "info": "shoal reads these facts from the model's files",
    },
)
LicenseBody = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[Annotated[list[str], Field(fail_fast=True)], Tag("~texts")],
    by_type("a string or a list of strings", {str: "~text", list: "~texts"}),
]

PATHS, WEIGHTS = (".", "/", "~"), (".gguf", ".safetensors", ".bin")
NO_FILE = (
    "FROM must name a model on disk, as listed by `shoal ls`, not a file; to add a folder with "
    "config.json and safetensors, put it into the models folder"
)


class OllamaMadeTurnBody(Closed):
    """A turn that stands before those of each conversation."""

    role: str
    content: str | None = None


class OllamaCreateBody(bodies.NamedModelBody):
    """The body of `POST /api/create`; `modelfile` says the same as the others, which go first."""

    table: ClassVar[FieldTable] = CREATE_TABLE
    from_: str | None = Field(default=None, alias="from")
    system: str | None = None
    parameters: dict[str, Any] | None = None
    messages: Annotated[list[OllamaMadeTurnBody], Field(fail_fast=True)] | None = None
    license: LicenseBody | None = None
    adapter: str | None = None
    modelfile: str | None = None
    stream: bool | None = None


class OllamaCopyBody(Closed):
    """The body of `POST /api/copy`."""

    source: str
    destination: str


def parse_create(body: bytes, limits: Limits) -> AskedDerivation:
    """Return what `POST /api/create` asks for. Raises BadRequest."""
    asked, extras = read_body(OllamaCreateBody, body, limits)
    if asked.modelfile:
        asked = _with_modelfile(asked, limits)
    name = asked.model or asked.name
    if not name:
        raise BadRequest("model is required", field="model")
    if not asked.from_:
        raise BadRequest("from is required: the base model", field="from")
    if asked.from_.startswith(PATHS) or asked.from_.lower().endswith(WEIGHTS):
        raise bad_field("from", NO_FILE)
    given = asked.parameters or {}
    return AskedDerivation(
        name=named_model(plain_name(name)),
        source=asked.from_,
        system=asked.system or None,
        turns=_turns(asked.messages or (), limits),
        parameters=_parameters(given, limits),
        adapter=_adapter(asked.adapter),
        license=asked.license if isinstance(asked.license, str) else "\n".join(asked.license or ()),
        stream=asked.stream is not False,
        ignored=extras.ignored,
    )


def parse_copy(body: bytes, limits: Limits) -> AskedDerivation:
    """Return what `POST /api/copy` asks for. Raises BadRequest."""
    asked, extras = read_body(OllamaCopyBody, body, limits)
    for field, name in (("source", asked.source), ("destination", asked.destination)):
        if not name:
            raise bad_field(field, "is required")
    name = named_model(plain_name(asked.destination), "destination")
    return AskedDerivation(name, asked.source, is_copy=True, stream=False, ignored=extras.ignored)


def derived_of(
    asked: AskedDerivation, base: ModelId, source: DerivedModel | None, now_s: float
) -> DerivedModel:
    """Return the model that is asked for; `source` is what it is made of, where that is derived
    itself, and `base` the one that answers. Raises BadRequest."""
    before = source or DerivedModel(name=base, base=base)
    name = asked.name
    if asked.is_copy:
        return before.model_copy(update={"name": name, "made_at_s": now_s})
    parameters = {**before.parameters, **asked.parameters}
    options, _ = validate(bodies.OllamaOptionsBody, dict(parameters), within="parameters")
    sampling = fields.sampling_of(options)
    return DerivedModel(
        name=name,
        base=base,
        parent=before.name,
        system=before.system if asked.system is None else asked.system,
        turns=asked.turns or before.turns,
        sampling=sampling,
        sampled=tuple(sorted(sampling.model_fields_set)),
        max_tokens=fields.max_tokens_of(options),
        stop=stops_of("parameters.stop", options.stop, Limits()),
        parameters=parameters,
        license=asked.license or before.license,
        made_at_s=now_s,
    )


def _adapter(said: str | None) -> str:
    """Return the name of an adapter. BadRequest for a path: files are not read for a client."""
    if said and not is_adapter_name(said):
        text = "must be the name of a folder in the model's adapters/, not a path"
        raise bad_field("adapter", text)
    return said or ""


def _with_modelfile(asked: OllamaCreateBody, limits: Limits) -> OllamaCreateBody:
    said = read_modelfile(asked.modelfile or "")
    given = asked.model_dump(by_alias=True, exclude_none=True, exclude={"modelfile"})
    known = {field.alias or name for name, field in OllamaCreateBody.model_fields.items()}
    made, _ = validate(
        OllamaCreateBody, {**said, **{name: one for name, one in given.items() if name in known}}
    )
    if len(said.get("messages", ())) > limits.messages:
        raise bad_field("modelfile", f"at most {limits.messages} messages")
    return made


def _turns(
    messages: list[OllamaMadeTurnBody] | tuple[()], limits: Limits
) -> tuple[DerivedTurn, ...]:
    if len(messages) > limits.messages:
        raise bad_field("messages", f"at most {limits.messages}")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise bad_field(f"messages[{index}].role", f"must be one of {', '.join(ROLES)}")
    return tuple(
        DerivedTurn.model_validate({"role": one.role, "content": one.content or ""})
        for one in messages
    )


def _parameters(given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the parameters that say something. BadRequest for one that is none, or cannot be."""
    said = {name: value for name, value in given.items() if value is not None}
    if isinstance(said.get("stop"), str):
        said["stop"] = [said["stop"]]
    for name, value in said.items():
        if isinstance(value, dict) or (isinstance(value, list) and name != "stop"):
            raise bad_field(f"parameters.{name[:MAX_PATH]}", "must be a number, a text or a switch")
    options, _ = validate(bodies.OllamaOptionsBody, dict(said), within="parameters", strict=True)
    stops_of("parameters.stop", options.stop, limits)
    return said
