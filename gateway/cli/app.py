"""Talks to typer: the root of the command line, `shoal VERB`.

The table `VERBS` holds the help line of each verb, so that `shoal --help` loads no verb's module. A
verb's module is loaded when the verb runs.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from gateway.cli.exit_codes import INTERRUPTED
from gateway.cli.interrupts import silent_interrupts

with silent_interrupts():
    import typer
    from typer.core import TyperGroup

    from gateway.cli.command import command_of, end_in_words, options


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line. `module` is the module of its function, under `gateway.cli`.
    `function` is the name of that function if it differs from the name of the verb. `here`: the
    verb works only on files and processes of this machine, so it refuses `--url`."""

    about: str
    module: str
    function: str = ""
    here: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A group of verbs: its help line and its verbs."""

    about: str
    verbs: Mapping[str, Verb]


# fmt: off
VERBS: Mapping[str, Verb | Group] = {
    "up": Verb("Start a node and wait until it answers.", "verbs.node.up", here=True),
    "down": Verb("Stop the node: all processes of its home.", "verbs.node.down", here=True),
    "restart": Verb((
        "Stop the node and start it again with the same "
        "options."
        ), "verbs.node.restart", here=True),
    "status": Verb("Show the node's processes, models and address.", "verbs.node.status"),
    "nodes": Verb("Show the nodes of the cluster, or change one.", "verbs.cluster.nodes"),
    "fleet": Verb("Show each model's speed, and its role in speculative decoding.",
                  "verbs.cluster.nodes", function="fleet"),
    "cluster-info": Verb("Compare the nodes: versions, hardware, health.",
                         "verbs.cluster.cluster_info"),
    "lab": Verb("Start N nodes on this machine as one cluster.", "verbs.node.lab", here=True),
    "run": Verb("Send a prompt to a model; without one, chat.", "verbs.models.chat"),
    "chat": Verb("Chat with a model.", "verbs.models.chat"),
    "ps": Verb("Show the models in memory and their status.", "verbs.models.instances"),
    "load": Verb("Load a model and wait until it is ready.", "verbs.models.instances"),
    "pool": Verb("Show which models wait for memory, and why.", "verbs.cluster.pool"),
    "pin": Verb("Pin a model in memory; load it if needed.", "verbs.cluster.pool"),
    "unpin": Verb("Unpin a model, so that it can be evicted.", "verbs.cluster.pool"),
    "clients": Verb("Show the clients, and the settings of each.", "verbs.cluster.clients"),
    "tasks": Verb("Show the tasks: names that several models serve.", "verbs.cluster.tasks"),
    "stop": Verb("Unload a model after its open requests finish.", "verbs.models.instances"),
    "place": Verb("Place a model on one or several nodes.", "verbs.models.place"),
    "search": Verb("Search the Hugging Face hub for models.", "verbs.store.search"),
    "pull": Verb("Download a model from the Hugging Face hub.", "verbs.store.pulling"),
    "pulls": Verb("Show the pulls of all nodes; cancel, pause or resume one.",
                  "verbs.store.pulling"),
    "sync": Verb("Copy models to another node, or to all.", "verbs.store.sync"),
    "quantize": Verb("Quantize a model to fewer bits.", "verbs.store.quantize"),
    "cp": Verb("Give a model an alias, on all nodes.", "verbs.store.naming"),
    "create": Verb("Create a model from a Modelfile.", "verbs.store.create"),
    "ls": Verb("List the models on disk.", "verbs.models.models"),
    "show": Verb("Show a model: files, memory, settings.", "verbs.models.models"),
    "rm": Verb("Delete models from the disk of this node or of all.", "verbs.store.removal"),
    "requests": Verb("Show the latest finished requests and their timings.",
                     "verbs.models.requests"),
    "monitor": Verb("Watch the cluster live.", "verbs.monitor"),
    "tap": Verb("Watch the bus: events, readings, tokens.", "verbs.node.tap", here=True),
    "logs": Verb("Show the logs of the node's processes.", "verbs.node.logs", here=True),
    "timeline": Verb("Show the runners' last steps, and the rank that others wait for.",
                     "verbs.monitor.timeline"),
    "capture": Verb("Save the state and logs of each node to one file.", "verbs.node.capture"),
    "doctor": Verb("Check the node and its machine for problems.", "doctor.doctor", here=True),
    "selftest": Verb("Check shoal on this machine, in a temporary home.", "selftest.selftest",
                     here=True),
    "bench": Verb("Measure tokens per second and latencies.", "verbs.models.bench"),
    "verify": Verb("Verify a model's files; without a model, test the cluster.",
                   "verbs.cluster.verify"),
    "rdma-test": Verb("Test the links between nodes: correctness and speed.",
                      "verbs.cluster.rdma_test"),
    "hostfile": Verb("Check an mlx.launch hostfile.", "verbs.cluster.hostfile", here=True),
    "version": Verb("Print the version of shoal.", "verbs.node.version", here=True),
    "upgrade": Verb("Show the commands that upgrade shoal.", "verbs.node.version", here=True),
    "card": Group("Read and change a model's card.toml, on all nodes.", {
        "show": Verb("Show a model's settings and the source of each.", "verbs.store.cards"),
        "edit": Verb("Edit the card in your editor.", "verbs.store.cards"),
        "add": Verb("Add settings to the card, or write it from a file.", "verbs.store.cards"),
        "rm": Verb("Delete the card on all nodes.", "verbs.store.cards", "remove"),
        "export": Verb("Print the card as TOML.", "verbs.store.cards"),
    }),
    "store": Group("Show downloaded models, or delete them to free disk space.", {
        "show": Verb("Show downloaded models and which is deleted next.",
                     "verbs.store.storage"),
        "purge": Verb((
            "Delete downloaded models that can be downloaded "
            "again."
            ), "verbs.store.storage"),
    }),
    "kv": Group("Show or delete the KV of long prompts on this node's disk.", {
        "ls": Verb("List the models with KV on disk.", "verbs.store.kv", here=True),
        "purge": Verb("Delete KV on disk, of one model or all.", "verbs.store.kv", here=True),
    }),
    "engine": Group("Install packages for programs of engines.toml, such as vLLM.", {
        "ls": Verb("List the environments of this machine.", "verbs.engines", here=True),
        "add": Verb("Make an environment with pinned packages.", "verbs.engines",
                    here=True),
        "rm": Verb("Delete an environment.", "verbs.engines", here=True),
    }),
    "service": Group("Start the node when the machine starts.", {
        "install": Verb((
            "Install a system service that starts the "
            "node."
            ), "verbs.node.service", here=True),
        "uninstall": Verb("Stop and remove the installed service.", "verbs.node.service",
                          here=True),
    }),
    "jobs": Group("Show and cancel jobs, which run without a waiting client.", {
        "ls": Verb("List the jobs of this node.", "verbs.models.jobs"),
        "show": Verb("Show a job and its result.", "verbs.models.jobs"),
        "cancel": Verb("Cancel a job.", "verbs.models.jobs"),
    }),
    "trace": Group("Record traces, which show where the time of a request went.", {
        "on": Verb("Trace every request, or a share of them.", "verbs.models.traces"),
        "off": Verb("Trace only requests that ask for it.", "verbs.models.traces"),
        "ls": Verb("List the stored traces.", "verbs.models.traces"),
        "show": Verb("Show a trace as bars.", "verbs.models.traces"),
        "save": Verb("Save a trace to a file for Perfetto.", "verbs.models.traces"),
    }),
    "lease": Group("Reserve memory for other programs.", {
        "run": Verb("Run a program with memory reserved for it.", "verbs.cluster.leases"),
        "ls": Verb("List the leases, and requests that wait for one.", "verbs.cluster.leases"),
        "ask-back": Verb("Ask the owner of a lease to release it.", "verbs.cluster.leases"),
        "rm": Verb("End a lease.", "verbs.cluster.leases"),
    }),
    "config": Group("Read and change the settings.", {
        "show": Verb("Show every setting, its value and its source.", "verbs.node.config",
                     here=True),
        "set": Verb("Write settings to shoal.toml.", "verbs.node.config", "set_", here=True),
        "unset": Verb("Reset settings to their defaults.", "verbs.node.config", here=True),
        "edit": Verb("Edit shoal.toml in your editor.", "verbs.node.config", here=True),
        "path": Verb("Print the path of shoal.toml.", "verbs.node.config", here=True),
    }),
    "apikey": Group("Create, list and revoke the API keys of the cluster.", {
        "add": Verb("Create an API key; it is shown only once.", "verbs.cluster.apikeys"),
        "ls": Verb("List the API keys and their use.", "verbs.cluster.apikeys"),
        "rm": Verb("Revoke an API key.", "verbs.cluster.apikeys"),
        "rotate": Verb("Replace the secret of an API key.", "verbs.cluster.apikeys"),
    }),
    "keys": Group("Create, copy and rotate the cluster key of this node.", {
        "init": Verb("Create a cluster key on the first node.", "verbs.cluster.keys", here=True),
        "show": Verb("Show this node's cluster key.", "verbs.cluster.keys", here=True),
        "join": Verb("Store the key of an existing cluster.", "verbs.cluster.keys", here=True),
        "export": Verb("Write this node's keys to a file.", "verbs.cluster.keys", here=True),
        "rotate": Verb("Rotate the cluster key, in three steps.", "verbs.cluster.keys", here=True),
        "import": Verb("Import keys that another node exported.", "verbs.cluster.keys", "take",
                       here=True),
    }),
}
# fmt: on
"""All verbs, in the order in which `shoal --help` lists them."""
MEANT = {
    "start": "up",
    "quit": "down",
    "shutdown": "down",
    "list": "ls",
    "models": "ls",
    "download": "pull",
    "quantise": "quantize",
    "convert": "quantize",
    "fetch": "pull",
    "get": "pull",
    "remove": "rm",
    "delete": "rm",
    "unload": "stop",
    "alias": "cp",
    "log": "logs",
    "leases": "lease ls",
    "engines": "engine ls",
    "downloads": "pulls",
    "info": "show",
    "generate": "run",
    "benchmark": "bench",
    "top": "monitor",
    "check": "doctor",
    "events": "tap",
    "memory": "nodes",
    "find": "search",
    "copy": "sync",
    "mirror": "sync",
    "config get": "show",
    "config list": "show",
}
"""Verbs that other tools have, each with the shoal verb that does the same. Words with a spelling
similar to the right verb are not listed, because typer suggests the verb for them. A key `GROUP
WORD` applies only inside that group."""
GARBAGE = 50_000
"""Threshold of the garbage collector: it runs once this many more objects were created than freed.
Python's default is 700."""
LATER = {
    "drain": "use `shoal nodes drain NODE` to drain a node",
}
EPILOG = (
    "The options of every verb may stand before or after the verb; `shoal help VERB` "
    "explains a verb.\n\n"
    "Exit codes: 0 success, 1 failure or problems found, 2 invalid command line, 3 "
    "no node answers, "
    "4 not found, 5 refused for now, 130 interrupted."
)


class Commands(Mapping[str, Any]):
    """The commands of a table of verbs, as a mapping. The first access to a command loads its
    module."""

    def __init__(self, rows: Mapping[str, Verb | Group]) -> None:
        self.rows = rows
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return typer's command or group with that name. Raises KeyError."""
        if name not in self._made:
            self._made[name] = _command(name, self.rows[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of the table."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        """Return whether such a verb exists. Loads no module."""
        return name in self.rows


class Verbs(TyperGroup):
    """A group of verbs. Listing the verbs loads no module. If the user types a verb that shoal does
    not have but other tools do, the error names the shoal verb that does the same."""

    def __init__(self, *, commands: Any = None, **more: Any) -> None:
        super().__init__(**more)
        self.table = commands if isinstance(commands, Commands) else Commands(VERBS)
        self.commands = self.table  # pyright: ignore[reportAttributeAccessIssue] - nothing is added

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, in the order of the table."""
        return list(self.table)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.about) for name, row in self.table.rows.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments that click has not parsed. Before parsing, `help VERB` is replaced
        by `VERB --help`, and `--version` by `version`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args[:1] == ["--version"]:
            args = ["version", *args[1:]]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return typer's command for the first argument. If the word is in `MEANT` or `LATER`, fail
        with a message that names the right verb."""
        word = args[0] if args else ""
        if word not in self.table:
            meant = MEANT.get(f"{ctx.info_name} {word}", MEANT.get(word))
            if meant and (meant in self.table or self.table.rows is VERBS):
                ctx.fail(f"No such command '{word}'. Did you mean '{meant}'?")
            if word in LATER:
                ctx.fail(f"'{word}': {LATER[word]}.")
        return super().resolve_command(ctx, args)


def _command(name: str, row: Verb | Group) -> Any:
    if isinstance(row, Group):
        about = row.about
        return Verbs(name=name, commands=Commands(row.verbs), help=about, no_args_is_help=True,
                     rich_markup_mode=None)  # fmt: skip
    with silent_interrupts():
        module = import_module(f"gateway.cli.{row.module}")
    act = getattr(module, row.function or name.replace("-", "_"))
    return command_of(act, name, is_here=row.here)


@functools.wraps(options)
def _root(ctx: typer.Context, **given: Any) -> None:
    """Store the shared options. Without a verb, show the overview."""
    options(ctx, **given)
    if ctx.invoked_subcommand is None:
        from gateway.cli.overview import overview

        end_in_words(ctx.obj.output, lambda: overview(ctx.obj))


app = typer.Typer(
    cls=Verbs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
app.callback(invoke_without_command=True)(_root)


def main() -> None:
    """Run the console script `shoal`.

    A command imports hundreds of modules and ends soon. So the garbage collector runs rarely. It
    does not run at the exit, where it would take as long as a third of the imports.
    """
    gc.set_threshold(GARBAGE)
    try:
        app(prog_name="shoal")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
