"""The laws of one module: pure unless it says whom it talks to, a law, small, plain docstrings.

Pure: parsed modules in, breaches out. A module is a shell when its first line begins with
"Talks to", when it is a `__main__.py`, or when it belongs to the tool. Every other module reads
no clock, no chance and no file, and runs no import of a shell; to name a shell's type under
`if TYPE_CHECKING:` is allowed.
"""

from __future__ import annotations

import ast
import re

from tests.house.counting import undocumented
from tests.house.judging import Breach
from tests.house.trees import Function, Module, Tree

IMPURE_IMPORTS = {
    "time", "random", "os", "asyncio", "socket", "threading", "subprocess", "logging", "zmq",
    "mlx", "secrets", "uuid", "shutil", "tempfile", "select", "signal", "psutil", "httpx",
}  # fmt: skip
IMPURE_CALLS = {"now", "utcnow", "today", "uuid1", "uuid4", "open", "urandom", "monotonic"}
OWNERS = ("datetime", "date", "uuid", "time", "os")
"""Whose methods of those names are impure; `.now()` is impure whoever has it."""
MAX_LINES = 400
QUESTION = re.compile(r"(?:Whether|What|Who|Which|Where|How|When|Why)\b")
RIDDLE = re.compile(r"\b(?:whoever|nobody|somebody|whatever)\b", re.IGNORECASE)


def purity(tree: Tree) -> list[Breach]:
    """Return the modules that are not pure and do not say so."""
    found: list[Breach] = []
    for module in tree.modules.values():
        if module.is_shell:
            continue
        faults = [*impurities(module.tree), *shells_imported(tree, module)]
        if faults:
            found.append(Breach(module.name, "; ".join(faults), len(faults)))
    return found


def impurities(tree: ast.Module) -> list[str]:
    """Return what in a module reads clocks, chance, files or sockets."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in IMPURE_IMPORTS]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if (node.module or "").split(".")[0] in IMPURE_IMPORTS:
                found.append(str(node.module))
        elif isinstance(node, ast.Call) and _called(node) in IMPURE_CALLS:
            found.append(f"{_called(node)}() at line {node.lineno}")
    return found


def shells_imported(tree: Tree, module: Module) -> list[str]:
    """Return the imports of shells that run in a module; a door is looked through."""
    found: list[str] = []
    for one in tree.imports:
        if one.source != module.name or one.typing:
            continue
        home = tree.modules.get(tree.home_of(one.target, one.name))
        if home is not None and home.is_shell:
            found.append(f"imports the shell {home.name} at line {one.line}")
    return list(dict.fromkeys(found))


def openings(tree: Tree) -> list[Breach]:
    """Return the modules without a law at their top, and those over 400 lines; the tool's too."""
    found: list[Breach] = []
    for module in tree.modules.values():
        lines = module.text.count("\n")
        if not module.law:
            found.append(Breach(module.name, "no docstring at the top"))
        if lines > MAX_LINES:
            found.append(Breach(module.name, f"{lines} lines where {MAX_LINES} may be", lines))
    return found


def docstrings(tree: Tree) -> list[Breach]:
    """Return the public functions without a docstring, and docstrings that speak in riddles.

    A function's docstring begins with a verb, never with a question word; no docstring has a
    pronoun that stands for nothing named before. The tool's are not looked at.
    """
    seams, rest = undocumented(tree)
    found = [Breach(name, "is public and has no docstring") for name in (*seams, *rest)]
    for module in tree.product:
        for node in module.nodes:
            if not isinstance(node, ast.Module | ast.ClassDef | Function):
                continue
            text = ast.get_docstring(node) or ""
            name = f"{module.name}.{getattr(node, 'name', '')}".rstrip(".")
            if isinstance(node, Function) and QUESTION.match(text):
                found.append(Breach(name, f"begins with a question: {text[:40]}"))
            if riddle := RIDDLE.search(text):
                found.append(Breach(name, f"says {riddle[0]}"))
    return found


def _called(node: ast.Call) -> str:
    """Return the name of a called function that may be impure, else an empty text."""
    function = node.func
    if isinstance(function, ast.Attribute):
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        return function.attr if owner in OWNERS or function.attr == "now" else ""
    return function.id if isinstance(function, ast.Name) else ""
