"""Talks to typer: the root of the command line, `shoal VERB`, every verb in its place.

A verb's module is loaded when the verb is asked for, and no other's: what a list of verbs says of
each stands here, in the table.
"""

from __future__ import annotations

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

    from gateway.cli.command import command_of, options


@dataclass(frozen=True, slots=True)
class Verb:
    """A row of the table: a line about the verb, the module of its function under `gateway.cli`,
    and the function's name where it is not the verb's. One that is `here` is about this machine's
    own files and processes, so that it has no use for the address of a node."""

    about: str
    module: str
    function: str = ""
    here: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A row of the table that has verbs of its own."""

    about: str
    verbs: Mapping[str, Verb]


# fmt: off
VERBS: Mapping[str, Verb | Group] = {
    "up": Verb("Start a node and wait until it answers.", "verbs.node.up", here=True),
    "down": Verb("Stop the node: all processes of its home.", "verbs.node.down", here=True),
    "restart": Verb("Stop the node; start it as it was started.", "verbs.node.restart", here=True),
    "status": Verb("Show the node's processes, models and address.", "verbs.node.status"),
    "nodes": Verb("Show the nodes of the cluster, or change one.", "verbs.cluster.nodes"),
    "cluster-info": Verb("Show what every node is, and whether all are alike.",
                         "verbs.cluster.cluster_info"),
    "lab": Verb("Start N nodes on this machine as one cluster.", "verbs.node.lab", here=True),
    "run": Verb("Ask a model something; without a prompt, chat.", "verbs.models.chat"),
    "chat": Verb("Talk with a model.", "verbs.models.chat"),
    "ps": Verb("Show the models in memory and what they do.", "verbs.models.instances"),
    "load": Verb("Load a model and wait until it is ready.", "verbs.models.instances"),
    "pool": Verb("Show what waits for memory, and for what.", "verbs.cluster.pool"),
    "pin": Verb("Keep a model in memory, loaded where it is not.", "verbs.cluster.pool"),
    "unpin": Verb("Let a pinned model leave memory again.", "verbs.cluster.pool"),
    "clients": Verb("Show who asks for models, and what counts for each.", "verbs.cluster.clients"),
    "tasks": Verb("Show the names that several models answer for.", "verbs.cluster.tasks"),
    "stop": Verb("Unload a model: open requests may finish.", "verbs.models.instances"),
    "place": Verb("Place a model on one node or over several.", "verbs.models.place"),
    "search": Verb("Find models of the Hugging Face hub by words.", "verbs.store.search"),
    "pull": Verb("Get a model from the Hugging Face hub.", "verbs.store.pull"),
    "sync": Verb("Copy models to another node, or to all.", "verbs.store.sync"),
    "quantize": Verb("Make a model in fewer bits of another.", "verbs.store.pull"),
    "cp": Verb("Give a model another name, on all nodes.", "verbs.store.naming"),
    "create": Verb("Make a model of another by a Modelfile.", "verbs.store.create"),
    "ls": Verb("List the models on disk.", "verbs.models.models"),
    "show": Verb("Show what is known of a model.", "verbs.models.models"),
    "rm": Verb("Delete models from this node's disk, or all.", "verbs.store.removal"),
    "requests": Verb("Show the requests that ended last, and what they took.",
                     "verbs.models.requests"),
    "monitor": Verb("Go on showing what the cluster does.", "verbs.monitor"),
    "tap": Verb("Listen to the bus: events, readings, tokens.", "verbs.node.tap", here=True),
    "logs": Verb("Read what the processes have logged.", "verbs.node.logs", here=True),
    "timeline": Verb("Show what runners did last, and which is behind.",
                     "verbs.monitor.timeline"),
    "capture": Verb("Put what is known of each node into one file.", "verbs.node.capture"),
    "doctor": Verb("Look for what keeps a node from running well.", "doctor.doctor", here=True),
    "bench": Verb("Measure tokens per second and latencies.", "verbs.models.bench"),
    "verify": Verb("Verify models on the disk; without any, the cluster.",
                   "verbs.cluster.verify"),
    "rdma-test": Verb("Test what joins the nodes: right, and how fast.",
                      "verbs.cluster.rdma_test"),
    "hostfile": Verb("Check a hostfile of mlx.launch.", "verbs.cluster.hostfile", here=True),
    "version": Verb("Tell the version of this program.", "verbs.node.version", here=True),
    "card": Group("What a model's card.toml says, on all nodes.", {
        "show": Verb("Show a model's settings, and where each comes from.", "verbs.store.cards"),
        "edit": Verb("Change the card in your editor.", "verbs.store.cards"),
        "add": Verb("Have the card say more, or write it from a file.", "verbs.store.cards"),
        "rm": Verb("Take the card away from all nodes.", "verbs.store.cards", "remove"),
        "export": Verb("Print the card, in TOML.", "verbs.store.cards"),
    }),
    "store": Group("What lies on the nodes' disks, and what may go.", {
        "show": Verb("Show what was fetched, and what would be let go next.",
                     "verbs.store.storage"),
        "purge": Verb("Delete what was fetched and can be had again.", "verbs.store.storage"),
    }),
    "service": Group("Let the node start with the machine.", {
        "install": Verb("Have the system start the node.", "verbs.node.service", here=True),
        "uninstall": Verb("Stop that, and remove what install wrote.", "verbs.node.service",
                          here=True),
    }),
    "jobs": Group("Requests that run without their clients.", {
        "ls": Verb("List the jobs that this node has taken.", "verbs.models.jobs"),
        "show": Verb("Show a job, and its result.", "verbs.models.jobs"),
        "cancel": Verb("Stop a job.", "verbs.models.jobs"),
    }),
    "trace": Group("What was done for requests when.", {
        "on": Verb("Trace each request, or a share of them.", "verbs.models.traces"),
        "off": Verb("Trace none but those that ask for it.", "verbs.models.traces"),
        "ls": Verb("List the traces that the node keeps.", "verbs.models.traces"),
        "show": Verb("Show a trace as bars.", "verbs.models.traces"),
        "save": Verb("Put a trace into a file for Perfetto.", "verbs.models.traces"),
    }),
    "lease": Group("Memory that is kept for other programs.", {
        "run": Verb("Run a program with memory kept for it.", "verbs.cluster.leases"),
        "ls": Verb("List the leases, and what waits for one.", "verbs.cluster.leases"),
        "ask-back": Verb("Ask who has a lease to give it back.", "verbs.cluster.leases"),
        "rm": Verb("End a lease.", "verbs.cluster.leases"),
    }),
    "config": Group("Settings and where they come from.", {
        "show": Verb("Show every setting with its value and source.", "verbs.node.config",
                     here=True),
        "set": Verb("Set settings in shoal.toml.", "verbs.node.config", "set_", here=True),
        "unset": Verb("Have settings at their defaults again.", "verbs.node.config", here=True),
        "edit": Verb("Change shoal.toml in your editor.", "verbs.node.config", here=True),
        "path": Verb("Print where shoal.toml is.", "verbs.node.config", here=True),
    }),
    "apikey": Group("The API keys of the cluster.", {
        "add": Verb("Make an API key; it is shown this once.", "verbs.cluster.apikeys"),
        "ls": Verb("List the API keys, and what they were used for.", "verbs.cluster.apikeys"),
        "rm": Verb("Take an API key no longer.", "verbs.cluster.apikeys"),
        "rotate": Verb("Give an API key another secret.", "verbs.cluster.apikeys"),
    }),
    "keys": Group("The cluster's key, at this node.", {
        "init": Verb("Make a cluster key at a first node.", "verbs.cluster.keys", here=True),
        "show": Verb("Tell which key this node has.", "verbs.cluster.keys", here=True),
        "join": Verb("Take a cluster's key.", "verbs.cluster.keys", here=True),
        "export": Verb("Write this node's keys to a file.", "verbs.cluster.keys", here=True),
        "rotate": Verb("Change the key in three steps.", "verbs.cluster.keys", here=True),
        "import": Verb("Take what another node exported.", "verbs.cluster.keys", "take",
                       here=True),
    }),
}
# fmt: on
"""Every verb, in the order of the list."""
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
"""What others call our verbs, of a group after its name; too far off for a guess by spelling."""
LATER = {
    "drain": "a node is drained with `shoal nodes drain NODE`",
}
EPILOG = (
    "Options of every verb may stand before or after it; `shoal help VERB` explains one.\n\n"
    "Exit codes: 0 well, 1 failed or problems found, 2 wrong command line, 3 no node answers, "
    "4 no such thing, 5 refused for now, 130 interrupted."
)


class Commands(Mapping[str, Any]):
    """The commands of a table, each made, with its module, when it is first asked for."""

    def __init__(self, rows: Mapping[str, Verb | Group]) -> None:
        self.rows = rows
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return typer's command or group of that name. Raises KeyError."""
        if name not in self._made:
            self._made[name] = _made(name, self.rows[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of the table."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a verb; loads nothing."""
        return name in self.rows


class Verbs(TyperGroup):
    """A group of verbs, of which none is loaded to list them; a word that is none is answered with
    the verb that is meant."""

    def __init__(self, *, commands: Any = None, **more: Any) -> None:
        super().__init__(**more)
        self.table = commands if isinstance(commands, Commands) else Commands(VERBS)
        self.commands = self.table  # pyright: ignore[reportAttributeAccessIssue] - nothing is added

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, in their order."""
        return list(self.table)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.about) for name, row in self.table.rows.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return what is left for the verb; `help` and `--version` are words for others."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args[:1] == ["--version"]:
            args = ["version", *args[1:]]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return what typer resolves; fail with a better word for those of MEANT and LATER."""
        word = args[0] if args else ""
        if word not in self.table:
            meant = MEANT.get(f"{ctx.info_name} {word}", MEANT.get(word))
            if meant and (meant in self.table or self.table.rows is VERBS):
                ctx.fail(f"No such command '{word}'. Did you mean '{meant}'?")
            if word in LATER:
                ctx.fail(f"'{word}': {LATER[word]}.")
        return super().resolve_command(ctx, args)


def _made(name: str, row: Verb | Group) -> Any:
    if isinstance(row, Group):
        about = row.about
        return Verbs(name=name, commands=Commands(row.verbs), help=about, no_args_is_help=True,
                     rich_markup_mode=None)  # fmt: skip
    with silent_interrupts():
        module = import_module(f"gateway.cli.{row.module}")
    act = getattr(module, row.function or name.replace("-", "_"))
    return command_of(act, name, is_here=row.here)


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
app.callback()(options)


def main() -> None:
    """Run the console script `shoal`."""
    try:
        app(prog_name="shoal")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
