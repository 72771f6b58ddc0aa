"""The laws of one module: pure unless it says whom it talks to, a law, small, plain docstrings.

Pure: parsed modules in, breaches out. A module is a shell when its first line begins with
"Talks to", when it is a `__main__.py`, or when it belongs to the tool. Every other module reads
no clock, no chance and no file, and runs no import of a shell; to name a shell's type under
`if TYPE_CHECKING:` is allowed.
"""

from __future__ import annotations

import ast
import re

from tests.house.judging import Breach
from tests.house.trees import Function, Module, Tree, door_names

IMPURE_IMPORTS = {
    "time", "random", "os", "asyncio", "socket", "threading", "subprocess", "logging", "zmq",
    "mlx", "secrets", "uuid", "shutil", "tempfile", "select", "signal", "psutil", "httpx",
    "sqlite3", "ssl", "multiprocessing", "concurrent", "fcntl", "mmap", "selectors", "queue",
    "glob", "ctypes", "xmlrpc", "httpx2", "httpcore", "mlx_lm", "gunicorn", "zeroconf", "pty",
    "supervisor", "huggingface_hub", "uvloop", "resource", "atexit", "setproctitle", "sched",
    "socketserver",
}  # fmt: skip
IMPURE_CALLS = {"now", "utcnow", "today", "uuid1", "uuid4", "open", "urandom", "monotonic"}
IMPURE_MODULES = (
    "urllib.request",
    "http.client",
    "http.server",
    "numpy.random",
    "importlib.resources",
)
"""Parts of libraries whose other parts are pure."""
IMPURE_METHODS = {
    "read_text", "read_bytes", "write_text", "write_bytes", "is_file", "is_dir", "iterdir", "rglob",
    "mkdir", "unlink", "sendall", "recv", "default_rng", "getenv",
}  # fmt: skip
"""Methods that read or write files and sockets, or draw numbers, whoever has them."""
TALKS = {"print", "input"}
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
            found += [a.name for a in node.names if _is_impure(a.name)]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{a.name}" for a in node.names]
            if _is_impure(str(node.module)) or any(map(_is_impure, names)):
                found.append(str(node.module))
        elif isinstance(node, ast.Call) and _called(node):
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
    """Return missing docstrings where a reader enters, and docstrings that speak in riddles.

    Required of public classes on a module's top level (protocols too) and of functions that a
    room's `__all__` names; `openings` requires them of modules. A function's docstring begins with
    a verb, never with a question word; no docstring has a pronoun that stands for nothing.
    """
    found = [Breach(name, "is at a door and has no docstring") for name in undocumented(tree)]
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


def undocumented(tree: Tree) -> list[str]:
    """Return the public classes and the functions of doors that have no docstring, dotted."""
    at_doors = {
        (tree.home_of(room.name, name), name)
        for room in tree.product
        if room.is_room
        for name in door_names(room)
    }
    found: list[str] = []
    for module in tree.product:
        for node in module.tree.body:
            if not isinstance(node, ast.ClassDef | Function):
                continue
            is_class = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            is_door = isinstance(node, Function) and (module.name, node.name) in at_doors
            if (is_class or is_door) and not ast.get_docstring(node):
                found.append(f"{module.name}.{node.name}")
    return found


def _is_impure(name: str) -> bool:
    return name.split(".")[0] in IMPURE_IMPORTS or name.startswith(IMPURE_MODULES)


def _called(node: ast.Call) -> str:
    """Return the name of a called function that is impure, else an empty text."""
    function = node.func
    if isinstance(function, ast.Attribute):
        of, name = function.value, function.attr
        owner = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
        of_owner = name in IMPURE_CALLS and (owner in OWNERS or name == "now")
        return name if of_owner or name in IMPURE_METHODS or owner == "random" else ""
    name = function.id if isinstance(function, ast.Name) else ""
    return name if name in IMPURE_CALLS | TALKS else ""
