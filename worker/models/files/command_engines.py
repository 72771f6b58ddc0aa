"""Talks to the disk: the programs of `engines.toml` as models of this node.

The last valid version of the file is in force. A program has no weights that shoal could read, so
its card has the memory that the file states, or that was measured at its last load.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bus.models.tasks import (
    COMMAND_DTYPE,
    COMMAND_TAG,
    ENGINES_FILE,
    MOST_BYTES,
    CommandEngine,
    EngineTable,
    read_engines,
)
from bus.process.installation import environment_in
from bus.wire.cards import ModelCard, PassedOver
from bus.wire.errors import ConfigError
from bus.wire.ids import ModelId
from worker.models.passed_over import (
    Unfit,
    bad_engines,
    engine_name_taken,
    no_environment,
    notice_of,
)

FILES_RATIO, UNMEASURED_BYTES = 1.3, 2_000_000_000
"""The assumed memory of a program that was never loaded: `FILES_RATIO` times the size of its
model's files, or `UNMEASURED_BYTES` if the program names no folder of files."""


@dataclass(frozen=True, slots=True)
class EnginesLook:
    """The programs of `engines.toml` as models, and the notices about programs that cannot be
    used."""

    cards: tuple[ModelCard, ...] = ()
    notices: tuple[PassedOver, ...] = ()


class CommandEngines:
    """The programs of `engines.toml` (`file`; None: there is none), which is read again when it
    changes. `environments`: the folder of the environments of packages that the programs may run
    in."""

    def __init__(self, file: Path | None, environments: Path | None = None) -> None:
        self._file = file
        self._environments = environments
        self._stamp: tuple[int, int] | None = None
        self._table = EngineTable()
        self._written_at_s = 0
        self._unfit: Unfit | None = None

    def look(
        self, models: Mapping[ModelId, ModelCard], measured: Mapping[ModelId, int]
    ) -> EnginesLook:
        """Return the programs as models. A program cannot have the name of one of `models`, which
        have files. `measured` is the memory of programs that were loaded before, in bytes; it does
        not count for a program on GPUs, whose memory there shoal does not measure."""
        if self._file is None:
            return EnginesLook()
        self._read(self._file)
        cards: list[ModelCard] = []
        notices: list[PassedOver] = []
        if self._unfit is not None:
            notices.append(notice_of(ENGINES_FILE, str(self._file), self._unfit))
        for name, engine in self._table.engines.items():
            model = ModelId(name)
            if model in models:
                unfit = engine_name_taken(models[model].path)
                notices.append(notice_of(name, str(self._file), unfit))
            elif self._lacks(engine.venv):
                notices.append(notice_of(name, str(self._file), no_environment(engine.venv)))
            else:
                size = memory_of(engine, 0 if engine.gpus else measured.get(model, 0))
                cards.append(engine_card(model, engine, size, str(self._file), self._written_at_s))
        return EnginesLook(tuple(cards), tuple(notices))

    def _lacks(self, venv: str) -> bool:
        if not venv or self._environments is None:
            return bool(venv)
        return environment_in(self._environments, venv) is None

    def _read(self, file: Path) -> None:
        try:
            status = os.stat(file)
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            with open(file, "rb") as opened:
                table = read_engines(opened.read(MOST_BYTES + 1).decode())
        except FileNotFoundError:
            self._stamp, self._table, self._unfit = None, EngineTable(), None
            return
        except (ConfigError, UnicodeDecodeError, OSError) as error:
            self._unfit = bad_engines(error)
            return
        self._stamp, self._table, self._unfit = stamp, table, None
        self._written_at_s = int(status.st_mtime)


def memory_of(engine: CommandEngine, measured_bytes: int) -> int:
    """Return the memory to reserve for a program, in bytes: as `engines.toml` states, else as
    measured (0: not yet), else by the files of its model, else `UNMEASURED_BYTES`."""
    if (stated := engine.memory_bytes or measured_bytes) > 0:
        return stated
    folder = Path(engine.model)
    size = 0
    if folder.is_absolute():
        with contextlib.suppress(OSError):
            size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return int(FILES_RATIO * size) or UNMEASURED_BYTES


def engine_card(
    model: ModelId, engine: CommandEngine, memory_bytes: int, path: str, written_at_s: int
) -> ModelCard:
    """Return the model card of a program of `engines.toml`: the program runs the whole model on one
    node. `path` is the path of `engines.toml`."""
    able = {"tools": engine.calls_tools, "thinking": engine.thinks, "vision": engine.sees}
    return ModelCard(
        model=model,
        path=path,
        family="engine",
        layers=1,
        weights_bytes=memory_bytes,
        size_bytes=0,
        kv_bytes_per_token=0,
        context_tokens=engine.context_tokens,
        vocabulary=0,
        dtype=COMMAND_DTYPE,
        digest=sha256(engine.model_dump_json().encode()).hexdigest(),
        modified_at_s=written_at_s,
        capabilities=("completion", *(word for word, can in able.items() if can)),
        keep_alive_s=engine.keep_alive_s,
        unsplit_because="a program of engines.toml runs on one node",
        compatible_backends=(f"{COMMAND_TAG}{model}",),
        origin="engine",
        memory_bytes=memory_bytes,
        gpus=tuple(sorted(set(engine.gpus))),
        kv_full_because="a program of engines.toml has its own KV cache",
    )


def tags_of(models: Iterable[ModelCard]) -> tuple[str, ...]:
    """Return the tags of the backends of this node's programs."""
    return tuple(f"{COMMAND_TAG}{card.model}" for card in models if card.origin == "engine")
