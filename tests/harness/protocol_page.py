"""Write docs/protocol.md from the code: every kind and frame, with its fields."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from bus.calls import CALLS
from bus.wire import codec, proposals
from bus.wire.array_frames import ArrayFrame
from bus.wire.errors import FailReason, FinishReason, RefusalReason
from bus.wire.messages import tokens
from bus.wire.messages.peers import FIRST_WORDS, FIRST_WORDS_PROTOCOL
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
HEAD = f"""# Protocol

Made by `make docs` from the code; do not edit. Protocol versions: {PROTOCOL_MIN} to {PROTOCOL_MAX}.

An envelope (control and telemetry planes) is a msgpack array:
`[version, kind, node, process, boot, seq, body]`. On a PUB/SUB socket a frame with its topic comes
first. Retained values that match a new subscription arrive in one message:
`[prefix, topic, payload, topic, payload, ...]`. {", ".join(f"`{k}`" for k in sorted(FIRST_WORDS))}
keep version {FIRST_WORDS_PROTOCOL} and their fields forever
([decision 0015](decisions/messages.md#0015)).
A data frame is a msgpack array: `[tag, *fields]`. Topics: [reference.md](reference.md).
Types without a prefix are in `bus/wire/`. A `?` marks an optional field.
"""
GROUPS: Mapping[str, tuple[str, str]] = {
    "commands": ("Commands", "To the leader; each gets one answer."),
    "events": ("Events", "Facts with an index in the cluster's log."),
    "readings": ("Readings", "Measurements; the latest wins."),
    "collectives": ("Collective test", "What ranks measured of the links between nodes."),
    "control": ("Control", "Term, snapshots, slots, diagnostics."),
    "gateways": (
        "Gateways",
        "Between gateways of different nodes (see Calls), and to a worker.",
    ),
    "peers": ("Peers", "Between switchboards of different nodes."),
    "weights": ("Weights", "Between workers: manifests and bytes of models."),
}
"""Modules of messages, in this order; others follow under their own names."""
NOISE = ("typing.", "bus.wire.messages.", "bus.", "wire.ids.", "wire.", "<class '", "'>")
"""What a type's name is shown without."""


def first_paragraph(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def type_name(annotation: object) -> str:
    """Return a type as the tables show it."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)
    text = re.sub(
        r"Annotated\[str, StringConstraints\(.*?pattern=('[^']*').*?\)\]", r"text \1", text
    )
    for noise in NOISE:
        text = text.replace(noise, "")
    return text.replace("|", "\\|")


def fields_of(cls: type[Message]) -> str:
    """Return a kind's fields as one cell: name, `?` for an optional one, type."""
    return "; ".join(
        f"`{name}{'' if field.is_required() else '?'}: {type_name(field.annotation)}`"
        for name, field in cls.model_fields.items()
        if name != "kind"
    )


def kinds() -> str:
    """Return a table of kinds for each module of messages."""
    found: dict[str, dict[str, type[Message]]] = {}
    for kind, cls in codec.KINDS.items():
        found.setdefault(cls.__module__, {})[kind] = cls
    named = {module: _group(module) for module in found}
    ranks = {name: place for place, name in enumerate(GROUPS)}
    ordered = sorted(found, key=lambda module: ranks.get(named[module], len(ranks)))
    parts: list[str] = []
    for module in ordered:
        title, about = GROUPS.get(named[module], (named[module].capitalize(), ""))
        lines = [f"## {title}\n", f"{about} `{module.replace('.', '/')}.py`\n".lstrip()]
        lines += ["| kind | meaning | fields |", "|---|---|---|"]
        lines += [
            f"| `{kind}` | {_cell(first_paragraph(cls))} | {fields_of(cls)} |"
            for kind, cls in sorted(found[module].items())
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _group(module: str) -> str:
    """Return the last part of a module's name that says more than `messages`."""
    return [part for part in module.split(".") if part != "messages"][-1]


def frames() -> str:
    """Return the tables of data frames."""
    between = "Between a gateway process and a lead runner."
    drafts = "Between two lead runners, of which one drafts for the other."
    return "\n".join(
        [_frames("Data frames", between, tokens), _frames("Frames of drafts", drafts, proposals)]
    )


def _frames(title: str, about: str, module: ModuleType) -> str:
    """Return the table of the frames in a module, each frame in one table."""
    rows = [
        f"| `{cls.__name__}` | {_cell(first_paragraph(cls))} | "
        + ", ".join(f"`{name}`" for name in cls.__struct_fields__)
        + " |"
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, ArrayFrame)
        and cls is not ArrayFrame
        and (module is tokens or cls not in vars(tokens).values())
    ]
    where = f"{about} `{module.__name__.replace('.', '/')}.py`"
    head = [f"## {title}\n", f"{where}\n", "| frame | meaning | fields |", "|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def calls() -> str:
    """Return the table of calls between gateways, and the fields of their messages."""
    head = [
        "## Calls\n",
        "A gateway calls the gateway of another node. `call_asked` holds the request, and\n"
        "`call_answered` a piece of the reply, each packed as a map of its fields. The right\n"
        "says who may make the call. `peer`: each node of the cluster. `admin`: a node of the\n"
        "cluster, if the client behind the call is that node's owner or has an API key with the\n"
        "scope `admin`. `process`: the HTTP processes of the same node, over their own socket.\n"
        "The table is in `bus/calls/table.py`.\n",
        "| call | right | request | reply |",
        "|---|---|---|---|",
    ]
    rows = [
        f"| `{call.name}` | {call.right} | `{call.request.__name__}` | `{call.reply.__name__}` |"
        for call in CALLS.values()
    ]
    used = {cls for call in CALLS.values() for cls in (call.request, call.reply)}
    messages = ["", "| message | meaning | fields |", "|---|---|---|"]
    messages += [
        f"| `{cls.__name__}` | {_cell(first_paragraph(cls))} | {fields_of(cls)} |"
        for cls in sorted(used | _inner(used), key=lambda cls: cls.__name__)
    ]
    return "\n".join([*head, *rows, *messages]) + "\n"


def _inner(used: set[type[Message]]) -> set[type[Message]]:
    """Return the messages of `bus/wire/calls` that only stand inside other messages."""
    modules = {inspect.getmodule(cls) for cls in used}
    named = {
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Message) and ".calls." in cls.__module__
    }
    return {cls for cls in named - used if not any(issubclass(other, cls) for other in used)}


def reasons() -> str:
    lists = {
        "A request fails with": FailReason,
        "A choice finishes with": FinishReason,
        "A refusal has": RefusalReason,
    }
    parts = [
        f"{text} " + ", ".join(f"`{r}`" for r in typing.get_args(kind)) + "."
        for text, kind in lists.items()
    ]
    return "## Reasons\n\n" + "\n\n".join(parts) + "\n"


def page() -> str:
    return "\n".join([HEAD, kinds(), calls(), frames(), reasons()])
