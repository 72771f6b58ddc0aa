"""Write docs/protocol.md from the code: fields of kinds and frames."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

from bus.wire import codec
from bus.wire.array_frames import ArrayFrame
from bus.wire.errors import FailReason, FinishReason, RefusalReason
from bus.wire.messages import tokens
from bus.wire.messages.peers import FIRST_WORDS, FIRST_WORDS_PROTOCOL
from bus.wire.messages.wire import PROTOCOL_MAX, PROTOCOL_MIN, Message

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
HEAD = f"""# Protocol

Generated from the code by `make docs`; do not edit. Protocol versions
spoken: {PROTOCOL_MIN} to {PROTOCOL_MAX}.

Every envelope (control and telemetry planes) is one msgpack array:
`[version, kind, node, process, boot, seq, body]`. On a PUB/SUB socket it follows a frame with
its topic; the retained values that match a new subscription come as one message
`[prefix, topic, payload, topic, payload, ...]`. The kinds
{", ".join(f"`{kind}`" for kind in sorted(FIRST_WORDS))} have version {FIRST_WORDS_PROTOCOL}
and the fields below for ever ([decision 0015](decisions/messages.md#0015)).
Data frames are msgpack arrays `[tag, *fields]`.
Topics, and the file of each kind: [reference.md](reference.md).
"""


def first_paragraph(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def type_name(annotation: object) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)
    text = re.sub(
        r"Annotated\[str, StringConstraints\(.*?pattern=('[^']*').*?\)\]", r"text \1", text
    )
    for noise in ("typing.", "bus.wire.messages.", "bus.", "<class '", "'>"):
        text = text.replace(noise, "")
    return text.replace("|", "\\|")


def kind_section(kind: str, cls: type[Message]) -> str:
    rows = [
        f"| `{name}` | `{type_name(field.annotation)}` | {'yes' if field.is_required() else 'no'} |"
        for name, field in cls.model_fields.items()
        if name != "kind"
    ]
    table = "| field | type | required |\n|---|---|---|\n" + "\n".join(rows) if rows else ""
    return f"### `{kind}`\n\n{first_paragraph(cls)}\n\n{table}".rstrip() + "\n"


def kinds() -> str:
    parts = [kind_section(kind, cls) for kind, cls in sorted(codec.KINDS.items())]
    return "## Kinds\n\n" + "\n".join(parts)


def frames() -> str:
    found = [
        value
        for value in vars(tokens).values()
        if isinstance(value, type) and issubclass(value, ArrayFrame) and value is not ArrayFrame
    ]
    parts: list[str] = []
    for cls in found:
        fields = ", ".join(f"`{name}`" for name in cls.__struct_fields__)
        parts.append(f"- **{cls.__name__}** ({fields}): {first_paragraph(cls)}")
    return "## Data frames\n\n" + "\n".join(parts) + "\n"


def reasons() -> str:
    lists = {
        "A request fails because of": FailReason,
        "A choice finishes because of": FinishReason,
        "A refusal is because of": RefusalReason,
    }
    parts = [
        f"{text} " + ", ".join(f"`{r}`" for r in typing.get_args(kind)) + "."
        for text, kind in lists.items()
    ]
    return "## Reasons\n\n" + "\n\n".join(parts) + "\n"


def page() -> str:
    return "\n".join([HEAD, kinds(), frames(), reasons()])
