"""Talks to the disk: gives a program environment variables that are not in supervisord's file.

supervisord reads its file once. A program that has the variable `OVERLAY` there takes further
variables from the file that `OVERLAY` names, at each start. So runners can start with a library
that was chosen after `shoal up`. The file is `{"variables": {NAME: VALUE or null}}`; null removes a
variable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

OVERLAY = "SHOAL_OVERLAY"
OVERLAY_FILE = "runner-variables.json"
"""The name of the runners' file, in the folder of the node's state."""


def overlaid(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with the variables of the file that its `OVERLAY` names. If the file cannot be
    read, the environment stays as it is."""
    variables = dict(env)
    for name, value in variables_in(env.get(OVERLAY, "")).items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    return variables


def variables_in(file: str | Path) -> dict[str, str | None]:
    """Return the variables in a file; none if it cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = cast(dict[str, Any], json.loads(Path(file).read_bytes())["variables"])
        return {name: None if value is None else str(value) for name, value in content.items()}
    return {}


def write_variables(file: Path, variables: Mapping[str, str], **more: object) -> None:
    """Write a file for `OVERLAY`. A variable that the file had before but that `variables` lacks
    becomes null, because supervisord's file may still have it. Raises OSError."""
    gone = dict.fromkeys(variables_in(file))
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps({"variables": {**gone, **variables}, **more}))
    draft.chmod(0o600)
    os.replace(draft, file)
