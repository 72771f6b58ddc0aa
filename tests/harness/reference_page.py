"""Write docs/reference.md from the code: every name that users and other programs meet.

Names of classes are not shown: a row says what is sent, read or typed, what it means, and in
which file it is.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import typer.main

from bus import service
from bus.wire import topics
from conf.keys import environment_of
from conf.settings import DEFAULTS_FILE
from conf.supervisord import PROGRAMS
from gateway.cli.app import EPILOG, app
from gateway.cli.output import errors
from gateway.http.routes import ROUTES, add_routes
from runner.lifecycle import EXIT_CODES
from tests.house.trees import Module, Tree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference.md"
HEAD = """# Reference

Made by `make docs` from the code; do not edit. Every name that users and other programs meet. The
messages and frames are in [protocol.md](protocol.md).
"""
VARIABLES: Mapping[str, str] = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "set for pulling processes: no progress bars",
    "HF_HUB_DISABLE_TELEMETRY": "set for pulling processes: no telemetry",
    "HF_HUB_DISABLE_XET": "set for pulling processes: HTTP ranges only",
    "HF_HUB_OFFLINE": "if set, no hub is contacted",
    "HF_TOKEN": "the hub's token; default: the one that `hf auth login` stored",
    "HF_ENDPOINT": "the hub; default: https://huggingface.co",
    "HF_HOME": "Hugging Face's cache; shoal reads its models and never writes there",
    "HF_HUB_CACHE": "the cache itself; overrides HF_HOME",
    "HOME": "set for the node by the system service that starts it",
    "KMP_BLOCKTIME": "set for runners: when MKL's threads sleep",
    "SHOAL_LEASE": "set for the program of `shoal lease run`: its lease",
    "LD_PRELOAD": "set for runners: the BLAS library, see `runner.blas`",
    "MLX_METAL_FAST_SYNCH": "set for runners before they import MLX: `runner.metal_fast_synch`",
    "MKL_DYNAMIC": "set for runners: MKL uses exactly the given threads",
    "MKL_INTERFACE_LAYER": "set for runners: 32-bit integers, as in MLX",
    "MKL_NUM_THREADS": "set for runners: `runner.blas_threads`",
    "MKL_THREADING_LAYER": "set for runners: MKL's thread library",
    "MLX_ENABLE_CACHE_THRASHING_CHECK": "set for runners to 0 unless exported: on CUDA, MLX then "
    "continues if shapes change more often than its caches hold them",
    "MLX_HOSTFILE": "set for MLX: the ring's addresses",
    "MLX_IBV_DEVICES": "set for MLX: the RDMA device between each two ranks",
    "MLX_JACCL_COORDINATOR": "set for MLX: the address of rank 0",
    "MLX_RANK": "set for MLX: this process's rank",
    "OPENBLAS_CORETYPE": "set for runners: faster OpenBLAS kernels, if there are any",
    "OPENBLAS_NUM_THREADS": "set for runners: `runner.blas_threads`",
    "OPENBLAS_THREAD_TIMEOUT": "set for runners: when OpenBLAS's threads sleep",
    "PATH": "searched for the system's RDMA tools",
    "PROMETHEUS_MULTIPROC_DIR": "set for HTTP processes: the folder of their shared counters",
    "PYTHONPATH": "set for the process that compiles kernels",
    "PYTHONUNBUFFERED": "set for every process: logs are written at once",
    "SHOAL_API_KEY": "the API key that `shoal` sends",
    "SHOAL_HOME": "the node's home, like `--home`",
    "SHOAL_LAUNCHED_BY": "what started the node, for its card",
    "SHOAL_OVERLAY": "set for runners: a file with newer variables for BLAS",
    "SHOAL_SLOT": "set for a runner: its slot",
    "SHOAL_CA": "certificates that `shoal` trusts at an https address, like `--ca`",
    "SHOAL_URL": "the node that `shoal` calls, like `--url`",
    "SUDO_USER": "the user of a service that `sudo` installs",
    "SUPERVISOR_ENABLED": "set by supervisord: a process whose supervisor dies ends itself",
    "TMPDIR": "set for runners: the folder of MLX's compiled kernels",
    "XDG_CONFIG_HOME": "the folder of `shoal.toml` without a home",
    "XDG_DATA_HOME": "the folder of models without a home",
    "XDG_STATE_HOME": "the folder of the node's state without a home",
}
"""The meaning of each variable that is no setting. A variable without an entry fails the page."""
NAMES = re.compile(r"(SHOAL|MLX|MKL|KMP|XDG|HF|OPENBLAS|PROMETHEUS)_[A-Z_]*[A-Z]")
FOREIGN = ("SHOAL_PROVE",)
"""Names that only tests set; the settings ignore them."""

Row = Sequence[object]


class Answering(str):
    """Stands for the gateway, and for its version, where resources are only made, never asked."""

    __slots__ = ()

    def __getattr__(self, _name: str) -> Answering:
        return self


class Recorder:
    """Stands for the application: keeps what answers each path."""

    def __init__(self) -> None:
        self.resources: dict[str, object] = {}

    def add_route(self, path: str, resource: object) -> None:
        """Keep a path's resource."""
        self.resources[path] = resource


def page() -> str:
    """Return the whole page."""
    tree = Tree()
    parts = [topic_rows(), command_rows(), route_rows()]
    parts += [setting_rows(), variable_rows(tree), program_rows(tree), exit_rows()]
    return "\n".join([HEAD, *parts])


def topic_rows() -> str:
    """Return the topics, in the order of the table."""
    rows = (
        (
            f"`{row.prefix}`",
            row.plane,
            f"`{row.message.model_fields['kind'].default}`",
            "yes" if row.retained else "no",
            f"{row.ttl_s:g} s" if row.ttl_s else "-",
            row.promise,
            _file_of(row.message.__module__),
        )
        for row in topics.TABLE
    )
    head = ("topic", "plane", "kind", "retained", "TTL", "promise", "message in")
    return _section("Topics", f"The table is {_file_of(topics.__name__)}.", head, rows)


def command_rows() -> str:
    """Return the verbs of `shoal`, with the file of each."""
    rows: list[Row] = []
    for words, verb in _verbs(typer.main.get_command(app), ()):
        code = inspect.unwrap(verb.callback)
        meaning = " ".join((verb.help or "").split("\n\n")[0].split())
        rows.append((f"`shoal {' '.join(words)}`", meaning, _file_of(code.__module__)))
    about = "Options: `shoal VERB --help`. Examples: [command-line](operations/command-line.md)."
    return _section("Commands of the command line", about, ("command", "meaning", "file"), rows)


def route_rows() -> str:
    """Return the routes of the gateway, with the file of what answers each."""
    recorder = Recorder()
    add_routes(cast(Any, recorder), cast(Any, Answering()))
    rows = (
        (f"`{r.method} {r.path}`", r.summary, r.tag, _file_of(_module(recorder.resources[r.path])))
        for r in ROUTES
    )
    about = "Ollama's routes also answer under `/ollama`. "
    about += "Fields and errors: [http-api](operations/http-api.md)."
    return _section("Routes", about, ("route", "meaning", "API", "file"), rows)


def setting_rows() -> str:
    """Return the settings: key, default, and the first sentence of `conf/default.toml`."""
    meanings = _comments(DEFAULTS_FILE.read_text())
    rows: list[Row] = []
    for key, value in _flat(tomllib.loads(DEFAULTS_FILE.read_text()), ""):
        rows.append((f"`{key}`", f"`{_shown(value)}`", meanings.get(key, "")))
    about = "In full: [settings.example.toml](settings.example.toml); types and limits: "
    about += "[settings.schema.json](settings.schema.json), from `conf/settings.py` and "
    variable = next(iter(environment_of({"runner.max_rows": ""})))
    about += f"`conf/sections.py`. The variable of `runner.max_rows` is `{variable}`."
    return _section("Settings", about, ("setting", "default", "meaning"), rows)


def variable_rows(tree: Tree) -> str:
    """Return the variables of the environment that are no settings, with the files naming them.

    Raises KeyError for a variable that VARIABLES does not explain.
    """
    texts = {module.path: _texts(module) for module in tree.product}
    named = {name: [path for path, told in texts.items() if name in told] for name in VARIABLES}
    for path, told in texts.items():
        for text in told:
            if NAMES.fullmatch(text) and text not in (*VARIABLES, *FOREIGN):
                raise KeyError(f"{path} names {text}: explain it in VARIABLES")
    rows = (
        (f"`{name}`", VARIABLES[name], ", ".join(f"`{path}`" for path in paths))
        for name, paths in named.items()
        if paths
    )
    about = "In addition to the settings' variables."
    return _section("Environment", about, ("variable", "meaning", "files"), rows)


def program_rows(tree: Tree) -> str:
    """Return supervisord's programs."""
    rows: list[Row] = [
        (f"`{program.name}`", tree.modules[program.name].law, f"`{program.name}/__main__.py`")
        for program in PROGRAMS
    ]
    rows.append(("`runner:00` ...", tree.modules["runner"].law, "`runner/__main__.py`"))
    about = "`conf/supervisord.py` writes them; `supervisorctl status` shows them. Only the worker "
    about += "starts runners."
    return _section("Supervisor programs", about, ("program", "meaning", "file"), rows)


def exit_rows() -> str:
    """Return the exit codes of `shoal`, of services, and of runners."""
    there = EPILOG.partition("Exit codes: ")[2].rstrip(".")
    rows: list[Row] = []
    for part in there.split(", "):
        code, _, meaning = part.partition(" ")
        rows.append((code, "`shoal`", meaning, _file_of(errors.__name__)))
    served = {
        service.EXIT_FAILED: "failed; supervisord restarts it",
        service.EXIT_ROLE_TAKEN: "the role is taken by another process of this home",
        service.EXIT_ORPHANED: "its supervisor died",
    }
    rows += [
        (code, "any service", text, _file_of(service.__name__)) for code, text in served.items()
    ]
    rows += [(code, "runner", text, "`runner/lifecycle.py`") for code, text in EXIT_CODES.items()]
    return _section("Exit codes", "", ("code", "of", "meaning", "file"), rows)


def _section(title: str, about: str, head: Sequence[str], rows: Iterable[Row]) -> str:
    lines = [f"## {title}\n", *([f"{about}\n"] if about else [])]
    lines += [_line(head), "|" + "---|" * len(head), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"


def _file_of(module: str) -> str:
    return f"`{module.replace('.', '/')}.py`"


def _module(resource: object) -> str:
    return type(resource).__module__


def _verbs(verb: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner: dict[str, Any] = getattr(verb, "commands", {})
    if not inner:
        yield words, verb
    for name, command in inner.items():
        yield from _verbs(command, (*words, name))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def _comments(text: str) -> dict[str, str]:
    """Return the first sentence of the comment above each key; keys below share it."""
    found: dict[str, str] = {}
    table, said, fresh = "", list[str](), False
    for line in text.splitlines():
        if line.startswith("#"):
            said = [*(said if fresh else []), line.removeprefix("#").strip()]
        elif line.startswith("["):
            table, said = line.strip("[] ") + ".", []
        elif "=" in line:
            found[table + line.partition("=")[0].strip()] = _sentence(" ".join(said))
        fresh = line.startswith("#")
    return found


def _sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z`0-9])", text)[0]


def _texts(module: Module) -> set[str]:
    return {
        node.value
        for node in module.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
