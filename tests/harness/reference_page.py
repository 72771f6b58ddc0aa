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
from bus.wire import codec, topics
from bus.wire.messages import tokens
from conf.sections import environment_of
from conf.settings import DEFAULTS_FILE
from conf.supervisord import PROGRAMS
from gateway.cli.app import EPILOG, app
from gateway.cli.output import errors
from gateway.http.routes import ROUTES, add_routes
from runner.lifecycle import EXIT_CODES
from tests.harness.protocol_page import first_paragraph
from tests.house.trees import Module, Tree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference.md"
HEAD = """# Reference

Made by `make docs` from the code; do not edit. Each row names the file it comes from. The fields of
messages and frames are in [protocol.md](protocol.md); how to run things is in
[operations/](operations/).
"""
GROUPS: Mapping[str, tuple[str, str]] = {
    "commands": ("Commands", "Wanted of the holder; each is answered once."),
    "events": ("Events", "Happened; each has a place in the cluster's one log."),
    "readings": ("Readings", "Measured; the latest wins."),
    "collectives": ("The collective test", "What ranks found of the links between nodes."),
    "control": ("Control", "The term, snapshots, slots, diagnoses."),
    "gateways": ("Gateways", "Between gateways of different nodes: cancels, records."),
    "peers": ("Peers", "Between switchboards of different nodes."),
    "weights": ("Weights", "Between workers: what a model is made of, and its bytes."),
}
"""Modules of messages, in this order; one that is not named here comes last under its own name."""
VARIABLES: Mapping[str, str] = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "given to processes that pull: nothing is drawn",
    "HF_HUB_DISABLE_TELEMETRY": "given to processes that pull: nothing is told of us",
    "HF_HUB_DISABLE_XET": "given to processes that pull: bytes come by HTTP ranges alone",
    "HF_HUB_OFFLINE": "where it is set, no hub is asked",
    "HF_TOKEN": "the hub's token of a node that pulls, else what `hf auth login` left",
    "HF_ENDPOINT": "the hub that models are pulled from, else https://huggingface.co",
    "HF_HOME": "where Hugging Face's cache is; models in it are used, never written",
    "HF_HUB_CACHE": "that cache itself; wins over HF_HOME",
    "HOME": "given to the node by the service that starts it",
    "KMP_BLOCKTIME": "given to runners: how soon MKL's threads sleep",
    "SHOAL_LEASE": "given to the program of `shoal lease run`: the lease that it has",
    "LD_PRELOAD": "given to runners: what multiplies matrices, see `runner.blas`",
    "MLX_METAL_FAST_SYNCH": "given to runners before they import MLX: `runner.metal_fast_synch`",
    "MKL_DYNAMIC": "given to runners: MKL takes the threads that it is told",
    "MKL_INTERFACE_LAYER": "given to runners: MKL's interface with 32-bit integers, as MLX has",
    "MKL_NUM_THREADS": "given to runners: `runner.blas_threads`",
    "MKL_THREADING_LAYER": "given to runners: by what MKL makes threads",
    "MLX_ENABLE_CACHE_THRASHING_CHECK": "given to runners, 0 unless exported: on CUDA MLX goes on "
    "where shapes change more often than its caches hold them",
    "MLX_HOSTFILE": "given to MLX: the ring's addresses",
    "MLX_IBV_DEVICES": "given to MLX: the RDMA device between each two ranks",
    "MLX_JACCL_COORDINATOR": "given to MLX: where rank 0 listens",
    "MLX_RANK": "given to MLX: the rank of this process",
    "OPENBLAS_CORETYPE": "given to runners: OpenBLAS's kernels, where others are faster",
    "OPENBLAS_NUM_THREADS": "given to runners: `runner.blas_threads`",
    "OPENBLAS_THREAD_TIMEOUT": "given to runners: how soon OpenBLAS's threads sleep",
    "PATH": "where the system's RDMA tools are looked for",
    "PROMETHEUS_MULTIPROC_DIR": "given to HTTP processes: where they count together",
    "PYTHONPATH": "given to the process that compiles kernels",
    "PYTHONUNBUFFERED": "given to every process: its log is written at once",
    "SHOAL_API_KEY": "the key that `shoal` presents to a node",
    "SHOAL_HOME": "the home of the node, as `--home`",
    "SHOAL_LAUNCHED_BY": "what started the node, for its card",
    "SHOAL_SLOT": "given to a runner: its slot",
    "SHOAL_CA": "the certificates that `shoal` trusts at an https address, as `--ca`",
    "SHOAL_URL": "the node that `shoal` talks to, as `--url`",
    "SUDO_USER": "whom a service runs as, when `sudo` installs it",
    "SUPERVISOR_ENABLED": "set by supervisord: a process whose supervisor dies ends itself",
    "TMPDIR": "given to runners: where MLX keeps compiled kernels",
    "XDG_CONFIG_HOME": "where `shoal.toml` lies without a home",
    "XDG_DATA_HOME": "where models lie without a home",
    "XDG_STATE_HOME": "where the node's state lies without a home",
}
"""What each variable means that is no setting. Making the page fails for one that is not here."""
NAMES = re.compile(r"(SHOAL|MLX|MKL|KMP|XDG|HF|OPENBLAS|PROMETHEUS)_[A-Z_]*[A-Z]")
FOREIGN = ("SHOAL_PROVE",)
"""Names that only tests set, and that the settings let pass."""

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
    parts = [topic_rows(), *message_rows(), frame_rows(), command_rows(), route_rows()]
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


def message_rows() -> Iterator[str]:
    """Yield the kinds of messages, a section for each module of them; bodies of events as well."""
    found: dict[str, dict[str, type[Any]]] = {}
    for kind, cls in codec.KINDS.items():
        found.setdefault(cls.__module__.rpartition(".")[2], {})[kind] = cls
    order = [*GROUPS, *sorted(set(found) - set(GROUPS))]
    for group in order:
        kinds = found.get(group, {})
        title, about = GROUPS.get(group, (group.capitalize(), ""))
        if kinds:
            rows = (
                (f"[`{kind}`](protocol.md#{kind})", first_paragraph(cls), _file_of(cls.__module__))
                for kind, cls in sorted(kinds.items())
            )
            yield _section(title, about, ("kind", "meaning", "file"), rows)


def frame_rows() -> str:
    """Return the frames of the data plane."""
    rows = (
        (f"`{name}`", first_paragraph(cls), _file_of(cls.__module__))
        for name, cls in vars(tokens).items()
        if inspect.isclass(cls) and cls.__module__ == tokens.__name__ and cls.__doc__
    )
    about = "Between a gateway process and a lead runner, request by request."
    return _section("Data frames", about, ("frame", "meaning", "file"), rows)


def command_rows() -> str:
    """Return the verbs of `shoal`, with the file of each."""
    rows: list[Row] = []
    for words, verb in _verbs(typer.main.get_command(app), ()):
        code = inspect.unwrap(verb.callback)
        meaning = " ".join((verb.help or "").split("\n\n")[0].split())
        rows.append((f"`shoal {' '.join(words)}`", meaning, _file_of(code.__module__)))
    about = "Options: `shoal VERB --help`; examples: [operations/command-line.md]"
    about += "(operations/command-line.md)."
    return _section("Commands of the command line", about, ("command", "meaning", "file"), rows)


def route_rows() -> str:
    """Return the routes of the gateway, with the file of what answers each."""
    recorder = Recorder()
    add_routes(cast(Any, recorder), cast(Any, Answering()))
    rows = (
        (f"`{r.method} {r.path}`", r.summary, r.tag, _file_of(_module(recorder.resources[r.path])))
        for r in ROUTES
    )
    about = "Ollama's also answer under `/ollama`. [operations/http-api.md](operations/http-api.md)"
    about += " says what is honoured."
    return _section("Routes", about, ("route", "meaning", "API", "file"), rows)


def setting_rows() -> str:
    """Return the settings: key, default, variable, and what `conf/default.toml` says of each."""
    meanings = _comments(DEFAULTS_FILE.read_text())
    rows: list[Row] = []
    for key, value in _flat(tomllib.loads(DEFAULTS_FILE.read_text()), ""):
        variable = next(iter(environment_of({key: ""})))
        rows.append((f"`{key}`", f"`{_shown(value)}`", f"`{variable}`", meanings.get(key, "")))
    about = "Each is documented in `conf/default.toml`; types and limits are in "
    about += "`conf/settings.py` and `conf/sections.py`."
    return _section("Settings", about, ("setting", "default", "variable", "meaning"), rows)


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
    about = "Beside `SHOAL_<SETTING>`, above."
    return _section("Environment", about, ("variable", "meaning", "files"), rows)


def program_rows(tree: Tree) -> str:
    """Return supervisord's programs."""
    rows: list[Row] = [
        (f"`{program.name}`", tree.modules[program.name].law, f"`{program.name}/__main__.py`")
        for program in PROGRAMS
    ]
    rows.append(("`runner:00` ...", tree.modules["runner"].law, "`runner/__main__.py`"))
    about = "Written by `conf/supervisord.py`; `supervisorctl status` shows them. The worker alone "
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
        service.EXIT_FAILED: "failed; supervisord starts it again",
        service.EXIT_ROLE_TAKEN: "another process of this home has the role",
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
