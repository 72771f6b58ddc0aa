"""A role with a real llama-server, in this process, and the bundled model as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from bus.wire.messages.requests import ChatMessage, ChatPrompt, TextPart
from bus.wire.messages.tokens import ChoiceEnd, TokenDelta
from conf.paths import bundled_models, llama_server
from runner.__main__ import load_text
from runner.roles.llama import LlamaRole
from tests.harness.gguf_files import from_qwen3, small
from tests.harness.hub import files_of
from tests.harness.role_site import Site

PROGRAM = llama_server("")
TINY = bundled_models()["shoal-tiny"]
needs_program = pytest.mark.skipif(
    not PROGRAM, reason="llama-server is not installed (the extra llamacpp is for Linux)"
)


def tiny_gguf(folder: Path) -> Path:
    """Make a folder with the bundled model as a GGUF file, and the model's tokenizer beside it."""
    from_qwen3(TINY, folder / "tiny.gguf")
    (folder / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    return folder


def tiny_gguf_repository(folder: Path, parts: int = 2) -> dict[str, bytes]:
    """Make a repository of the bundled model in GGUF: one file, called Q8_0, and parts, called
    Q4_K_M, in a folder; with the tokenizer and a projector."""
    from_qwen3(TINY, folder / "Tiny-Q8_0.gguf")
    from_qwen3(TINY, folder / "Q4_K_M" / "Tiny-Q4_K_M.gguf", count=parts)
    (folder / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    (folder / "README.md").write_text("# Tiny")
    (folder / "mmproj-F16.gguf").write_bytes(small(general__architecture="clip"))
    return files_of(folder)


class LlamaSite(Site[LlamaRole]):
    """A role with a llama-server, for a model's folder."""

    def __init__(
        self, folder: Path, model: Path, program: tuple[str, ...] = PROGRAM, **spec: Any
    ) -> None:
        factories = {"load_sent_text": load_text, "llama_server": program}
        given = {"context_tokens": 512, "max_rows": 4, "max_waiting": 4, **spec}
        super().__init__(folder, LlamaRole, factories, path=str(model), dtype="gguf", **given)

    def close(self) -> None:
        super().close()
        assert not list(Path(self.folder).glob("*.llama.sock"))

    @property
    def folder(self) -> str:
        return self.address.removeprefix("ipc://").removesuffix("/data")

    @property
    def children(self) -> list[psutil.Process]:
        """The llama-servers of this role."""
        every = psutil.Process().children()
        return [
            each for each in every if f"{self.folder}/runner-00.llama" in " ".join(each.cmdline())
        ]

    @property
    def child(self) -> psutil.Process:
        (child,) = self.children
        return child

    @property
    def has_child(self) -> bool:
        return bool(self.children)

    def text(self, name: str, choice: int = 0) -> str:
        entries = self.gateway.entries.get(name, [])
        deltas = (each for each in entries if isinstance(each, TokenDelta))
        return "".join(each.text for each in deltas if each.choice == choice)

    def reason(self, name: str, choice: int = 0) -> str:
        ends = [e for e in self.gateway.entries[name] if isinstance(e, ChoiceEnd)]
        return next(end.finish_reason for end in ends if end.choice == choice)


def chat(text: str) -> ChatPrompt:
    return ChatPrompt(messages=(ChatMessage(role="user", parts=(TextPart(text=text),)),))
