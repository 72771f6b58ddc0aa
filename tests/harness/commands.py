"""The command line for tests: as a command of its own, or as a fork of a process that has it.

A command costs a second of a processor, nearly all of it for imports; a fork a tenth. `forked`
falls back to a command wherever the fork could differ: for another tree, on another machine, or
when a variable differs that the interpreter or an import reads.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.harness import forks
from tests.harness.counts import count_call
from tests.harness.forks import ForkServer

ROOT = Path(__file__).resolve().parents[2]
TREE = Path(os.environ.get("INSPECTED_TREE", ROOT))
"""The checkout whose code the nodes run; another one when an older tree is inspected."""
CODE = "import sys; from gateway.cli.app import main; sys.exit(main())"
MODULES = ("gateway.cli.app", "gateway.cli.*")
RUN = "gateway.cli.app:main"
PIPE_BYTES = 60_000
"""So much fits into a pipe that nobody reads yet."""
Done = subprocess.CompletedProcess[str]


def command(
    *words: str,
    env: Mapping[str, str],
    timeout: float,
    cwd: str | Path | None = None,
    say: str | None = None,
    inside: tuple[str, ...] = (),
    tree: Path = TREE,
) -> Done:
    """Run the command line of `tree` as a process of its own, on the machine that the words
    `inside` lead to. `say` is its standard input. Raises subprocess.TimeoutExpired."""
    count_call(words)
    given = {"stdin": subprocess.DEVNULL} if say is None else {"input": say}
    return subprocess.run(
        [*inside, sys.executable, "-P", "-c", CODE, *words],
        cwd=cwd or tempfile.gettempdir(),
        env=_with_tree(env, tree),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **given,
    )


def forked(
    *words: str,
    env: Mapping[str, str],
    timeout: float,
    cwd: str | Path | None = None,
    say: str | None = None,
    inside: tuple[str, ...] = (),
    tree: Path = TREE,
) -> Done:
    """Run the command line as `command` does, forked where that makes no difference."""
    like = _with_tree(env, tree)
    plain = not inside and tree == TREE and len(say or "") < PIPE_BYTES
    if plain and server().starts_like(like):
        return _run(words, like, str(cwd or tempfile.gettempdir()), say, timeout)
    return command(*words, env=env, timeout=timeout, cwd=cwd, say=say, inside=inside, tree=tree)


def _with_tree(env: Mapping[str, str], tree: Path) -> dict[str, str]:
    """Return the environment with `tree` among the folders of modules; a test may name others."""
    named = str(tree) in env.get("PYTHONPATH", "").split(os.pathsep)
    return dict(env) if named else {**env, "PYTHONPATH": str(tree)}


def server() -> ForkServer:
    """Return the server of the command line in this process."""
    return forks.server(MODULES, TREE)


def _run(
    words: tuple[str, ...], env: Mapping[str, str], cwd: str, say: str | None, timeout: float
) -> Done:
    """Run the command line in a fork. Raises subprocess.TimeoutExpired; the fork is killed."""
    count_call(words)
    ends_at = time.monotonic() + timeout
    given = _input(say)
    out, its_out = os.pipe()
    err, its_err = os.pipe()
    run = server().start(RUN, words, env=env, cwd=cwd, streams=(given, its_out, its_err))
    for descriptor in (given, its_out, its_err):
        os.close(descriptor)
    with open(out, "rb", 0) as output, open(err, "rb", 0) as errors:
        said, whole = _read([output.fileno(), errors.fileno()], ends_at)
    if not forks.end_by(run, ends_at if whole else 0.0):
        raise subprocess.TimeoutExpired(words, timeout, said[0], said[1])
    return subprocess.CompletedProcess(words, run.wait(), _text(said[0]), _text(said[1]))


def _input(say: str | None) -> int:
    """Return a descriptor to read `say` from; of nothing, `/dev/null`."""
    if say is None:
        return os.open(os.devnull, os.O_RDONLY)
    ready, writer = os.pipe()
    os.write(writer, say.encode())
    os.close(writer)
    return ready


def _read(descriptors: list[int], ends_at: float) -> tuple[list[bytes], bool]:
    """Return what each descriptor gives until its end, and whether all ended in time."""
    said = dict.fromkeys(descriptors, b"")
    with selectors.DefaultSelector() as ready:
        for descriptor in descriptors:
            ready.register(descriptor, selectors.EVENT_READ)
        while ready.get_map():
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                return list(said.values()), False
            for key, _ in ready.select(left_s):
                data = os.read(key.fd, 65_536)
                said[key.fd] += data
                if not data:
                    ready.unregister(key.fd)
    return list(said.values()), True


def _text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")
