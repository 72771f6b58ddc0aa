"""Runs templates that are made at random with Go's own `text/template` and with ours.

`python -m tests.bus.wire.go_templates.against_go [--count N] [--seed N] [--record]` prints what
differs; it needs `go`. `--record` keeps what Go made of them in `go_runs.jsonl`, for the test.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bus.wire.go_templates import GoTemplateError, parse_template
from bus.wire.go_templates.evaluate import TemplateRun
from bus.wire.go_templates.functions import functions_on

RECORDED = Path(__file__).with_name("go_runs.jsonl.gz")
PROGRAM = Path(__file__).with_name("run_templates.go")
DATA: dict[str, Any] = {
    "Name": "shoal", "Empty": "", "N": 3, "Zero": 0, "Neg": -5, "F": 2.5, "Big": 1e21,
    "Million": 1000000.0, "Huge": 123456789.0, "Small": 1e-07, "T": True, "Fa": False, "Nil": None,
    "L": ["a", "b", "c"], "Ints": [1, 2, 3], "None": [],
    "Mixed": [1, "x", None, True, 2.5, [1], {"k": 1}],
    "M": {"b": 1, "a": "x <&>", "c": None}, "Deep": {"A": {"B": ["x", {"C": "d"}]}}, "EmptyM": {},
    "U": "gr\u00fc\u00dfe \U0001f41f\n\"q\"'\t\u2028\u0001\\",
    "Msgs": [
        {"Role": "user", "Content": "hi"}, {"Role": "assistant", "Content": ""},
        {"Role": "user", "Content": "bye"},
    ],
}  # fmt: skip
_FIELDS = (
    ".Name", ".Empty", ".N", ".Zero", ".Neg", ".F", ".Big", ".Million", ".Huge", ".Small", ".T",
    ".Fa", ".Nil", ".L", ".Ints", ".None", ".Mixed", ".M", ".M.a", ".M.b", ".M.zz", ".Deep.A.B",
    ".Deep.A", ".EmptyM", ".U", ".Msgs", ".Missing", ".Missing.X",
)  # fmt: skip
_CONSTANTS = (
    '"s"', '""', '`raw "x"`', "'c'", r"'\n'", "1", "0", "-2", "+3", "1.5", "0x1F", "1e3", "0b101",
    "0o17", "017", "1_000", ".5", "-0.0", "true", "false", r'"\u00e9\n\t\x41\101"', '"<b>&\'"',
    "2", "3",
)  # fmt: skip
_FORMS = (
    "%s", "%d", "%v", "%q", "%5d|%-5d|%05d", "%5.2f", "%x", "%X", "%t", "%c", "%U", "%e", "%g",
    "%%", "%s %s", "%+d", "%6s|%-6s|", "%.2s", "%o", "%b", "%#v", "%#x", "%T", "%z", "%",
    "%v and %v", "% d", "%+v", "%08.3f", "%x %X", "%+q", "%#q", "% x", "%!", "%i", "%G", "%E", "%F",
    "%.3v", "%6v|", "%06v|", "%-06d|", "%+.2e", "%#o", "%O", "%[2]v %[1]v",
)  # fmt: skip
_FUNCTIONS = (
    "and", "or", "not", "eq", "eq", "ne", "lt", "le", "gt", "ge", "len", "index", "slice", "print",
    "printf", "printf", "printf", "println", "html", "js", "urlquery", "json",
)  # fmt: skip
_ONE = ("not", "len", "json")
_TWO = ("ne", "lt", "le", "gt", "ge")
_TEXTS = ("", " ", "\n", "text ", "  a\n\tb ", "{ }", "<|im_start|>", "\n\n  ", "\u00e9")
_NEWER_GO = ("range can't iterate over", "with type interface {}")
"""What Go 1.19 refuses and later ones do not: loops over numbers, some indexes."""


class TemplateMaker:
    """Makes templates at random, most of which can be run on `DATA`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._variables: list[str] = []
        self._defined = 0

    def template(self) -> str:
        """Return a template."""
        self._variables, self._defined = [], 0
        return "".join(self._node(3) for _ in range(self._chance.choice((1, 2, 3))))

    def _often(self, share: float) -> bool:
        return self._chance.random() < share

    def _operand(self, depth: int) -> str:
        pick = self._chance.choice
        made = [pick(_FIELDS)] * 6 + [f"${pick(_FIELDS)}"] * 2 + [pick(_CONSTANTS)] * 6 + ["."]
        if self._variables:
            made += [pick(self._variables)] * 2 + [f"{pick(self._variables)}.Role"]
        if depth > 0:
            inner = f"({self._pipe(depth - 1)})"
            made += [inner, inner, f"{inner}.Role"]
        return pick(made)

    def _command(self, depth: int, *, is_piped: bool = False) -> str:
        pick = self._chance.choice
        if not is_piped and self._often(0.45):
            return self._operand(depth)
        name = pick(_FUNCTIONS)
        count = 1 if name in _ONE else 2 if name in _TWO else pick((1, 2, 2, 3))
        if self._often(0.03):
            count += pick((-1, 1))
        given = [self._operand(depth) for _ in range(max(0, count - is_piped))]
        if name == "printf" and given:
            given[0] = f'"{pick(_FORMS)}{pick(("", " "))}"'
        if name in ("index", "slice") and len(given) > 1:
            places = [pick(("0", "1", "2", ".N", '"a"', '"b"')) for _ in given[1:]]
            given = [pick((".L", ".Name", ".Ints", ".M", ".U", ".Mixed", ".Deep")), *places]
        return " ".join([name, *given])

    def _pipe(self, depth: int) -> str:
        made = self._command(depth)
        while self._often(0.2):
            made += " | " + self._command(depth, is_piped=True)
        return made

    def _action(self, inner: str) -> str:
        begins = self._chance.choice(("{{", "{{", "{{- ", "{{ "))
        return begins + inner + self._chance.choice(("}}", "}}", " -}}", " }}"))

    def _body(self, depth: int) -> str:
        kept = len(self._variables)
        made = "".join(self._node(depth) for _ in range(self._chance.choice((0, 1, 1, 2, 3))))
        del self._variables[kept:]
        return made

    def _node(self, depth: int) -> str:
        if depth <= 0 or self._often(0.3):
            return self._action(self._pipe(max(0, depth)))
        kinds = (self._text, self._variable, self._if, self._range, self._with, self._named)
        (kind,) = self._chance.choices(kinds, weights=(28, 6, 12, 12, 7, 5))
        return kind(depth)

    def _text(self, _: int) -> str:
        comments = ("{{/* c */}}", "{{- /* c */ -}}", "{{/* a\n b */}}")
        return self._chance.choice(comments if self._often(0.1) else _TEXTS)

    def _variable(self, depth: int) -> str:
        name, value = self._chance.choice(("$x", "$y")), self._pipe(depth)
        if name in self._variables and self._often(0.5):
            return self._action(f"{name} = {value}")
        self._variables.append(name)
        return self._action(f"{name} := {value}")

    def _if(self, depth: int) -> str:
        made = self._action("if " + self._pipe(depth - 1)) + self._body(depth - 1)
        while self._often(0.25):
            made += self._action("else if " + self._pipe(depth - 1)) + self._body(depth - 1)
        return made + self._otherwise(depth)

    def _otherwise(self, depth: int) -> str:
        made = self._action("else") + self._body(depth - 1) if self._often(0.4) else ""
        return made + self._action("end")

    def _range(self, depth: int) -> str:
        kept = len(self._variables)
        what = self._chance.choice(
            (".L", ".Ints", ".M", ".Msgs", ".None", ".Mixed", ".Nil", "$.Msgs", "(slice .L 1)",
             "$.EmptyM", self._pipe(depth - 1))
        )  # fmt: skip
        names = self._chance.choice(((), (), ("$v",), ("$i", "$v")))
        self._variables += names
        made = self._action("range " + (f"{', '.join(names)} := " if names else "") + what)
        made += self._body(depth - 1)
        if self._often(0.2):
            word = self._action(self._chance.choice(("break", "continue")))
            made += self._action("if " + self._pipe(0)) + word + self._action("end")
            made += self._body(depth - 1)
        del self._variables[kept:]
        return made + self._otherwise(depth)

    def _with(self, depth: int) -> str:
        kept = len(self._variables)
        value = self._pipe(depth - 1)
        if self._often(0.2):
            self._variables.append("$w")
            value = "$w := " + value
        made = self._action("with " + value) + self._body(depth - 1)
        del self._variables[kept:]
        return made + self._otherwise(depth)

    def _named(self, depth: int) -> str:
        name = f"t{self._defined}"
        self._defined += 1
        kept, self._variables = self._variables, []
        body = self._body(depth - 1)
        self._variables = kept
        if self._often(0.5):
            return f'{{{{block "{name}" {self._pipe(0)}}}}}{body}{{{{end}}}}'
        defined = f'{{{{define "{name}"}}}}{body}{{{{end}}}}'
        return defined + self._action(f'template "{name}" {self._pipe(0)}')


def ours(template: str) -> str | None:
    """Return what we make of a template; None where we refuse it."""
    try:
        read = parse_template(template)
        run = TemplateRun(functions_on(datetime.date(2026, 1, 1)), read.defined)
        run.run(read.body, DATA)
    except GoTemplateError:
        return None
    return run.text


def recorded() -> Iterator[tuple[str, str | None]]:
    """Yield the templates that were recorded and what Go made of each; None: it refused."""
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        for line in lines:
            template, text = json.loads(line)
            yield template, text


def _runs_of_go(templates: Sequence[str]) -> list[dict[str, str]]:
    asked = "\n".join(json.dumps({"template": one, "data": DATA}) for one in templates)
    command = ["go", "run", str(PROGRAM)]
    made = subprocess.run(
        command, input=asked, stdout=subprocess.PIPE, encoding="utf-8", timeout=600, check=True
    )
    return [json.loads(line) for line in made.stdout.split("\n") if line]


def main() -> None:
    """Make templates, run them twice, print what differs; keep Go's runs if that is asked."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=6000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--record", action="store_true")
    given = asked.parse_args()
    maker = TemplateMaker(random.Random(given.seed))
    templates = [maker.template() for _ in range(given.count)]
    runs = _runs_of_go(templates)
    alike = list[tuple[str, str | None]]()
    for template, run in zip(templates, runs, strict=True):
        mine, text = ours(template), run.get("text")
        if mine == text:
            alike.append((template, text))
        elif not any(said in run.get("error", "") for said in _NEWER_GO):
            print(f"{template!r}\n  Go   {run}\n  ours {mine!r}")
    silent = sum(not text for _, text in alike)
    print(f"{len(alike)} of {given.count} alike, {silent} empty or refused")
    if given.record:
        kept = [one for one in alike if one[1] is None or len(one[1]) < 400]
        lines = "".join(json.dumps(one) + "\n" for one in kept[:1000])
        RECORDED.write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main()
