"""A role with a program of `engines.toml`, in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil

from bus.models.tasks import CommandEngine
from bus.wire.messages.tokens import ChoiceEnd, TokenDelta, ToolCallDelta
from runner.roles.command import CommandRole
from tests.harness.role_site import Site

SERVER = Path(__file__).with_name("engine_server.py")


def engine(*arguments: str, **settings: Any) -> CommandEngine:
    """Return the settings of a program of ours, with further arguments."""
    words = [sys.executable, str(SERVER), "--port", "{port}", "--model", "{model}", *arguments]
    given: dict[str, Any] = {"memory_bytes": 1 << 30, "capacity": 2, "stop_s": 1.0, **settings}
    given = {"calls_tools": True, "formats": ("json_schema",), **given}
    return CommandEngine(command=" ".join(words), **given)


class CommandSite(Site[CommandRole]):
    """A role with a program, whose requests are written to `seen`."""

    def __init__(self, folder: Path, settings: CommandEngine, **spec: Any) -> None:
        self.seen_file = folder / "seen"
        command = f"{settings.command} --seen {self.seen_file}"
        made = settings.model_copy(update={"command": command})

        def named(name: str) -> CommandEngine | None:
            return made if name == "m" else None

        factories = {"command_engine": named}
        given: dict[str, Any] = {"context_tokens": 512, "max_rows": 4, "max_waiting": 4, **spec}
        super().__init__(folder, CommandRole, factories, dtype="command", **given)

    @property
    def seen(self) -> list[dict[str, Any]]:
        """What the program was asked, without the short request at its start."""
        return [each for each in self._lines if "body" in each][1:]

    @property
    def hung_up(self) -> int:
        """How many clients closed their connection within an answer."""
        return sum("hung_up" in each for each in self._lines)

    @property
    def _lines(self) -> list[dict[str, Any]]:
        lines = self.seen_file.read_text().splitlines() if self.seen_file.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def processes(self) -> list[psutil.Process]:
        """The guard and the program."""
        every = psutil.Process().children(recursive=True)
        return [each for each in every if str(self.seen_file) in each.cmdline()]

    def text(self, name: str, choice: int = 0, channel: str = "text") -> str:
        entries = self.gateway.entries.get(name, [])
        deltas = [each for each in entries if isinstance(each, TokenDelta)]
        return "".join(e.text for e in deltas if (e.choice, e.channel) == (choice, channel))

    def call(self, name: str) -> tuple[str | None, str]:
        """Return the name and the arguments of a request's only tool call."""
        parts = [e for e in self.gateway.entries[name] if isinstance(e, ToolCallDelta)]
        return parts[0].name, "".join(part.arguments for part in parts)

    def reason(self, name: str, choice: int = 0) -> str:
        ends = [e for e in self.gateway.entries[name] if isinstance(e, ChoiceEnd)]
        return next(end.finish_reason for end in ends if end.choice == choice)
