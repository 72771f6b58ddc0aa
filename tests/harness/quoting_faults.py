"""Faults that quote what they were given: errors whose words are a client's, raised in a node's own
processes where no request should lead.

`variables` has every process of a node take them: a `sitecustomize` of its own patches the modules
as they are imported. A fault strikes a request that has its word in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

IN_PARSING = "fault-while-parsing"
IN_A_STREAM = "fault-within-a-stream"
IN_PREPARING = "fault-while-preparing"
IN_A_RUNNER = "fault-that-ends-a-runner"
PROGRAM = "from tests.harness import quoting_faults\nquoting_faults.install()\n"
FOLDER = "QUOTING_FAULTS"
ROOT = Path(__file__).resolve().parents[2]


def variables(folder: Path) -> dict[str, str]:
    """What a node is started with; `folder` is to be there for as long as it runs."""
    (folder / "sitecustomize.py").write_text(PROGRAM)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", FOLDER: str(folder)}


def install() -> None:
    """Have the modules patched when they are imported."""
    sys.meta_path.insert(0, _Patching())


class _Patching(MetaPathFinder):
    """Finds the modules that are patched, as Python does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = PATCHES.get(fullname)
        spec = None if patch is None else PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None and patch is not None:
            spec.loader = _Patched(spec.loader, patch)
        return spec


class _Patched(Loader):
    """Loads a module, then patches it."""

    def __init__(self, loader: Loader, patch: Callable[[Any], None]) -> None:
        self._loader, self._patch = loader, patch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)


def _chat(module: Any) -> None:
    """Parsing raises, and so do a thread and a task that it began; a renderer does."""
    parse, stream = module.OpenAIChat.parse, module.OpenAIChat.stream

    def faulty_parse(self: Any, body: bytes, context: Any) -> Any:
        if IN_PARSING.encode() in body:
            error = LookupError(f"no way to take {body!r}")
            threading.Thread(target=_raises, args=(error,)).start()
            loop = asyncio.get_running_loop()
            loop.call_soon(_raises, LookupError(f"called back for {body!r}"))
            _forgotten(loop.create_task(_raises_later(str(body))))
            try:
                raise ValueError(f"of {body!r}")
            except ValueError as cause:
                raise error from cause
        return parse(self, body, context)

    def faulty_stream(self: Any, parsed: Any, *, load_s: float = 0.0) -> Any:
        renderer = stream(self, parsed, load_s=load_s)
        if IN_A_STREAM in repr(parsed):
            error = UnicodeError(f"no text: {parsed!r}")
            renderer.render = partial(_raises_at, error)
        return renderer

    module.OpenAIChat.parse, module.OpenAIChat.stream = faulty_parse, faulty_stream


def _text(module: Any) -> None:
    """Preparing a request raises."""
    prepare = module.Text.prepare

    def faulty(self: Any, request: Any, context_tokens: int) -> Any:
        if IN_PREPARING in repr(request):
            raise KeyError(repr(request))
        return prepare(self, request, context_tokens)

    module.Text.prepare = faulty


def _server(module: Any) -> None:
    """Taking a request up raises in the runner's main thread, which ends it; once, for the request
    is sent again to the next."""
    act_on = module.RequestServer.act_on

    def faulty(self: Any, peer: bytes, message: Any, now: float) -> Any:
        if IN_A_RUNNER in repr(message):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{os.environ[FOLDER]}/struck", os.O_CREAT | os.O_EXCL))
                raise RuntimeError(repr(message))
        return act_on(self, peer, message, now)

    module.RequestServer.act_on = faulty


PATCHES: dict[str, Callable[[Any], None]] = {
    "gateway.dialects.openai.chat": _chat,
    "runner.text.text": _text,
    "runner.serving.request_server": _server,
}


def _raises(error: Exception) -> None:
    raise error


def _raises_at(error: Exception, _entries: Any) -> None:
    raise error


async def _raises_later(text: str) -> None:
    raise LookupError(f"later, {text}")


def _forgotten(_task: Any) -> None:
    """Nothing waits for it."""
