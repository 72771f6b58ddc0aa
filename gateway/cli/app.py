"""Talks to typer: the root of the command line, `shoal VERB`, every verb in its place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from gateway.cli.command import add_verb, options
from gateway.cli.doctor import doctor
from gateway.cli.output.errors import EXIT_CODES
from gateway.cli.verbs.cluster import cluster_info, hostfile, keys, nodes, rdma_test
from gateway.cli.verbs.models import bench, chat, instances, models, place
from gateway.cli.verbs.node import config, down, lab, logs, restart, service, status, tap, up

MEANT = {
    "start": "up",
    "quit": "down",
    "shutdown": "down",
    "list": "ls",
    "models": "ls",
    "remove": "rm",
    "delete": "rm",
    "unload": "stop",
    "log": "logs",
    "info": "show",
    "generate": "run",
    "benchmark": "bench",
    "check": "doctor",
}
"""What others call our verbs; too far off for a guess by spelling."""
LATER = {
    "pull": "fetching models is not in this version; put a model's folder into <data>/models "
    "(`shoal config show` names it)",
    "drain": "a node is drained with `shoal nodes drain NODE`",
    "leases": "leases are not in this version",
}


class Verbs(TyperGroup):
    """A group of verbs that answers a verb it lacks with the one that is meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return what typer resolves; fail with a better word for those of MEANT and LATER."""
        word = args[0] if args else ""
        if word not in self.commands:
            if word in MEANT:
                ctx.fail(f"No such command '{word}'. Did you mean '{MEANT[word]}'?")
            if word in LATER:
                ctx.fail(f"'{word}': {LATER[word]}.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
app.callback()(options)
VERBS = (
    *(up.up, down.down, restart.restart, status.status),
    *(nodes.nodes, cluster_info.cluster_info, lab.lab),
    *(chat.run, chat.chat, instances.ps, instances.load, instances.stop, place.place),
    *(models.ls, models.show, models.rm),
    *(tap.tap, logs.logs, doctor.doctor, bench.bench, rdma_test.rdma_test, hostfile.hostfile),
)
for verb in VERBS:
    add_verb(app, verb)


def group(name: str, about: str, *verbs: Callable[..., None]) -> typer.Typer:
    """Add a verb that has verbs of its own, and return it."""
    made = typer.Typer(no_args_is_help=True, help=about)
    for verb in verbs:
        add_verb(made, verb)
    app.add_typer(made, name=name)
    return made


group("service", "Let the node start with the machine.", service.install, service.uninstall)
group("config", "Settings and where they come from.", config.show)
about_keys = (keys.init, keys.show, keys.join, keys.export, keys.rotate)
add_verb(group("keys", "The cluster's key, at this node.", *about_keys), keys.take, "import")


def main() -> None:
    """Run the console script `shoal`."""
    app(prog_name="shoal")


if __name__ == "__main__":
    sys.exit(main())
