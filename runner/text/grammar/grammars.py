"""Make the grammar of a choice's output: JSON, a client's rule, or tool calls.

Pure. Grammars are written in llguidance's Lark dialect and checked by building them against the
model's vocabulary, off the engine's thread, within limits of size, depth and work. A format that
cannot be enforced exactly is refused, never weakened. With thinking on, a thinking block may come
first. A client's rule is a grammar of its own inside ours, so that neither can change the other.
`GrammarSpec.compiled` is only opened with `open_matcher`, so that checker and engine share one set
of limits.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import OutputFormat
from runner.engine import GrammarSpec
from runner.text.families import Marks, Turns
from runner.text.grammar.call_rules import CallRules, Calls
from runner.text.grammar.forms import check_size, json_rule, quoted, rule_of
from runner.text.grammar.row_matcher import RowMatchers, open_matcher
from runner.text.prepared import SpanState

KEPT_GRAMMARS = 128
PROBED_TOKENS = 24
"""The number of tokens that are tried with a new grammar. A grammar that is too complex to run
usually fails at the first ones."""

_LAYOUT = r"/[ \t\n]{0,8}/"
_LINES = r"/\n{0,8}/"
"""Allowed text between thinking and the answer. Readers strip these newlines; spaces would belong
to the answer."""
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_TEXT = "TEXT: /(?s:.+)/"

_IN_SCHEMA = re.compile(r"failed to compile JSON schema: (.*?) \d+ \| ")
"""llguidance's error about a schema, before it shows the surrounding grammar, which is ours."""
_SAID = (
    (
        re.compile(r"^Unimplemented keys: \[(.*)\]$"),
        r"the schema's \1 cannot be enforced; leave it out",
    ),
    (
        re.compile(r"^patternProperty regexes (/.*/) and (/.*/) are not disjoint$"),
        r"patternProperties: \1 and \2 may both match one name, which cannot be enforced",
    ),
    (re.compile(r"^Unsatisfiable schema: "), "no JSON matches the schema: "),
    (re.compile(r"^Expected f64 for '(\w+)', got (.*)$"), r"'\1' must be a number, not \2"),
    (re.compile(r'^failed to parse "%json": (.*) at line .*$'), r"the schema is not JSON: \1"),
    (re.compile(r"^Pointer '(.*)' does not exist$"), r"$ref: '#\1' does not exist"),
    (
        re.compile(r"^Failed to generate regex for (\w+) range: .*$"),
        r"the schema's bounds for \1 are too large",
    ),
)
"""Patterns of llguidance's error messages, each with the message that clients get instead."""
_PIECES = re.compile(r"(<\|[^|<>]*\|>)")


@dataclass(frozen=True, slots=True)
class ThinkFirst:
    """A thinking block may come before the constrained text. `opening` "reasoning": the prompt has
    opened it, and it must be closed."""

    marks: Marks
    opening: SpanState


@dataclass(frozen=True, slots=True)
class _Written:
    """A grammar written in Lark. `form` is the grammar of the client, to which the Lark text refers
    as `@form`."""

    lark: str
    form: str | None = None

    @property
    def compiled(self) -> str:
        """Return the grammar in llguidance's serialised form; if there is a client's rule (`form`),
        it is included as a second grammar."""
        if self.form is None:
            return LLMatcher.grammar_from_lark(self.lark)
        inner = {"name": "form", "lark_grammar": self.form}
        return json.dumps({"grammars": [{"lark_grammar": self.lark}, inner]})


class Grammars:
    """Makes and checks grammars for one vocabulary; caches the last `KEPT_GRAMMARS`. `matchers`
    follow the grammars that it made."""

    def __init__(self, guide: LLTokenizer, token_ids: Mapping[str, int]) -> None:
        """`token_ids`: added tokens by their text, at least those of markers."""
        self.matchers = RowMatchers(
            guide, vocabulary=guide.vocab_size, ends=frozenset(guide.eos_tokens)
        )
        self._guide = guide
        self._token_ids = token_ids
        self._compiled = lru_cache(KEPT_GRAMMARS)(self._compile)

    def output(
        self, form: OutputFormat, *, think: ThinkFirst | None, calls: Calls | None
    ) -> GrammarSpec | None:
        """Return the grammar for `form` and the calls that must or may be made; None if nothing is
        constrained.

        Free text stays free around calls. A strict tool among the allowed ones, or `held`, makes
        the calls follow their format. Raises BadRequest, naming the form's field or the tool.
        """
        must = calls is not None and calls.need == "must"
        turns = None if calls is None else calls.form.turns
        if form.kind == "text" and not must:
            if calls is None or not (calls.held or any(tool.strict for tool in calls.tools)):
                return None
            if turns is None:
                return self._free(calls)
        rules: list[str] = []
        bodies: list[str] = []
        rule = None if must else rule_of(form)
        if rule is not None:
            alone = self._checked(_Written(rule), form.field)
            if think is None and calls is None:
                return alone
            bodies.append("@form")
        elif form.kind == "text" and not must:
            bodies.append("TEXT?")
        elif not must:
            bodies.append("answer")
            rules.append(f"answer: {json_rule(self._schema_of(form))}")
        if calls is not None:
            bodies.append("calls")
            rules += self._call_rules(calls)
        field = "tools" if must else form.field
        if turns is not None:
            return self._checked(_Written(self._in_turns(turns, bodies, rules, think), rule), field)
        body = bodies[0] if len(bodies) == 1 else f"({' | '.join(bodies)})"
        blank = _LINES if rule is not None else _LAYOUT
        start = [f"start: {self._think_rule(think, blank)}{body}"]
        return self._checked(_Written("\n".join(start + rules), rule), field)

    def _schema_of(self, form: OutputFormat) -> Mapping[str, Any]:
        """Return the JSON schema of `form`. Raises BadRequest."""
        if form.kind == "json_object":
            return _ANY_OBJECT
        if form.json_schema is None:
            raise BadRequest("response_format requires a schema", field=form.field)
        self._check_schema(form.json_schema, form.field)
        return form.json_schema

    def _free(self, calls: Calls) -> GrammarSpec | None:
        """Return a grammar that allows any text, and calls that follow their schemas. Return None
        if no tool is strict and calls need no format. Also return None if a call begins with no
        token of its own, because then it cannot be distinguished from text."""
        form = calls.form
        if form.mark not in self._token_ids:
            return None
        others = [self._token_ids[text] for text in self._token_ids if text not in form.pieces]
        loose = "".join(
            f" | <[{token}]>" for token in others if token not in self._guide.eos_tokens
        )
        rules = ["start: part* calls?", f"part: TEXT{loose}", _TEXT]
        if not form.is_last:
            row = "calls" if form.opens or form.closes else "call"
            rules[:2] = ["start: part*", f"part: TEXT{loose} | {row}"]
        return self._checked(_Written("\n".join(rules + self._call_rules(calls))), "tools")

    def _in_turns(
        self, turns: Turns, bodies: Sequence[str], rules: Sequence[str], think: ThinkFirst | None
    ) -> str:
        """Return a grammar of an output that consists of messages: first optional messages with
        thoughts, then the last message, whose text follows one of `bodies`."""
        pieces = CallRules(self._mark, lambda _: False, self._check_schema).pieces
        between = pieces(turns.between)
        thoughts = " | ".join(f"{pieces(opens)} TEXT?" for opens in turns.thoughts)
        before = "" if think is None else f"(thought {between})* "
        if think is not None and think.opening == "reasoning":
            before = f"TEXT? {between} {before}"
        last = [body if body == "calls" else f"{pieces(turns.answer)} {body}" for body in bodies]
        start = f"start: {before}({' | '.join(last)})"
        return "\n".join([start, f"thought: {thoughts}", _TEXT, *rules])

    def _check_schema(self, schema: Mapping[str, Any], field: str) -> None:
        """Refuse a schema that is too large, or that llguidance cannot enforce even without the
        rest of the grammar."""
        check_size(schema, field)
        self._checked(_Written(f"start: {json_rule(schema)}"), field)

    def _call_rules(self, calls: Calls) -> list[str]:
        ends = self._guide.eos_tokens
        rules = CallRules(
            self._mark, lambda text: self._token_ids.get(text) in ends, self._check_schema
        )
        return rules.write(calls)

    def _think_rule(self, think: ThinkFirst | None, blank: str) -> str:
        if think is None:
            return ""
        closes = f"/(?s:.*)/ {self._mark(think.marks.end)} {blank} "
        if think.opening == "reasoning":
            return closes
        return f"({self._mark(think.marks.start)} {closes})? "

    def _mark(self, text: str) -> str:
        """Return the grammar of a marker (a fixed text of the output format, such as `<|end|>`):
        the vocabulary's token of that text, else the text itself. A marker that consists of several
        tokens (`<|end|><|start|>`) is written token by token."""
        token = self._token_ids.get(text)
        if token is not None:
            return f"<[{token}]>"
        pieces = [piece for piece in _PIECES.split(text) if piece]
        if len(pieces) == 1:
            return quoted(text)
        return " ".join(self._mark(piece) for piece in pieces)

    def _checked(self, written: _Written, field: str) -> GrammarSpec:
        """Return the compiled grammar, cached or new. Raises BadRequest."""
        compiled = self._compiled(written)
        if isinstance(compiled, str):
            raise BadRequest(f"this format cannot be enforced: {compiled}", field=field)
        return compiled

    def _compile(self, written: _Written) -> GrammarSpec | str:
        try:
            compiled = written.compiled
            key = hashlib.sha256(compiled.encode("utf-8", "surrogatepass")).hexdigest()
            spec = GrammarSpec(key, compiled)
            matcher = open_matcher(self._guide, spec)
            _probe(matcher, self._guide.eos_tokens)
        except Exception as problem:
            return str(problem)[:500]
        return _plain(matcher.get_error()) if matcher.is_error() else spec


def _probe(matcher: LLMatcher, eos: Sequence[int]) -> None:
    """Try a new grammar: feed it a few allowed tokens, each from a different part of the
    vocabulary, so that a grammar too complex to run fails here."""
    for turn in range(PROBED_TOKENS):
        if matcher.is_stopped():
            return
        mask = matcher.compute_bitmask()
        corner = turn * 2654435761 % len(mask)
        turned = mask[corner:] + mask[:corner]
        skipped = len(turned) - len(turned.lstrip(b"\0"))
        if skipped == len(turned):
            return
        lowest = turned[skipped] & -turned[skipped]
        token = (corner + skipped) % len(mask) * 8 + lowest.bit_length() - 1
        if token in eos or not matcher.consume_token(token):
            return


def _plain(error: str) -> str:
    """Return llguidance's error message in one line, without the state of its parser."""
    words = " ".join(error.split("<state>")[0].split("<non-verbose/>")[0].split())
    if words.startswith("NoExtension"):
        return "no text matches it"
    in_schema = _IN_SCHEMA.search(words)
    if in_schema is not None:
        words = in_schema[1]
    for pattern, message in _SAID:
        words = pattern.sub(message, words)
    return words[:400]
