"""Ollama's `create` and `copy`: parses their bodies and makes the derived models.

Pure. A model made from a derived model inherits that model's defaults. The body may replace each of
them, but it replaces the turns only all together. Parameters that have no effect in a request have
no effect in a derived model either, but the lists of models show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, Tag

from bus.models.lora import is_adapter_name
from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId
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
    harmless={"requires": "concerns the version of Ollama's own program"},
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
        "parser": "tool calls are parsed in the model's own format",
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
    """A turn of the new model, with which every conversation begins."""

    role: str
    content: str | None = None


class OllamaCreateBody(bodies.NamedModelBody):
    """The body of `POST /api/create`. The other fields override those in `modelfile`."""

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
    """Return the derived model that a body of `POST /api/create` describes. Raises BadRequest."""
    parsed_body, extras = read_body(OllamaCreateBody, body, limits)
    if parsed_body.modelfile:
        parsed_body = _with_modelfile(parsed_body, limits)
    name = parsed_body.model or parsed_body.name
    if not name:
        raise BadRequest("model is required", field="model")
    if not parsed_body.from_:
        raise BadRequest("from is required: the base model", field="from")
    if parsed_body.from_.startswith(PATHS) or parsed_body.from_.lower().endswith(WEIGHTS):
        raise bad_field("from", NO_FILE)
    parameters = parsed_body.parameters or {}
    return AskedDerivation(
        name=named_model(plain_name(name)),
        source=parsed_body.from_,
        system=parsed_body.system or None,
        turns=_turns(parsed_body.messages or (), limits),
        parameters=_parameters(parameters, limits),
        adapter=_adapter(parsed_body.adapter),
        license=parsed_body.license
        if isinstance(parsed_body.license, str)
        else "\n".join(parsed_body.license or ()),
        stream=parsed_body.stream is not False,
        ignored=extras.ignored,
    )


def parse_copy(body: bytes, limits: Limits) -> AskedDerivation:
    """Return the derived model that a body of `POST /api/copy` describes. Raises BadRequest."""
    parsed_body, extras = read_body(OllamaCopyBody, body, limits)
    for field, name in (("source", parsed_body.source), ("destination", parsed_body.destination)):
        if not name:
            raise bad_field(field, "is required")
    name = named_model(plain_name(parsed_body.destination), "destination")
    return AskedDerivation(
        name, parsed_body.source, is_copy=True, stream=False, ignored=extras.ignored
    )


def derived_of(
    derivation: AskedDerivation, base: ModelId, source: DerivedModel | None, now_s: float
) -> DerivedModel:
    """Return the derived model. `source` is the model that it is made from, if that model is itself
    a derived model. `base` is the model that answers requests. Raises BadRequest."""
    parent = source or DerivedModel(name=base, base=base)
    name = derivation.name
    if derivation.is_copy:
        return parent.model_copy(update={"name": name, "made_at_s": now_s})
    parameters = {**parent.parameters, **derivation.parameters}
    options, _ = validate(bodies.OllamaOptionsBody, dict(parameters), within="parameters")
    sampling = fields.sampling_of(options)
    return DerivedModel(
        name=name,
        base=base,
        parent=parent.name,
        system=parent.system if derivation.system is None else derivation.system,
        turns=derivation.turns or parent.turns,
        sampling=sampling,
        sampled=tuple(sorted(sampling.model_fields_set)),
        max_tokens=fields.max_tokens_of(options),
        stop=stops_of("parameters.stop", options.stop, Limits()),
        parameters=parameters,
        license=derivation.license or parent.license,
        made_at_s=now_s,
    )


def _adapter(name: str | None) -> str:
    """Return the name of an adapter. Raises BadRequest for a path, since a client must not make
    shoal read files."""
    if name and not is_adapter_name(name):
        text = "must be the name of a folder in the model's adapters/, not a path"
        raise bad_field("adapter", text)
    return name or ""


def _with_modelfile(body: OllamaCreateBody, limits: Limits) -> OllamaCreateBody:
    from_file = read_modelfile(body.modelfile or "")
    dumped = body.model_dump(by_alias=True, exclude_none=True, exclude={"modelfile"})
    names = {field.alias or name for name, field in OllamaCreateBody.model_fields.items()}
    own = {name: value for name, value in dumped.items() if name in names}
    merged, _ = validate(OllamaCreateBody, {**from_file, **own})
    if len(from_file.get("messages", ())) > limits.messages:
        raise bad_field("modelfile", f"too many messages; the limit is {limits.messages}")
    return merged


def _turns(
    messages: list[OllamaMadeTurnBody] | tuple[()], limits: Limits
) -> tuple[DerivedTurn, ...]:
    if len(messages) > limits.messages:
        raise bad_field("messages", f"too many messages; the limit is {limits.messages}")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise bad_field(f"messages[{index}].role", f"must be one of {', '.join(ROLES)}")
    return tuple(
        DerivedTurn.model_validate({"role": message.role, "content": message.content or ""})
        for message in messages
    )


def _parameters(values: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the parameters that are not null. Raises BadRequest for an unknown or an invalid
    one."""
    parameters = {name: value for name, value in values.items() if value is not None}
    if isinstance(parameters.get("stop"), str):
        parameters["stop"] = [parameters["stop"]]
    for name, value in parameters.items():
        if isinstance(value, dict) or (isinstance(value, list) and name != "stop"):
            raise bad_field(
                f"parameters.{name[:MAX_PATH]}", "must be a number, a text, true or false"
            )
    options, _ = validate(
        bodies.OllamaOptionsBody, dict(parameters), within="parameters", strict=True
    )
    stops_of("parameters.stop", options.stop, limits)
    return parameters
