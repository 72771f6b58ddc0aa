"""Runs a template that was read. Pure; bounded in steps, in depth, and in the text that it makes.

A field that a map lacks is nil, and so are its fields; one that a struct lacks, or that is asked
of anything else, is a GoTemplateError, as is what a function refuses. Scopes are Go's: a variable
lives to the end of its block, and a template that is included sees `$` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from bus.wire.go_templates.functions import ARITIES, Function
from bus.wire.go_templates.tree import (
    ActionNode,
    Body,
    BranchNode,
    ChainNode,
    CommandNode,
    ConstantNode,
    DotNode,
    FieldNode,
    FunctionNode,
    GoTemplateError,
    IncludeNode,
    LoopExitNode,
    NilNode,
    Operand,
    PipeNode,
    TextNode,
    VariableNode,
)
from bus.wire.go_templates.values import (
    SHOWN_AT_MOST,
    GoStruct,
    GoValueError,
    is_true,
    shown,
    type_name,
)

STEPS_AT_MOST = 2_000_000
DEPTH_AT_MOST = 150
CHARACTERS_A_STEP = 4096
"""A function that makes a text of so many takes a step more."""
_MISSING = object()
"""No value is piped."""
_SOMETHING = object()


class _LoopExit(Exception):
    """`break` or `continue` was reached."""

    def __init__(self, word: str) -> None:
        self.word = word


class TemplateRun:
    """One or several runs of templates, which share the bounds and the text."""

    def __init__(self, functions: Mapping[str, Function], defined: Mapping[str, Body]) -> None:
        self._functions = functions
        self._defined = defined
        self._made: list[str] = []
        self._length = 0
        self._steps = 0
        self._depth = 0
        self._line = 1
        self._variables: list[tuple[str, Any]] = []

    @property
    def text(self) -> str:
        """Return all that was made so far."""
        return "".join(self._made)

    def run(self, body: Body, data: Any) -> None:
        """Run a template with this value as dot. Raises GoTemplateError."""
        self._variables = [("$", data)]
        try:
            self._body(body, data)
        except GoValueError as problem:
            raise GoTemplateError(self._line, str(problem)) from problem

    # --- nodes ---------------------------------------------------------------------------------

    def _body(self, body: Body, dot: Any) -> None:
        self._depth += 1
        if self._depth > DEPTH_AT_MOST:
            raise GoValueError(f"it goes deeper than {DEPTH_AT_MOST} levels")
        for node in body:
            self._step()
            match node:
                case TextNode():
                    self._say(node.text)
                case ActionNode():
                    value = self._pipe(node.pipe, dot)
                    if not node.pipe.variables:
                        self._say("<no value>" if value is None else shown(value))
                case BranchNode():
                    self._branch(node, dot)
                case IncludeNode():
                    self._include(node, dot)
                case LoopExitNode():
                    raise _LoopExit(node.word)
        self._depth -= 1

    def _branch(self, node: BranchNode, dot: Any) -> None:
        known = len(self._variables)
        value = self._pipe(node.pipe, dot)
        if node.word == "range":
            self._range(node, dot, value)
        elif is_true(value):
            self._body(node.body, value if node.word == "with" else dot)
        else:
            self._body(node.otherwise, dot)
        del self._variables[known:]

    def _range(self, node: BranchNode, dot: Any, value: Any) -> None:
        known, depth = len(self._variables), self._depth
        found = False
        for key, item in _items(value):
            found = True
            self._step()
            self._take(node.pipe, key, item)
            try:
                self._body(node.body, item)
            except _LoopExit as left:
                self._depth = depth
                if left.word == "break":
                    break
            finally:
                del self._variables[known:]
        if not found:
            self._body(node.otherwise, dot)

    def _take(self, pipe: PipeNode, key: Any, item: Any) -> None:
        """Give the variables of a loop their values: one has the item, two the key before it."""
        values = (item,) if len(pipe.variables) == 1 else (key, item)
        for name, value in zip(pipe.variables, values, strict=False):
            self._set(name, value, assigns=True)

    def _include(self, node: IncludeNode, dot: Any) -> None:
        value = None if node.pipe is None else self._pipe(node.pipe, dot)
        kept, self._variables = self._variables, [("$", value)]
        self._body(self._defined[node.name], value)
        self._variables = kept

    # --- pipelines -----------------------------------------------------------------------------

    def _pipe(self, pipe: PipeNode, dot: Any) -> Any:
        self._line = pipe.line
        value: Any = _MISSING
        for command in pipe.commands:
            value = self._command(command, dot, value)
        for name in pipe.variables:
            self._set(name, value, assigns=pipe.assigns)
        return value

    def _command(self, command: CommandNode, dot: Any, piped: Any) -> Any:
        self._step()
        first, *others = command.operands
        if isinstance(first, FunctionNode):
            return self._call(first.name, others, dot, piped)
        if others or piped is not _MISSING:
            raise GoValueError("only a function can be given arguments")
        return self._value(first, dot)

    def _value(self, operand: Operand, dot: Any) -> Any:
        self._step()
        match operand:
            case ConstantNode():
                return operand.value
            case FieldNode():
                return self._field(dot, operand.names, known=True)
            case VariableNode():
                return self._field(self._variable(operand.name), operand.names)
            case DotNode():
                return dot
            case PipeNode():
                return self._pipe(operand, dot)
            case ChainNode():
                return self._field(self._value(operand.of, dot), operand.names)
            case FunctionNode():
                return self._call(operand.name, (), dot, _MISSING)
            case NilNode():
                return None

    def _call(self, name: str, operands: Iterable[Operand], dot: Any, piped: Any) -> Any:
        """Return what a function gives; `and` and `or` read on only while it is not decided."""
        given = list(operands)
        count = len(given) + (piped is not _MISSING)
        least, most = ARITIES[name]
        if count < least or (most is not None and count > most):
            wanted = str(least) if most == least else f"at least {least}"
            raise GoValueError(f"wrong number of arguments for {name}: {count} instead of {wanted}")
        if name in ("and", "or"):
            value: Any = _SOMETHING
            for operand in given:
                value = self._value(operand, dot)
                if is_true(value) is (name == "or"):
                    return value
            return value if piped is _MISSING else piped
        values = [self._value(operand, dot) for operand in given]
        if piped is not _MISSING:
            values.append(piped)
        try:
            made = self._functions[name](values)
        except GoValueError as problem:
            raise GoValueError(f"{name}: {problem}") from problem
        self._step(len(made) // CHARACTERS_A_STEP if isinstance(made, str) else 0)
        return made

    def _field(self, value: Any, names: Iterable[str], *, known: bool = False) -> Any:
        """Return a field of a field of a value. What a map lacks has all fields, which are nil, and
        so has nil; nil that is a part of something (`known`) has none."""
        for name in names:
            if isinstance(value, dict):
                here = cast(dict[str, Any], value)
                known, value = name in here, here.get(name)
            elif isinstance(value, GoStruct) and name in value.fields:
                known, value = True, value.fields[name]
            elif value is None and not known:
                continue
            elif value is None:
                raise GoValueError(f"there is no .{name} of nil")
            else:
                raise GoValueError(f"there is no .{name} of a {type_name(value)}")
        return value

    # --- below ---------------------------------------------------------------------------------

    def _variable(self, name: str) -> Any:
        for known, value in reversed(self._variables):
            if known == name:
                return value
        raise GoValueError(f"variable {name} is not declared")

    def _set(self, name: str, value: Any, *, assigns: bool) -> None:
        if not assigns:
            self._variables.append((name, value))
            return
        for place in range(len(self._variables) - 1, -1, -1):
            if self._variables[place][0] == name:
                self._variables[place] = (name, value)
                return

    def _say(self, text: str) -> None:
        self._length += len(text)
        if self._length > SHOWN_AT_MOST:
            raise GoValueError(f"it makes more than {SHOWN_AT_MOST >> 20} MiB of text")
        self._made.append(text)

    def _step(self, more: int = 0) -> None:
        self._steps += 1 + more
        if self._steps > STEPS_AT_MOST:
            raise GoValueError(f"it takes more than {STEPS_AT_MOST} steps")


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return what a range goes through, with its places or keys."""
    if value is None:
        return ()
    if isinstance(value, list):
        return enumerate(cast(list[Any], value))
    if isinstance(value, dict):
        known = cast(dict[str, Any], value)
        return [(key, known[key]) for key in sorted(known)]
    if isinstance(value, int) and not isinstance(value, bool):
        return ((number, number) for number in range(max(0, value)))
    raise GoValueError(f"range cannot go through a {type_name(value)}")
