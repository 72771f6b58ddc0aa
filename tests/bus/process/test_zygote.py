"""When services are forked from supervisord, and that such a child is what `execve` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bus.process.installation.tree import ROOT
from bus.process.zygote import LoadedCode
from bus.process.zygote.forking import ServiceStart, way_of
from bus.process.zygote.loaded import tree_marks
from conf.settings import load_settings
from conf.supervisord import SERVICES, supervisord_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS executes every service")

COMMAND = [sys.executable, "-P", "-m", "bus"]
SEEN = """
import json, os, signal, sys, tempfile
from pathlib import Path

handlers = {
    int(one): getattr(handler, "__name__", str(handler))
    for one in signal.valid_signals()
    for handler in [signal.getsignal(one)]
}
streams = [
    (s.fileno(), s.encoding, s.errors, s.write_through, s.line_buffering, s.newlines)
    for s in (sys.stdin, sys.stdout, sys.stderr)
]
umask = os.umask(0)
status = Path("/proc/self/status").read_text().splitlines()
masks = [line for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
seen = dict(
    name=__name__, file=__file__, package=__package__, main=sys.modules["__main__"].__name__,
    handlers=handlers, masks=masks, streams=streams, umask=umask, argv=sys.argv,
    orig=sys.orig_argv, env=sorted(os.environ.items()), cwd=os.getcwd(), path=sys.path,
    temporary=tempfile.gettempdir(), files=sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    title=" ".join(Path("/proc/self/cmdline").read_text().split("\\0")).strip(),
    group=os.getpgrp() == os.getpid(), stdin=sys.stdin.read(), frozen=sys.flags.safe_path,
)
print(json.dumps(seen))
"""
ENDINGS = {
    "returns": "",
    "exits": "sys.exit()",
    "exits with 7": "sys.exit(7)",
    "exits with words": "sys.exit('words')",
    "raises": "1 / 0",
    "is registered": "import atexit; atexit.register(print, 'at exit'); print('before')",
    "has a thread": "import threading; threading.Timer(0.01, print, ['in a thread']).start()",
    "leaves": "import os; os._exit(9)",
    "is terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
}
DRIVER = """
import json, os, signal, sys, tempfile
from pathlib import Path
from bus.process.zygote import forking, loaded

way, names = sys.argv[1], sys.argv[2:]
forking.ForkingOptions.loaded = held = loaded.load(names if way == "forked" else ())
assert not held.trouble, held.trouble
options = forking.ForkingOptions()
tempfile.gettempdir()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR2):
    signal.signal(number, lambda *_: print("supervisord's own handler"))
told = {}
for name in names:
    files = [tempfile.TemporaryFile() for _ in range(3)]
    files[0].write(b"given")
    files[0].seek(0)
    pid = options.fork()
    if pid == 0:
        options.setpgrp()
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        os.closerange(3, 256)
        os.chdir("/")
        os.umask(0o27)
        env = {**os.environ, "TMPDIR": "/var", "PYTHONUNBUFFERED": "1", "GIVEN": "yes"}
        options.execve(sys.executable, [sys.executable, "-P", "-m", name], env)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = []
    for file in files[1:]:
        file.seek(0)
        said.append(file.read().decode())
    told[name] = [code, *said]
print(json.dumps(told))
"""
PURE = """
import asyncio, gc, json, os, sys, threading
before = sorted(os.listdir("/proc/self/fd"))
from bus.process.zygote.__main__ import SERVICES
from bus.process.zygote.loaded import load
held = load(SERVICES)
app = "gateway.http.app" in sys.modules
from gateway.http.server import _imported_app
_imported_app()
import uvloop
gc.unfreeze()
import sqlite3, socket, zmq
from bus.wire.codec import KINDS
kinds = (zmq.Context, zmq.Socket, sqlite3.Connection, socket.socket, asyncio.AbstractEventLoop)
print(json.dumps(dict(
    trouble=held.trouble, packages=sorted(held.packages), changed=held.changed(),
    threads=len(os.listdir("/proc/self/task")), files=before == sorted(os.listdir("/proc/self/fd")),
    held=[repr(one) for one in gc.get_objects() if isinstance(one, kinds)],
    unbuilt=[kind for kind, cls in KINDS.items() if not cls.__pydantic_complete__],
    context=repr(zmq.Context._instance),
    mains=[name for name in sys.modules if name.endswith(".__main__")],
    app=app,
    heavy=[n for n in ("mlx", "mlx_lm", "transformers", "numpy") if n in sys.modules],
)))
"""


def python(code: str, *words: str, path: Path = ROOT) -> Any:
    """What a Python process prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What became of each demo package that was forked, and of each that was executed."""
    folder = tmp_path_factory.mktemp("packages")
    demos = {
        "seen": SEEN,
        **{f"end{n}": f"import sys\n{c}\n" for n, c in enumerate(ENDINGS.values())},
    }
    for name, code in demos.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        guarded = "\n".join(f"    {line}" for line in code.splitlines())
        (folder / name / "__main__.py").write_text(
            f"if __name__ == '__main__':\n{guarded}\n    pass\n"
        )
    return tuple(python(DRIVER, way, *demos, path=folder) for way in ("forked", "executed"))  # type: ignore[return-value]


def test_a_forked_service_sees_what_an_executed_one_sees(both: tuple[Any, Any]) -> None:
    (code, said, trouble), (as_ever, *_) = both[0]["seen"], both[1]["seen"]
    assert (code, as_ever, trouble) == (0, 0, "")
    forked, executed = json.loads(said), json.loads(both[1]["seen"][1])
    assert forked["stdin"] == "given" and dict(forked["env"])["GIVEN"] == "yes"
    assert forked == executed


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_forked_service_ends_as_an_executed_one_ends(both: tuple[Any, Any], ending: str) -> None:
    name = f"end{list(ENDINGS).index(ending)}"
    (code, said, trouble), executed = both[0][name], both[1][name]
    assert [code, said] == executed[:2]
    assert trouble.splitlines()[-1:] == executed[2].splitlines()[-1:]


def test_what_is_loaded_before_a_fork_has_no_threads_sockets_loops_or_files() -> None:
    found = python(PURE)
    assert found.pop("packages") == sorted(SERVICES)
    assert found == {
        "trouble": "",
        "changed": "",
        "threads": 1,
        "files": True,
        "held": [],
        "unbuilt": [],
        "context": "None",
        "mains": ["bus.process.zygote.__main__"],
        "app": False,
        "heavy": [],
    }


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedCode:
    """The bus, loaded from a tree of two files and a library of one."""
    (tmp_path / "tree" / "bus" / "wire").mkdir(parents=True)
    for name in ("bus/__init__.py", "bus/wire/codec.py"):
        (tmp_path / "tree" / name).write_text("ONE = 1\n")
    library = tmp_path / "library.py"
    library.write_text("ONE = 1\n")
    found = library.stat()
    marks = {str(library): (found.st_mtime_ns, found.st_size, found.st_ino)}
    root = tmp_path / "tree"
    return LoadedCode(frozenset({"bus"}), root, tree_marks(root), marks)


def test_the_command_of_a_loaded_package_is_forked(loaded: LoadedCode) -> None:
    assert way_of(COMMAND, dict(os.environ), loaded, threads=1) == ServiceStart("bus")
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "SHOAL_LOG_LEVEL": "debug"}
    assert way_of(COMMAND, env, loaded, threads=1) == ServiceStart("bus")


@pytest.mark.parametrize(
    "argv",
    [
        [*COMMAND[:3], "runner"],
        [*COMMAND, "more"],
        ["/another/python", *COMMAND[1:]],
        [sys.executable, "-m", "bus"],
        ["cat"],
    ],
)
def test_any_other_command_is_executed_without_a_word(loaded: LoadedCode, argv: list[str]) -> None:
    assert way_of(argv, dict(os.environ), loaded, threads=1) == ServiceStart()


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "MALLOC_ARENA_MAX"])
def test_another_interpreter_is_executed(loaded: LoadedCode, name: str) -> None:
    way = way_of(COMMAND, {**os.environ, name: "other"}, loaded, threads=1)
    assert way == ServiceStart(why=f"{name} differs from supervisord's")


def test_a_process_with_threads_does_not_fork_services(loaded: LoadedCode) -> None:
    assert way_of(COMMAND, dict(os.environ), loaded, threads=2).why == "supervisord has 2 threads"


@pytest.mark.parametrize("what", ["changed", "new", "gone", "library"])
def test_code_that_has_changed_is_executed(loaded: LoadedCode, what: str) -> None:
    path = loaded.root / "bus/wire/codec.py"
    if what == "library":
        path = Path(next(iter(loaded.others)))
    elif what == "new":
        path = loaded.root / "bus/wire/more.py"
    if what == "gone":
        path.unlink()
    else:
        path.write_text("TWO = 22\n")
    assert way_of(COMMAND, dict(os.environ), loaded, threads=1) == ServiceStart(
        why=f"{path} has changed since supervisord started"
    )


def test_what_cannot_be_imported_is_executed(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__main__.py").write_text("import not_there_at_all\n")
    code = """
import json, sys
from bus.process.zygote.loaded import load
held = load(["broken"])
print(json.dumps([held.trouble, sorted(held.packages), "broken.__main__" in sys.modules]))
"""
    trouble, packages, known = python(code, path=tmp_path)
    assert trouble == "ModuleNotFoundError: No module named 'not_there_at_all'"
    assert (packages, known) == ([], False)


def test_only_linux_forks_services(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    command = {
        platform: supervisord_command(settings, "-n", platform=platform)[3]
        for platform in ("linux", "darwin")
    }
    assert command == {"linux": "bus.process.zygote", "darwin": "supervisor.supervisord"}
