"""Talks to a model through the node's API: `shoal run` and `shoal chat`.

Ctrl-C stops the answer: the connection closes and the node cancels the request. The conversation
keeps the partial answer. At the prompt Ctrl-C clears the line; /bye ends the chat.
"""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.errors import USAGE, CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.models.instances import ModelName

SILENT_S = 2.0
"""If nothing arrives on standard input for this many seconds, a message says that shoal waits for
input."""
HISTORY_FILE = "chat-history"
HELP = """\
/bye          end the chat (also Ctrl-D)
/clear        start a new conversation
/system TEXT  set the system prompt and start a new conversation
/help         show this help
\"\"\"           start and end a message of several lines"""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Generation options that the user chose. If an option is None, the node chooses its value."""

    system: Annotated[
        str | None, typer.Option("--system", help="System prompt: how the model should behave.")
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="0 always picks the most likely token."),
    ] = None
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1)] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="The same seed gives the same answer.")
    ] = None
    think: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Think before the answer, or not.")
    ] = None

    def body(self, model: str, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Return the chat completion request for a conversation."""
        return {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": self.temperature,
            "max_completion_tokens": self.max_tokens,
            "seed": self.seed,
            "chat_template_kwargs": None if self.think is None else {"enable_thinking": self.think},
        }

    def opening(self) -> list[dict[str, str]]:
        """Return the messages of a new conversation."""
        return [] if self.system is None else [{"role": "system", "content": self.system}]


@dataclass(slots=True)
class StreamedAnswer:
    """A streamed answer, with the parts that have arrived so far."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    ttft_s: float | None = None
    took_s: float = 0.0
    stopped: bool = False

    def take(self, event: Mapping[str, Any]) -> tuple[str, str]:
        """Add an event of the stream. Return the channel and the new text."""
        if event.get("usage"):
            self.usage = event["usage"]
        for choice in event.get("choices", []):
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = cast(dict[str, Any], choice.get("delta") or {})
            if delta.get("reasoning_content"):
                self.reasoning += delta["reasoning_content"]
                return "reasoning", delta["reasoning_content"]
            if delta.get("content"):
                self.text += delta["content"]
                return "text", delta["content"]
        return "text", ""


def run(
    invocation: Invocation,
    model: ModelName,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="The prompt; piped input is added to it. Without either: a chat."),
    ] = None,
    *,
    wishes: Wishes,
) -> None:
    """Send a prompt to a model and stream its answer. Without a prompt, chat with the model.

    Piped input is added to the prompt: `cat notes.txt | shoal run MODEL "Summarise this:"`.
    """
    question = " ".join(prompt or [])
    _offer_to_pull(invocation, model)
    if not question and sys.stdin.isatty():
        converse(invocation, model, wishes)
        return
    text = "\n\n".join(part for part in (question, read_piped(invocation.output)) if part)
    if not text:
        raise CliError("the prompt is empty", remedy="add a prompt: `shoal run MODEL hi`")
    messages = [*wishes.opening(), {"role": "user", "content": text}]
    reply = answer(invocation.api(), model, wishes, messages, invocation.output)
    invocation.output.document(_fields(model, reply))
    if reply.stopped:
        raise KeyboardInterrupt


def is_terminal() -> bool:
    """Return whether a user reads the output and can answer a question."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def read_piped(output: Output) -> str:
    """Return all of standard input; empty if standard input is a terminal."""
    if sys.stdin.isatty():
        return ""
    with contextlib.suppress(OSError, ValueError):
        if not select.select([sys.stdin], [], [], SILENT_S)[0]:
            output.note("reading standard input to its end (`</dev/null` skips it)")
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise CliError(f"standard input is not text: {error}", code=USAGE) from None


def chat(
    invocation: Invocation,
    model: Annotated[
        str | None, typer.Argument(help="A model; default: the node's default model.")
    ] = None,
    *,
    wishes: Wishes,
) -> None:
    """Chat with a model. /bye ends the chat, Ctrl-C stops an answer."""
    model = model or invocation.settings().default_model
    _offer_to_pull(invocation, model)
    converse(invocation, model, wishes)


def _offer_to_pull(invocation: Invocation, model: str) -> None:
    """On a terminal, offer to pull a model that no node has. Elsewhere the request fails with an
    error that names `shoal pull`. Raises CliError."""
    if is_terminal() and not invocation.output.as_json:
        from gateway.cli.verbs.store.pulling import pull_if_missing

        pull_if_missing(invocation, model)


def converse(invocation: Invocation, model: str, wishes: Wishes) -> None:
    """Read messages and show answers, until /bye or the end of the input."""
    output, api = invocation.output, invocation.api()
    with _line_editing(invocation):
        if sys.stdin.isatty():
            output.note(f"{model} at {api.url}; /bye ends the chat, /help shows the commands")
        messages = wishes.opening()
        while True:
            try:
                line = read_message()
            except EOFError:
                return
            except KeyboardInterrupt:
                output.note("\n/bye ends the chat")
                continue
            if line.startswith("/"):
                command, _, rest = line.partition(" ")
                if command in ("/bye", "/exit", "/quit"):
                    return
                if command == "/clear":
                    messages = wishes.opening()
                    output.note("a new conversation")
                elif command == "/system" and rest:
                    messages = [{"role": "system", "content": rest}]
                    output.note("a new conversation")
                else:
                    output.note(HELP)
                continue
            if line:
                messages.append({"role": "user", "content": line})
                messages = _turn(api, model, wishes, messages, output)


def _turn(
    api: NodeApi, model: str, wishes: Wishes, messages: list[dict[str, str]], output: Output
) -> list[dict[str, str]]:
    """Return the conversation with the answer. If the request failed, return the conversation
    without the last question."""
    try:
        reply = answer(api, model, wishes, messages, output)
    except CliError as problem:
        output.error(problem)
        return messages[:-1]
    if output.as_json:
        output.line(_fields(model, reply))
    if reply.stopped:
        output.note("(stopped)")
    return [*messages, {"role": "assistant", "content": reply.text}]


def answer(
    api: NodeApi, model: str, wishes: Wishes, messages: list[dict[str, str]], output: Output
) -> StreamedAnswer:
    """Send the conversation and show the answer as it arrives. Reasoning is dimmed and goes to
    standard error. An interrupt ends the answer and sets `stopped`."""
    reply, began = StreamedAnswer(), time.monotonic()
    channel: str | None = None
    try:
        with (
            output.waiting() as wait,
            api.events("/v1/chat/completions", wishes.body(model, messages), wait) as events,
        ):
            for event in events:
                spoken, text = reply.take(event)
                if text and reply.ttft_s is None:
                    reply.ttft_s = time.monotonic() - began
                    wait("")
                if not text or output.as_json:
                    continue
                if channel not in (None, spoken):
                    (output.write if channel == "text" else output.think)("\n")
                channel = spoken
                (output.write if spoken == "text" else output.think)(text)
    except KeyboardInterrupt:
        reply.stopped = True
    reply.took_s = time.monotonic() - began
    if not output.as_json:
        output.write("\n")
    tokens = reply.usage.get("completion_tokens")
    if tokens and reply.ttft_s is not None:
        pace = (tokens - 1) / max(1e-9, reply.took_s - reply.ttft_s)
        output.detail(f"{tokens} tokens, first after {reply.ttft_s:.2f} s, then {pace:.1f}/s")
    return reply


def read_message() -> str:
    """Read one message from the prompt: a line, or several lines between triple quotes."""
    prompt = ">>> " if sys.stdin.isatty() else ""
    line = input(prompt).strip()
    if not line.startswith('"""'):
        return line
    lines = [line[3:]]
    while not lines[-1].endswith('"""'):
        lines.append(input("... " if prompt else ""))
    return "\n".join(lines)[:-3].strip()


@contextlib.contextmanager
def _line_editing(invocation: Invocation) -> Generator[None]:
    """If there is a terminal and readline, enable arrow keys and a stored history of messages."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:
        yield
        return
    path: Path = invocation.settings().paths.state / HISTORY_FILE
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(path)
            path.chmod(0o600)


def _fields(model: str, reply: StreamedAnswer) -> dict[str, Any]:
    return {
        "model": model,
        "text": reply.text,
        "reasoning": reply.reasoning,
        "finish_reason": "interrupted" if reply.stopped else reply.finish_reason,
        "usage": reply.usage,
        "ttft_s": reply.ttft_s,
        "took_s": reply.took_s,
    }
