"""aider's calls: one message in a git repository of its own, over Ollama's chat and OpenAI's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from telling import COUNT, COUNTED, At, tell, told

QUIET = [
    "--no-auto-commits",
    "--no-analytics",
    "--analytics-disable",
    "--no-check-update",
    "--no-gitignore",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-detect-urls",
    "--no-suggest-shell-commands",
    "--no-pretty",
    "--no-fancy-input",
    "--yes-always",
    "--map-tokens",
    "0",
]


def ask(at: At, provider: str, *words: str) -> str:
    """Return what aider printed of one message; fails where it tells of an error."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        (Path(folder) / "fish.txt").write_text("one fish\n")
        prices = Path(folder) / ".aider" / "caches" / "model_prices_and_context_window.json"
        prices.parent.mkdir(parents=True)
        prices.write_text('{"known": {}}')  # else aider fetches it from the internet
        bases = {"OLLAMA_API_BASE": at.url, "OPENAI_API_BASE": f"{at.url}/v1"}
        done = subprocess.run(
            [sys.executable, "-m", "aider", *QUIET, "--model", f"{provider}/{at.model}", *words],
            cwd=folder,
            env={**os.environ, **bases, "OPENAI_API_KEY": "none", "HOME": folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for sign in ("litellm.", "Error", "Retrying", "Traceback"):
        assert sign not in said, said
    assert "Tokens:" in said, said
    return said


def asks(at: At, provider: str, stream: str) -> None:
    """Hold aider's question to an answer, and its count of tokens."""
    said = ask(at, provider, stream, "--chat-mode", "ask", "--message", COUNT)
    assert COUNTED in said, said


def edits(at: At, provider: str) -> None:
    """Hold a message about a file to an answer: an edit is beyond the bundled model."""
    ask(at, provider, "--edit-format", "whole", "--message", "Say hello", "fish.txt")


@told("ollama_chat: ask, streamed")
def asks_ollama(at: At) -> None:
    """Ask over Ollama's chat."""
    asks(at, "ollama_chat", "--stream")


@told("ollama_chat: ask, whole")
def asks_ollama_whole(at: At) -> None:
    """Ask over Ollama's chat, without a stream."""
    asks(at, "ollama_chat", "--no-stream")


@told("ollama_chat: a file in the chat")
def edits_ollama(at: At) -> None:
    """Show a file over Ollama's chat."""
    edits(at, "ollama_chat")


@told("openai: ask, streamed")
def asks_openai(at: At) -> None:
    """Ask over OpenAI's chat."""
    asks(at, "openai", "--stream")


if __name__ == "__main__":
    tell("aider", "aider-chat")
