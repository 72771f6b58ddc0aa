"""Talks to the file system: example commands for a running node, ready to paste."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

from bus.process.identity import TOKEN_FILE
from conf.settings import Settings
from gateway.cli.output.errors import at_home


def program() -> str:
    """Return how to call the command line from this shell: `shoal` if PATH finds the `shoal` of
    this installation, else the path of that program."""
    here = Path(sys.prefix) / "bin" / "shoal"
    on_path = shutil.which("shoal")
    if on_path is not None and Path(on_path).resolve() == here.resolve():
        return "shoal"
    cwd = Path.cwd()
    return shlex.quote(str(here.relative_to(cwd) if here.is_relative_to(cwd) else here))


def next_steps(called: str, settings: Settings, *, home: Path | None) -> tuple[str, ...]:
    """Return three command lines: chat with the default model, send it a request over HTTP, and
    stop the node.

    `called` is how this shell calls the program. `home` is the chosen home, None for the default.
    """
    model, url = settings.default_model, settings.url
    by = ""
    if not settings.api:
        by, url = f" --unix-socket {shlex.quote(settings.endpoints.http)}", "http://localhost"
    where = at_home(home)
    question = {"role": "user", "content": "What is shoal?"}
    body = {"model": model, "messages": [question]}
    token = "$SHOAL_API_KEY" if settings.api_keys else ""
    if settings.http_owner_only:
        token = f"$(cat {shlex.quote(str(settings.paths.state / TOKEN_FILE))})"
    key = f' -H "Authorization: Bearer {token}"' if token else ""
    if settings.tls is not None:
        by = f" --cacert {shlex.quote(settings.http_tls_cert)}"
    return (
        f"{called} run {shlex.quote(model)}{where}",
        f"curl{by} {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d {shlex.quote(json.dumps(body))}",
        f"{called} down{where}",
    )
