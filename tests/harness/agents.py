"""Talks to coding agents: each answers and edits a file, led by a script through a real gateway.

python -m tests.harness.agents claude|codex|codex-oss

Run it where no network is but the loopback one (`inside_alone`): the agents have a home of their
own and no one to call. What the model says is written here, in the markup of the bundled model's
family; everything between that and the agent is the real thing. Prints one JSON line for each call.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.harness.javascript import Installed, installed
from tests.harness.scripted_gateway import scripted_gateway
from tests.harness.scripted_runner import Line

PATIENCE_S = 90.0
HOMES = "/var/tmp"
"""Not /tmp, where Codex wants no home."""
HELLO = "ORDER-1: say hello"
TASK = "ORDER-2: make the sea blue"
GREETING = "Hello from behind the gateway: «ä, 海, 🐟»."
DONE = "The sea is blue now."
TOO_LONG = "word " * 20_000
LOOK = "ORDER-3: look at the picture"
SEEN = "It is a picture, I am told."
SEA, SKY = "the sea is green\n", "the sky is grey\n"
BLUE = "the sea is blue\n"
PICTURE = "dot.png"
TOLD = "[image left out: only text can be read here]"


@dataclass(frozen=True)
class Said:
    """What an agent ended with: its text, and how many tokens of prompts were found computed."""

    text: str
    cached_tokens: int


@dataclass(frozen=True)
class Agent:
    """One agent: how it is started, how its answer is read, and what its model says in the loops:
    editing a file, and looking at a picture. `overflow` are its words for too long a prompt."""

    client: str
    package: str
    words: Callable[[str], list[str]]
    variables: Callable[[str], dict[str, str]]
    settle: Callable[[Path, str], None]
    read: Callable[[str], Said]
    loop: Callable[[Path], list[Line]]
    look: Callable[[Path], list[Line]]
    overflow: str


def call(name: str, **arguments: object) -> str:
    """Return a call of a tool, as the bundled model's family writes it."""
    said = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{said}\n</tool_call>"


def thought(text: str) -> str:
    """Return a thinking block, as the bundled model's family writes it."""
    return f"<think>\n{text}\n</think>\n\n"


# --- Claude Code ----------------------------------------------------------------------------


def claude_variables(url: str) -> dict[str, str]:
    """Return Claude Code's settings: our server, and no other traffic."""
    names = ("MODEL", "SMALL_FAST_MODEL", "DEFAULT_HAIKU_MODEL", "DEFAULT_SONNET_MODEL")
    quiet = ("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER")
    quiet += ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_BUG_COMMAND")
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        **{f"ANTHROPIC_{name}": "shoal-tiny" for name in names},
        **dict.fromkeys(quiet, "1"),
    }


def claude_words(prompt: str) -> list[str]:
    """Return how Claude Code is asked, with leave to edit files."""
    program = "node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"
    ask = ["-p", prompt, "--output-format", "json", "--permission-mode", "acceptEdits"]
    return [program, *ask, "--allowedTools", "Read,Edit,ToolSearch"]


def read_claude(output: str) -> Said:
    """Read the one JSON object that Claude Code prints at its end."""
    told = json.loads(output.splitlines()[-1])
    assert told["subtype"] == "success" and not told["is_error"], output
    return Said(told["result"], told["usage"]["cache_read_input_tokens"])


def claude_loop(work: Path) -> list[Line]:
    """Return two reads at once, then an edit, each after thinking."""
    sea, sky = str(work / "sea.txt"), str(work / "sky.txt")
    reads = call("Read", file_path=sea) + "\n" + call("Read", file_path=sky)
    edit = call("Edit", file_path=sea, old_string=SEA.strip(), new_string=BLUE.strip())
    return [
        ("ORDER-2", thought("First I look.") + "I read both files.\n" + reads),
        (SKY.strip(), thought("Now I know.") + edit),
        ("updated successfully", thought("That was it.") + DONE),
    ]


def claude_look(work: Path) -> list[Line]:
    """Return a search for a tool that was not told of, then a look at a picture."""
    search = call("ToolSearch", query="select:WebFetch", max_results=5)
    return [
        ("ORDER-3", "I search.\n" + search),
        ("The tool WebFetch can be called now.", call("Read", file_path=str(work / PICTURE))),
        (TOLD, SEEN),
    ]


def settle_claude(home: Path, url: str) -> None:
    """Need no file: Claude Code is told everything by its environment."""


CLAUDE = Agent(
    client="Claude Code",
    package="@anthropic-ai/claude-code",
    words=claude_words,
    variables=claude_variables,
    settle=settle_claude,
    read=read_claude,
    loop=claude_loop,
    look=claude_look,
    overflow="Prompt is too long",
)

# --- Codex ----------------------------------------------------------------------------------

CODEX_SETTINGS = """
model = "shoal-tiny"
model_provider = "shoal"
model_reasoning_effort = "medium"
model_context_window = 200000
check_for_update_on_startup = false

[model_providers.shoal]
name = "shoal"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[otel]
exporter = "none"
"""


def settle_codex(home: Path, url: str) -> None:
    """Write Codex's settings: our server, and no telemetry."""
    folder = home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CODEX_SETTINGS.format(url=url))


def codex_words(prompt: str) -> list[str]:
    """Return how Codex is asked, free to run what the script tells it."""
    program = "node_modules/@openai/codex/bin/codex.js"
    free = ["--skip-git-repo-check", "--sandbox", "danger-full-access"]
    return [program, "exec", "--json", *free, prompt]


def read_codex(output: str) -> Said:
    """Read the last message, and the usage, of the events that Codex prints."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    texts = [item["text"] for item in items if item["type"] == "agent_message"]
    usages = [event["usage"] for event in events if event["type"] == "turn.completed"]
    assert texts and usages, output
    return Said(texts[-1], usages[-1]["cached_input_tokens"])


def codex_loop(work: Path) -> list[Line]:
    """Return two looks at once, then a patch, each after thinking."""
    cat = [call("exec_command", cmd=f"cat {name}.txt") for name in ("sea", "sky")]
    lines = ["*** Begin Patch", "*** Update File: sea.txt", "@@", f"-{SEA.strip()}"]
    lines += [f"+{BLUE.strip()}", "*** End Patch"]
    patch = "apply_patch <<'EOF'\n" + "\n".join(lines) + "\nEOF\n"
    return [
        ("ORDER-2", thought("First I look.") + "I read both files.\n" + "\n".join(cat)),
        (SKY.strip(), thought("Now I know.") + call("exec_command", cmd=patch)),
        ("Success. Updated", thought("That was it.") + DONE),
    ]


def codex_look(work: Path) -> list[Line]:
    """Return a look at a picture."""
    view = call("view_image", path=str(work / PICTURE))
    return [("ORDER-3", "I look.\n" + view), (TOLD, SEEN)]


def no_variables(url: str) -> dict[str, str]:
    """Return nothing: Codex reads its settings from a file."""
    return {}


CODEX = Agent(
    client="Codex",
    package="@openai/codex",
    words=codex_words,
    variables=no_variables,
    settle=settle_codex,
    read=read_codex,
    loop=codex_loop,
    look=codex_look,
    overflow="ran out of room in the model's context window",
)


def settle_oss(home: Path, url: str) -> None:
    """Write Codex's settings where it finds its server by itself: no telemetry, no updates."""
    folder = home / ".codex"
    folder.mkdir(exist_ok=True)
    quiet = "check_for_update_on_startup = false\n[analytics]\nenabled = false\n"
    (folder / "config.toml").write_text(quiet)


def oss_variables(url: str) -> dict[str, str]:
    """Return where Codex finds an Ollama."""
    return {"CODEX_OSS_BASE_URL": f"{url}/v1"}


def oss_words(prompt: str) -> list[str]:
    """Return how Codex is asked to use the Ollama that runs here."""
    program, verb, *rest = codex_words(prompt)
    return [program, verb, "--oss", "--local-provider", "ollama", "-m", "shoal-tiny", *rest]


CODEX_OSS = replace(
    CODEX,
    client="Codex --oss",
    words=oss_words,
    variables=oss_variables,
    settle=settle_oss,
)
AGENTS = {"claude": CLAUDE, "codex": CODEX, "codex-oss": CODEX_OSS}

# --- the story ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """An agent with a home and a folder of its own, before a server."""

    agent: Agent
    environment: Installed
    home: Path
    work: Path
    url: str

    def run(self, prompt: str) -> subprocess.CompletedProcess[str]:
        """Run the agent with this prompt, to its end."""
        path = f"{self.environment.node.parent}:/usr/local/bin:/usr/bin:/bin"
        plain = {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb"}
        program, *words = self.agent.words(prompt)
        return self.environment.run(
            str(self.environment.folder / program),
            *words,
            seconds=PATIENCE_S,
            cwd=self.work,
            env={**plain, **self.agent.variables(self.url)},
        )

    def ask(self, prompt: str) -> Said:
        """Ask the agent; returns what it ended with. Fails where it fails."""
        done = self.run(prompt)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return self.agent.read(done.stdout)

    def greet(self) -> None:
        """Have it answer in words, every one of which arrives."""
        assert self.ask(HELLO).text == GREETING

    def edit(self) -> None:
        """Have it look at two files and edit one; the prompt's beginning is computed once."""
        (self.work / "sea.txt").write_text(SEA)
        (self.work / "sky.txt").write_text(SKY)
        said = self.ask(TASK)
        assert said.text == DONE, said
        assert (self.work / "sea.txt").read_text() == BLUE
        assert (self.work / "sky.txt").read_text() == SKY
        assert said.cached_tokens > 10_000, said

    def look(self) -> None:
        """Have it look at a picture: the model is told that there was one, and it goes on."""
        (self.work / PICTURE).write_bytes(picture())
        assert self.ask(LOOK).text == SEEN

    def overflow(self) -> None:
        """Have it send too long a prompt: it knows the refusal for what it is."""
        done = self.run(TOO_LONG)
        assert done.returncode != 0
        assert self.agent.overflow in done.stdout, done.stdout[-2000:]


def picture() -> bytes:
    """Return a PNG file of one red dot."""

    def piece(kind: bytes, data: bytes) -> bytes:
        size, check = struct.pack(">I", len(data)), struct.pack(">I", zlib.crc32(kind + data))
        return size + kind + data + check

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    dot = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + piece(b"IHDR", head) + piece(b"IDAT", dot) + piece(b"IEND", b"")


def tell(agent: Agent) -> None:
    """Print how each call of the agent's story went."""
    environment = installed("agents")
    package = environment.folder / "node_modules" / agent.package / "package.json"
    version = json.loads(package.read_text())["version"]
    with tempfile.TemporaryDirectory(prefix="shoal-agent-", dir=HOMES) as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        script = [("", "Fine."), ("ORDER-1", GREETING), *agent.loop(work), *agent.look(work)]
        with scripted_gateway(script) as bed:
            agent.settle(home, bed.url)
            stage = Stage(agent, environment, home, work, bed.url)
            calls = {"answer": stage.greet, "tool loop": stage.edit}
            calls |= {"picture": stage.look, "too long a prompt": stage.overflow}
            for name, run in calls.items():
                begun = time.monotonic()
                why = failure(run)
                row = {"client": agent.client, "version": version, "call": name, "ok": not why}
                row |= {"why": why, "seconds": round(time.monotonic() - begun, 3)}
                print(json.dumps(row), flush=True)


def failure(run: Callable[[], None]) -> str:
    """Return why the call failed; empty where it did not."""
    try:
        run()
    except (AssertionError, subprocess.TimeoutExpired, ValueError, KeyError) as problem:
        return f"{type(problem).__name__}: {problem}"[:4000]
    return ""


def inside_alone(*words: str) -> list[str]:
    """Return the command that runs these words with no network but a loopback one."""
    return ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]


def why_not() -> str:
    """Return why there can be no network of its own here; empty where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a network of its own takes root on Linux"
    tried = subprocess.run(inside_alone("true"), capture_output=True, text=True, check=False)
    return tried.stderr.strip()


def told(name: str, seconds: float) -> list[dict[str, Any]]:
    """Run one agent's story where no network is; returns its calls. Fails where it did not end."""
    words = [sys.executable, "-m", "tests.harness.agents", name]
    done = subprocess.run(
        inside_alone(*words), capture_output=True, text=True, timeout=seconds, check=False
    )
    calls = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"')]
    assert done.returncode == 0 and calls, done.stdout + done.stderr
    return calls


if __name__ == "__main__":
    tell(AGENTS[sys.argv[1]])
