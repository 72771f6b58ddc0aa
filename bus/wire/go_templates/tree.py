"""What a template in Go's language is made of, once it is read. Pure: data, and how it fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

TEMPLATE_BYTES = 64 << 10
"""The longest template that is read."""
NESTED_AT_MOST = 64
"""Blocks, and brackets, within each other."""


class GoTemplateError(ValueError):
    """The template is none, or cannot be run with these values; the text says where and why."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


@dataclass(frozen=True, slots=True)
class DotNode:
    """`.`: the value that a block is about."""


@dataclass(frozen=True, slots=True)
class NilNode:
    """`nil`, which is an argument alone."""


@dataclass(frozen=True, slots=True)
class ConstantNode:
    """A text, a number, or a truth value."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class FieldNode:
    """`.Name`, or several in a row."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VariableNode:
    """`$name` and fields of it; `$` is what the template was given."""

    name: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """The name of a function."""

    name: str


@dataclass(frozen=True, slots=True)
class ChainNode:
    """Fields of what a bracket or a function without arguments gives."""

    of: PipeNode | FunctionNode
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandNode:
    """A value, or a function with its arguments."""

    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class PipeNode:
    """Commands, each of which is given the value of the one before as its last argument.

    `variables` take the last value: they are declared here, or set where `assigns`.
    """

    commands: tuple[CommandNode, ...]
    line: int
    variables: tuple[str, ...] = ()
    assigns: bool = False


Operand = (
    DotNode
    | NilNode
    | ConstantNode
    | FieldNode
    | VariableNode
    | FunctionNode
    | ChainNode
    | PipeNode
)


@dataclass(frozen=True, slots=True)
class TextNode:
    """Text outside of all actions, trimmed where they say so."""

    text: str


@dataclass(frozen=True, slots=True)
class ActionNode:
    """`{{ pipeline }}`: its value as text, unless it names a variable."""

    pipe: PipeNode


@dataclass(frozen=True, slots=True)
class BranchNode:
    """`if`, `with` and `range`, with what is there for else."""

    word: Literal["if", "with", "range"]
    pipe: PipeNode
    body: Body
    otherwise: Body = ()


@dataclass(frozen=True, slots=True)
class LoopExitNode:
    """`break`, or `continue`."""

    word: Literal["break", "continue"]


@dataclass(frozen=True, slots=True)
class IncludeNode:
    """`template "name" pipeline`, and `block` where it stands."""

    name: str
    pipe: PipeNode | None
    line: int


Node = TextNode | ActionNode | BranchNode | LoopExitNode | IncludeNode
Body = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class GoTemplate:
    """A template, and those that it defines, by name."""

    body: Body
    defined: Mapping[str, Body]

    def names(self) -> frozenset[str]:
        """Return the names of all fields that it looks at, in lower case."""
        bodies = (self.body, *self.defined.values())
        return frozenset(name.lower() for body in bodies for name in _named(body))


def _named(body: Body) -> Iterator[str]:
    for node in body:
        match node:
            case ActionNode():
                yield from _of_pipe(node.pipe)
            case BranchNode():
                yield from _of_pipe(node.pipe)
                yield from _named(node.body)
                yield from _named(node.otherwise)
            case IncludeNode():
                yield from () if node.pipe is None else _of_pipe(node.pipe)
            case TextNode() | LoopExitNode():
                pass


def _of_pipe(pipe: PipeNode) -> Iterator[str]:
    for command in pipe.commands:
        for operand in command.operands:
            match operand:
                case FieldNode() | VariableNode():
                    yield from operand.names
                case ChainNode():
                    yield from operand.names
                    if isinstance(operand.of, PipeNode):
                        yield from _of_pipe(operand.of)
                case PipeNode():
                    yield from _of_pipe(operand)
                case _:
                    pass
