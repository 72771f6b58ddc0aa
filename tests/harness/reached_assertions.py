"""How many examples of each property reach an assertion: a plugin of pytest.

`python -m pytest -p tests.harness.reached_assertions <tests>` prints, for each property with
assertions of its own, the share of its examples that reach one, and each assertion's share. A
property under half checks little: draw what is checked, instead of dropping what is not.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import pytest

LEAST = 0.5


@dataclass
class Property:
    """One property. `reached` counts examples by assertion, and under 0 those that reach any."""

    examples: int = 0
    seen: set[int] = field(default_factory=set[int])
    reached: Counter[int] = field(default_factory=Counter[int])

    def counted(self, inner: FunctionType) -> Callable[..., None]:
        """Return a property's function that counts."""
        marked = with_marks(inner, self.seen.add)

        def run(*arguments: Any, **named: Any) -> None:
            self.examples += 1
            self.seen.clear()
            try:
                marked(*arguments, **named)
            finally:
                self.reached.update({*self.seen, *([0] if self.seen else [])})

        return run

    @property
    def share(self) -> float:
        """Return the share of examples that reach an assertion."""
        return self.reached[0] / max(1, self.examples)

    def line(self, name: str) -> str:
        """Return what was counted as a line of the table."""
        lines = (one for one in sorted(self.reached) if one)
        each = " ".join(f"{one}:{self.reached[one] / self.examples:.2f}" for one in lines)
        return f"{self.share:.2f} of {self.examples:5} {name} {each}"


class _Marks(ast.NodeTransformer):
    """Puts a call before each assertion, and before each block that expects an error."""

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        return [_mark(node), node]

    def visit_With(self, node: ast.With) -> list[ast.stmt] | ast.AST:
        self.generic_visit(node)
        raises = any("raises" in ast.unparse(item.context_expr) for item in node.items)
        return [_mark(node), node] if raises else node


def _mark(node: ast.stmt) -> ast.stmt:
    call = ast.parse(f"__reached__({node.lineno})").body[0]
    return ast.copy_location(call, node)


def with_marks(inner: FunctionType, reached: Callable[[int], object]) -> Callable[..., None]:
    """Return a function of a module that tells the line of each assertion that it comes to."""
    lines, first = inspect.getsourcelines(inner)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.decorator_list = []
    marked = ast.fix_missing_locations(_Marks().visit(tree))
    made: dict[str, Any] = {}
    names = inner.__globals__ | {"__reached__": reached}
    exec(compile(marked, inner.__code__.co_filename, "exec"), names, made)
    return made[inner.__name__]


class Counts:
    """The properties of a run."""

    def __init__(self) -> None:
        self.properties: dict[str, Property] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Count in each property that has assertions of its own."""
        for item in items:
            handle = getattr(getattr(item, "obj", None), "hypothesis", None)
            inner = getattr(handle, "inner_test", None)
            if isinstance(inner, FunctionType) and "assert " in inspect.getsource(inner):
                made = self.properties[item.nodeid] = Property()
                handle.inner_test = made.counted(inner)  # pyright: ignore[reportOptionalMemberAccess]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table, the least first."""
        found = [
            (one.share, one.line(name)) for name, one in self.properties.items() if one.examples
        ]
        for share, line in sorted(found):
            terminalreporter.write_line(f"{'UNDER HALF ' if share < LEAST else ''}{line}")


def pytest_configure(config: pytest.Config) -> None:
    """Count."""
    config.pluginmanager.register(Counts(), "reached")
