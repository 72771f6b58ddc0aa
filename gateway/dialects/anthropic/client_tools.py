"""Tools that Anthropic defines and the client runs: a shell, a file editor, a memory in files.

Pure. A body gives only such a tool's type and version, since Anthropic's models know its schema.
Other models do not, so they get it as a function with the parameters that Anthropic documents. A
later version than the known ones is treated as the latest of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KIND = re.compile(r"(bash|text_editor|memory)_(\d{8})")
NEW_TEXT_FROM, UNDO_UNTIL = 20250728, 20250124
"""Two versions of the file editor. From the first version on, inserted text is named `insert_text`.
Up to the second version, edits could be undone."""

_TEXT, _LINE = {"type": "string"}, {"type": "integer", "minimum": 0}
_AFTER = {**_LINE, "description": "For insert: the line after which to add; 0: at the top."}
_RANGE = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_VIEW_RANGE = {**_RANGE, "description": "For view: the first and the last line, from 1; -1: all."}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool's description and parameters, as the model reads them."""

    description: str
    parameters: Mapping[str, Any]


def is_client_tool(kind: str) -> bool:
    """Return whether Anthropic defines this type of tool and the client runs the tool."""
    return KIND.fullmatch(kind) is not None


def client_tool(kind: str) -> ClientTool:
    """Return the tool for a type that passes `is_client_tool`."""
    match = KIND.fullmatch(kind)
    assert match is not None, "the type of the tool was not checked with `is_client_tool`"
    name, version = match[1], int(match[2])
    if name == "bash":
        return _BASH
    return _editor(version) if name == "text_editor" else _MEMORY


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> Mapping[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


_BASH = ClientTool(
    "Run a command in a bash shell that stays open between calls, and return what it prints.",
    _object(
        {
            "command": {**_TEXT, "description": "The command. Required unless restart is true."},
            "restart": {"type": "boolean", "description": "Start the shell anew."},
        },
        (),
    ),
)


def _editor(version: int) -> ClientTool:
    added = "insert_text" if version >= NEW_TEXT_FROM else "new_str"
    commands = ["view", "create", "str_replace", "insert"]
    undo = ""
    if version <= UNDO_UNTIL:
        commands.append("undo_edit")
        undo = ", undo_edit takes back the last change of a file"
    properties: dict[str, Any] = {
        "command": {**_TEXT, "enum": commands},
        "path": {**_TEXT, "description": "The file, or for view also a directory."},
        "file_text": {**_TEXT, "description": "For create: the text of the file."},
        "old_str": {**_TEXT, "description": "For str_replace: the text to replace, found once."},
        "new_str": {**_TEXT, "description": "For str_replace: the new text."},
        "insert_line": _AFTER,
        "view_range": _VIEW_RANGE,
    }
    if added == "insert_text":
        properties[added] = {**_TEXT, "description": "For insert: the text to add."}
    else:
        properties[added] = {
            **_TEXT,
            "description": "For str_replace: the text in its place. For insert: the text to add.",
        }
    description = (
        "View and edit text files: view shows a file or a directory, create writes a file, "
        f"str_replace replaces a text in it, insert adds text after a line{undo}."
    )
    return ClientTool(description, _object(properties, ("command", "path")))


_MEMORY = ClientTool(
    "Keep notes between conversations, as files below /memories: view shows a file or a directory, "
    "create writes a file, str_replace replaces a text in it, insert adds text after a line, "
    "delete deletes a file or a directory, rename moves it.",
    _object(
        {
            "command": {
                **_TEXT,
                "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
            },
            "path": {**_TEXT, "description": "The file or directory; not for rename."},
            "view_range": _VIEW_RANGE,
            "file_text": {**_TEXT, "description": "For create: the text of the file."},
            "old_str": {**_TEXT, "description": "For str_replace: the text to replace."},
            "new_str": {**_TEXT, "description": "For str_replace: the text in its place."},
            "insert_line": _AFTER,
            "insert_text": {**_TEXT, "description": "For insert: the text to add."},
            "old_path": {**_TEXT, "description": "For `rename`: the existing path."},
            "new_path": {**_TEXT, "description": "For `rename`: the new path."},
        },
        ("command",),
    ),
)
