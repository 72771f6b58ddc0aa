"""Reads a template in Go's language into its tree. Pure; it ends, for any text.

What is none is a GoTemplateError that says the line and what was expected there. Checked here, not
when it runs: functions and variables that there are not, templates that are not defined, what
stands in no loop. Go tells the last two when they are reached; here no such template is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from bus.wire.go_templates.functions import ARITIES
from bus.wire.go_templates.lexer import Kind, Token, TokenReader, wrong
from bus.wire.go_templates.tree import (
    NESTED_AT_MOST,
    TEMPLATE_BYTES,
    ActionNode,
    Body,
    BranchNode,
    ChainNode,
    CommandNode,
    ConstantNode,
    DotNode,
    FieldNode,
    FunctionNode,
    GoTemplate,
    GoTemplateError,
    IncludeNode,
    LoopExitNode,
    NilNode,
    Node,
    Operand,
    PipeNode,
    TextNode,
    VariableNode,
)

VARIABLES_AT_MOST = 256
_BRANCHES = ("if", "with", "range")
_KEYWORDS = (*_BRANCHES, "else", "end", "define", "block", "template", "break", "continue")
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?")
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_ESCAPED = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL
)


def parse_template(source: str) -> GoTemplate:
    """Return a template as its tree. Raises GoTemplateError."""
    if len(source) > TEMPLATE_BYTES or len(source.encode("utf-8", "replace")) > TEMPLATE_BYTES:
        raise GoTemplateError(1, f"a template has at most {TEMPLATE_BYTES} bytes")
    return _Parser(source).whole()


class _Parser:
    """One reading of one template."""

    def __init__(self, source: str) -> None:
        self._tokens = TokenReader(source)
        self._variables = ["$"]
        self._loops = 0
        self._depth = 0
        self._defined: dict[str, Body] = {}
        self._included: list[IncludeNode] = []

    def whole(self) -> GoTemplate:
        """Return the template."""
        body, word, line = self._body(is_top=True)
        if word:
            raise GoTemplateError(line, f"unexpected {{{{{word}}}}}: it ends no block")
        for node in self._included:
            if node.name not in self._defined:
                text = f"template {json.dumps(node.name)} is not defined; expected a {{{{define}}}}"
                raise GoTemplateError(node.line, text)
        return GoTemplate(body, self._defined)

    # --- blocks --------------------------------------------------------------------------------

    def _body(self, *, is_top: bool = False) -> tuple[Body, str, int]:
        """Return nodes up to what ends them, with the line of that: "end", "else" (whose action is
        still open), or "" where the template ends."""
        nodes: list[Node] = []
        while True:
            token = self._tokens.take()
            if token.kind == "end":
                return tuple(nodes), "", token.line
            if token.kind == "text":
                nodes.append(TextNode(token.text))
                continue
            word = self._tokens.next.text if self._tokens.next.kind == "word" else ""
            if word in ("end", "else"):
                self._tokens.take()
                if word == "end":
                    self._tokens.expect("close", "'}}' behind end")
                return tuple(nodes), word, token.line
            nodes += self._action(word, token.line, is_top=is_top)

    def _action(self, word: str, line: int, *, is_top: bool) -> list[Node]:
        if word not in _KEYWORDS:
            return [ActionNode(self._pipe("close", "an action"))]
        self._tokens.take()
        match word:
            case "if" | "with" | "range":
                return [self._branch(word, line)]
            case "break" | "continue":
                self._tokens.expect("close", f"'}}}}' behind {word}")
                if not self._loops:
                    raise GoTemplateError(line, f"{{{{{word}}}}} stands in no {{{{range}}}}")
                return [LoopExitNode(word)]
            case "define":
                if not is_top:
                    raise GoTemplateError(line, "unexpected {{define}}: it stands in no block")
                self._define(self._name(word), line)
                return []
            case "block":
                name = self._name(word)
                node = IncludeNode(name, self._pipe("close", "{{block}}"), line)
                self._define(name, line, is_closed=True)
            case _:
                name = self._name(word)
                is_bare = self._tokens.sees("close")
                value = None if is_bare else self._pipe("close", "{{template}}")
                node = IncludeNode(name, value, line)
                if is_bare:
                    self._tokens.take()
        self._included.append(node)
        return [node]

    def _branch(self, word: Literal["if", "with", "range"], line: int) -> BranchNode:
        with self._nested(line), self._scope():
            pipe = self._pipe("close", f"{{{{{word}}}}}", is_range=word == "range")
            self._loops += word == "range"
            body, ended, _ = self._body()
            self._loops -= word == "range"
            otherwise: Body = ()
            if ended == "else":
                otherwise, ended = self._else(word, line)
            if ended != "end":
                raise GoTemplateError(line, f"expected {{{{end}}}} of this {{{{{word}}}}}")
            return BranchNode(word, pipe, body, otherwise)

    def _else(self, word: str, line: int) -> tuple[Body, str]:
        """Return what stands behind else, and what ends it: a branch for `else if`, `else with`."""
        follows = self._tokens.next.text if self._tokens.next.kind == "word" else ""
        if follows in ("if", "with") and follows == word:
            self._tokens.take()
            return (self._branch(follows, line),), "end"
        self._tokens.expect("close", "'}}' behind else")
        body, ended, at = self._body()
        if ended == "else":
            raise GoTemplateError(at, "expected {{end}}; found another {{else}}")
        return body, ended

    def _define(self, name: str, line: int, *, is_closed: bool = False) -> None:
        if not is_closed:
            self._tokens.expect("close", "'}}' behind the name")
        variables, self._variables = self._variables, ["$"]
        loops, self._loops = self._loops, 0
        with self._nested(line):
            body, ended, _ = self._body()
        if ended != "end":
            raise GoTemplateError(line, f"expected {{{{end}}}} of {json.dumps(name)}")
        self._variables, self._loops = variables, loops
        self._defined[name] = body

    def _name(self, word: str) -> str:
        token = self._tokens.take()
        if token.kind not in ("string", "raw"):
            raise wrong(token, f"a name in quotation marks behind {word}")
        return _text_of(token)

    # --- pipelines -----------------------------------------------------------------------------

    def _pipe(self, ends: Kind, what: str, *, is_range: bool = False) -> PipeNode:
        """Return a pipeline, with what ends it taken."""
        line = self._tokens.next.line
        with self._nested(line):
            variables, assigns, first = self._declared(is_range=is_range)
            commands = [self._command(what, first)]
            while self._tokens.sees("pipe"):
                self._tokens.take()
                commands.append(self._command(what, None))
            self._tokens.expect(ends, "')'" if ends == "right" else "'}}'")
        for place, command in enumerate(commands[1:], 2):
            if isinstance(command.operands[0], DotNode | NilNode | ConstantNode):
                raise GoTemplateError(line, f"expected a function in stage {place} of a pipeline")
        if not assigns:
            self._variables += variables
            if len(self._variables) > VARIABLES_AT_MOST:
                raise GoTemplateError(line, f"more than {VARIABLES_AT_MOST} variables at once")
        return PipeNode(tuple(commands), line, variables, assigns)

    def _declared(self, *, is_range: bool) -> tuple[tuple[str, ...], bool, Operand | None]:
        """Return the variables that take the value, whether they are set, and, where there are
        none, an operand that was read meanwhile."""
        if not self._tokens.sees("variable"):
            return (), False, None
        token = self._tokens.take()
        names = [token.text]
        if is_range and self._tokens.sees("comma"):
            self._tokens.take()
            second = self._tokens.take()
            if second.kind != "variable":
                raise wrong(second, "a variable behind the comma")
            names.append(second.text)
            if not self._tokens.sees("declare", "assign"):
                raise wrong(self._tokens.next, "':=' or '='")
        if self._tokens.sees("comma"):
            raise GoTemplateError(token.line, "only {{range}} declares two variables")
        if not self._tokens.sees("declare", "assign"):
            return (), False, self._variable(token)
        assigns = self._tokens.take().kind == "assign"
        for name in names if assigns else ():
            self._known(name, token.line)
        return tuple(names), assigns, None

    def _command(self, what: str, first: Operand | None) -> CommandNode:
        operands = [] if first is None else [first]
        while not self._tokens.sees("pipe", "right", "close"):
            if operands and not self._tokens.next.spaced:
                raise wrong(self._tokens.next, "a space between arguments")
            operands.append(self._operand())
        if not operands:
            raise GoTemplateError(self._tokens.next.line, f"expected a value in {what}")
        if isinstance(operands[0], NilNode):
            raise GoTemplateError(self._tokens.next.line, "nil is an argument, not a command")
        return CommandNode(tuple(operands))

    def _operand(self) -> Operand:
        token = self._tokens.take()
        match token.kind:
            case "string" | "raw":
                found: Operand = ConstantNode(_text_of(token))
            case "char":
                found = ConstantNode(_sign_of(token))
            case "number":
                found = ConstantNode(_number_of(token))
            case "dot":
                found = DotNode()
            case "variable":
                return self._variable(token)
            case "field":
                return FieldNode((token.text[1:], *self._fields()))
            case "left":
                pipe = self._pipe("right", "brackets")
                names = self._fields()
                return ChainNode(pipe, names) if names else pipe
            case "word":
                return self._word(token)
            case _:
                raise wrong(token, "a value")
        if self._tokens.next.kind in ("field", "dot") and not self._tokens.next.spaced:
            raise GoTemplateError(
                token.line, f"unexpected {self._tokens.next.text!r} behind {token.text}"
            )
        return found

    def _variable(self, token: Token) -> VariableNode:
        self._known(token.text, token.line)
        return VariableNode(token.text, self._fields())

    def _known(self, name: str, line: int) -> None:
        if name not in self._variables:
            raise GoTemplateError(line, f"variable {name} is not declared")

    def _word(self, token: Token) -> Operand:
        if token.text in ("true", "false"):
            return ConstantNode(token.text == "true")
        if token.text == "nil":
            return NilNode()
        if token.text in _KEYWORDS:
            raise wrong(token, "a value")
        if token.text not in ARITIES:
            raise GoTemplateError(token.line, f"function {json.dumps(token.text)} is not defined")
        names = self._fields()
        function = FunctionNode(token.text)
        return ChainNode(function, names) if names else function

    def _fields(self) -> tuple[str, ...]:
        """Return the fields that follow without a space."""
        names: list[str] = []
        while self._tokens.next.kind == "field" and not self._tokens.next.spaced:
            names.append(self._tokens.take().text[1:])
        return tuple(names)

    # --- below ---------------------------------------------------------------------------------

    @contextmanager
    def _nested(self, line: int) -> Generator[None]:
        self._depth += 1
        if self._depth > NESTED_AT_MOST:
            raise GoTemplateError(line, f"nested deeper than {NESTED_AT_MOST} levels")
        yield
        self._depth -= 1

    @contextmanager
    def _scope(self) -> Generator[None]:
        known = len(self._variables)
        yield
        del self._variables[known:]


def _number_of(token: Token) -> int | float:
    """Return a number as Go writes them: decimal, 0x, 0o, 0b, with underscores, or a fraction."""
    text = token.text
    try:
        if _FLOAT.fullmatch(text) and any(sign in text for sign in ".eE"):
            number = float(text)
            if abs(number) != float("inf"):
                return number
        else:
            unsigned = text.lstrip("+-")
            octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned.strip("01234567_") == ""
            whole = int(unsigned, 8) if octal else int(unsigned, 0)
            whole = -whole if text[0] == "-" else whole
            if -(2**63) <= whole < 2**63:
                return whole
    except ValueError:
        pass
    raise GoTemplateError(token.line, f"{text[:40]!r} is no number of 64 bits")


def _text_of(token: Token) -> str:
    if token.kind == "raw":
        return token.text[1:-1].replace("\r", "")
    return _unescaped(token.text[1:-1], token.line)


def _sign_of(token: Token) -> int:
    text = _unescaped(token.text[1:-1], token.line)
    if len(text) != 1:
        raise GoTemplateError(token.line, f"{token.text[:40]} is no single character")
    return ord(text)


def _unescaped(text: str, line: int) -> str:
    def character(found: re.Match[str]) -> str:
        """Return what an escape stands for."""
        two, four, eight, octal, other = found.groups()
        number = int(octal, 8) if octal else int(two or four or eight or "0", 16)
        if other is not None and other in _ESCAPES:
            return _ESCAPES[other]
        if other is not None or number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise GoTemplateError(line, f"unknown escape {found[0]!r} in a string")
        return chr(number)

    return _ESCAPED.sub(character, text)
