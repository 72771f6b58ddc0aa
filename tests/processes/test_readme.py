"""The commands of README.md run as printed: on a node, or in homes without one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import pytest

from tests.harness.nodes import ROOT, Node, shoal

README = (ROOT / "README.md").read_text()
PRINTED_URL = "http://127.0.0.1:52415"
ELSEWHERE = {
    "make up": "tests/first_answer.py",
    "make wheel": "tests/processes/test_installs.py",
    "source .venv/bin/activate": "",
    "shoal pull mlx-community/Qwen3-4B-4bit": "tests/processes/test_pulling.py",
    'shoal run mlx-community/Qwen3-4B-4bit "Tell me a story"': "tests/processes/test_pulling.py",
    "shoal restart": "tests/processes/test_operators.py",
    "shoal lab 3": "tests/processes/test_lab.py",
    "shoal lab down": "tests/processes/test_lab.py",
}
"""Commands that need the internet, a shell or nodes of their own, and the test that runs each."""


def blocks() -> list[list[str]]:
    """Return the commands of each code block; a command may span lines."""
    found = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [
        re.findall(r"^(?:shoal|make|source|curl).*(?:\n(?! *(?:shoal|make|curl)).+)*", text, re.M)
        for text in found
    ]


def shell_lines() -> list[str]:
    return [line for block in blocks() for line in block if line not in ELSEWHERE]


def in_second_machine(line: str) -> bool:
    return line.startswith(("shoal keys", "shoal config set"))


def test_each_command_that_runs_elsewhere_is_printed_and_has_its_test() -> None:
    for line, path in ELSEWHERE.items():
        assert line in README, line
        assert (ROOT / path).exists(), path
        program, verb = line.split()[:2]
        if program == "shoal":
            assert f'"{verb}"' in (ROOT / path).read_text(), f"{path} does not run `{line}`"


def test_make_knows_each_printed_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`?make ([a-z-]+)", README)
    assert targets and all(f"\n{target}:" in makefile for target in targets), targets


@pytest.mark.parametrize(
    "line", [one for one in shell_lines() if one.startswith("shoal") and not in_second_machine(one)]
)
def test_a_printed_command_runs_on_a_node(shared_node: Node, line: str) -> None:
    done = shared_node.shoal(*shlex.split(line)[1:])
    may = (0, 1) if line == "shoal doctor" else (0,)  # 1: this machine has a problem
    assert done.returncode in may and done.stdout, done.stderr


def test_the_printed_request_has_the_printed_answer(shared_node: Node) -> None:
    (line,) = [one for one in shell_lines() if one.startswith("curl")]
    words = shlex.split(line)
    url = words[1].replace(PRINTED_URL, shared_node.url)
    name, _, value = words[words.index("-H") + 1].partition(": ")
    done = httpx.post(url, content=words[words.index("-d") + 1], headers={name: value}, timeout=60)
    content = done.json()["choices"][0]["message"]["content"]
    assert content == ", ".join(map(str, range(1, 31)))


def test_the_commands_for_two_machines_give_both_the_same_key(tmp_path: Path) -> None:
    first, second = filter(None, ([*filter(in_second_machine, block)] for block in blocks()))
    shown: list[str] = []
    for name, lines in (("first", first), ("second", second)):
        env = {"SHOAL_HOME": str(tmp_path / name)}
        for line in lines:
            words = [
                str(tmp_path / word) if word == "key.txt" else word for word in shlex.split(line)
            ]
            done = shoal(*words[1:], env=env)
            assert done.returncode == 0, (line, done.stderr)
        shown.append(shoal("keys", "show", env=env).stdout)
    assert len(first) == 3 and len(second) == 2
    assert shown[0].split()[-1] == shown[1].split()[-1], shown
