"""Talks to the disk and the keyboard: `shoal keys`, this node's cluster key.

A key is shown only if the user asks for it (`show --reveal`, `export`); otherwise its fingerprint
is shown. Each step of a rotation must be done on all nodes before the next step begins.
"""

from __future__ import annotations

import getpass
import stat
import sys
from pathlib import Path
from typing import Annotated, Any

import setproctitle
import typer

from bus.links.cluster_key import ClusterKeys, parse_key, parse_keys, render_keys
from bus.links.keyring import new_key, read_keys, write_keys
from bus.process.endpoints import host_of, is_loopback
from bus.wire.errors import BadKey
from conf.paths import make_folders
from conf.settings import Settings
from gateway.cli.command import Invocation
from gateway.cli.output.errors import NOT_FOUND, CliError

INPUT = "-"
NEXT_STEP = {
    "settled": "",
    "prepared": "copy the new key to every other node (`shoal keys export`, `shoal keys import`), "
    "then run `shoal keys rotate --switch` on each",
    "switched": "when every node has switched, run `shoal keys rotate --finish` on each",
}
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace the key of this node's current cluster.")
]


def init(invocation: Invocation) -> None:
    """Create a cluster key on the first node of a cluster."""
    file = _folders(invocation)
    if file.exists():
        raise CliError(
            f"{file} already exists",
            remedy="see it with `shoal keys show`; change it with `shoal keys rotate`",
        )
    keys = ClusterKeys(new_key())
    write_keys(file, keys, replace=False)
    _report(invocation, file, keys, "created a cluster key")
    invocation.output.note(
        "next: copy it to the other nodes (`shoal keys export FILE`, then `shoal keys import FILE` "
        "there); a running node uses it from its next `shoal up`"
    )


def show(
    invocation: Invocation,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show the key itself.")] = False,
) -> None:
    """Show the fingerprint of this node's cluster key."""
    file = invocation.settings().cluster_key
    keys = _read_key(file)
    _report(invocation, file, keys, "", secret=reveal)
    if keys.phase != "settled":
        invocation.output.note(f"next: {NEXT_STEP[keys.phase]}")


def join(
    invocation: Invocation,
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY|-]", help="The key; without it or with `-`: a hidden prompt."),
    ] = None,
    replace: Replace = False,
) -> None:
    """Store the key of a cluster, as printed by `shoal keys show --reveal` on one of its nodes."""
    if key is not None and key != INPUT:
        setproctitle.setproctitle("shoal keys join")
        invocation.output.note("the key is now in your shell's history; use `-` instead")
        text = key
    elif key is None and sys.stdin.isatty():
        text = getpass.getpass("cluster key (not shown): ")
    else:
        text = sys.stdin.readline()
    _adopt(invocation, ClusterKeys(parse_key(text)), replace=replace)


def export(
    invocation: Invocation,
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="File to write; `-`: standard output.")
    ],
) -> None:
    """Write this node's keys to a file (mode 0600), for `shoal keys import` on another node."""
    keys = _read_key(invocation.settings().cluster_key)
    if file == INPUT:
        invocation.output.write(render_keys(keys))
        return
    write_keys(Path(file), keys, replace=False)
    _report(invocation, Path(file), keys, "wrote the keys")
    invocation.output.note(
        "everyone who can read this file can join the cluster: delete it after use"
    )


def take(
    invocation: Invocation,
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="File to read; `-`: standard input.")
    ],
    replace: Replace = False,
) -> None:
    """Import the keys that another node exported."""
    if file == INPUT:
        text = sys.stdin.read()
    else:
        path = Path(file)
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not a text file"
            raise CliError(f"cannot read {file}: {why}", code=NOT_FOUND) from None
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            invocation.output.note(f"other users can read {file}; delete it soon")
    _adopt(invocation, parse_keys(text), replace=replace)


def rotate(
    invocation: Invocation,
    switch: Annotated[bool, typer.Option("--switch", help="Step 2: use the new key.")] = False,
    finish: Annotated[bool, typer.Option("--finish", help="Step 3: delete the old key.")] = False,
) -> None:
    """Rotate the cluster key without an interruption, in three steps.

    `rotate` creates a new key and keeps the old one in use. `rotate --switch` uses the new key.
    `rotate --finish` deletes the old key. Finish each step on every node before the next one. For
    the first step, create the key on one node and copy it to the other nodes with export and
    import.
    """
    if switch and finish:
        raise typer.BadParameter("use --switch or --finish, not both")
    file = invocation.settings().cluster_key
    keys = _read_key(file)
    try:
        if switch:
            after, message = keys.switch(), "this node uses the new key"
        elif finish:
            after, message = keys.finish(), "deleted the old key on this node"
        else:
            after, message = keys.prepare(new_key()), "created a new key next to the old one"
    except BadKey as error:
        raise CliError(
            str(error), remedy=NEXT_STEP[keys.phase] or "start with `shoal keys rotate`"
        ) from None
    write_keys(file, after, replace=True)
    _report(invocation, file, after, message)
    if after.phase != "settled":
        invocation.output.note(f"next: {NEXT_STEP[after.phase]}")


def check_reach(settings: Settings) -> None:
    """Refuse to start a node that has no cluster key but whose settings connect it to other
    machines. Raises CliError, or BadKey for an invalid key file."""
    cluster = settings.cluster
    hosts = [host for host in (cluster.listen, *map(host_of, cluster.peers)) if host]
    beyond = [host for host in hosts if not is_loopback(host)]
    if beyond and read_keys(settings.key_files.key) is None:
        raise CliError(
            f"{beyond[0]} is not on this machine, so the node needs a cluster key, and it has none",
            remedy=(
                "run `shoal keys init` on the cluster's first node and `shoal keys join` on "
                "the others"
            ),
        )


def _adopt(invocation: Invocation, given: ClusterKeys, *, replace: bool) -> None:
    file = _folders(invocation)
    mine = read_keys(file)
    if mine == given:
        _report(invocation, file, given, "this node already had these keys")
        return
    if mine is not None and not replace:
        if not mine.is_kin(given):
            raise CliError(
                f"this node is in another cluster ({mine.current.fingerprint}, not "
                f"{given.current.fingerprint})",
                remedy="use `--replace` to leave that cluster",
            )
        _check_forward(mine, given)
    write_keys(file, given, replace=mine is not None)
    _report(invocation, file, given, "stored the keys")
    if mine is None:
        invocation.output.note("next: a running node uses the key from its next `shoal up`")


def _check_forward(mine: ClusterKeys, given: ClusterKeys) -> None:
    """Refuse keys that would undo or skip a step of a rotation."""
    steps = [mine]
    if mine.phase == "settled" and given.coming is not None:
        steps.append(mine.prepare(given.coming))
    elif mine.phase == "prepared":
        steps.append(mine.switch())
    elif mine.phase == "switched":
        steps.append(mine.finish())
    if given not in steps:
        raise CliError(
            f"these keys are not one rotation step ahead of this node's ({mine.phase} here, "
            f"{given.phase} there)",
            remedy=NEXT_STEP[mine.phase]
            or "run `shoal keys show` on both nodes to compare their steps",
        )


def _folders(invocation: Invocation) -> Path:
    settings = invocation.settings()
    make_folders(settings.paths)
    return settings.cluster_key


def _read_key(file: Path) -> ClusterKeys:
    keys = read_keys(file)
    if keys is None:
        raise CliError(
            f"this node has no cluster key ({file})",
            remedy=(
                "run `shoal keys init` on the cluster's first node and `shoal keys join` on "
                "the others"
            ),
            code=NOT_FOUND,
        )
    return keys


def _report(
    invocation: Invocation, file: Path, keys: ClusterKeys, done: str, *, secret: bool = False
) -> None:
    output = invocation.output
    named = {name: getattr(keys, name) for name in ("current", "coming", "past")}
    document: dict[str, Any] = {"file": str(file), "phase": keys.phase}
    for name, key in named.items():
        document[name] = key.fingerprint if key is not None else None
        if secret and key is not None:
            document[f"{name}_key"] = key.text
    output.document(document)
    if done:
        output.say(f"{done} ({file})")
    else:
        output.say(f"file         {file}")
    for name, key in named.items():
        if key is not None:
            output.say(f"{name:12} {key.fingerprint}")
            if secret:
                output.say(f"{'':12} {key.text}")
