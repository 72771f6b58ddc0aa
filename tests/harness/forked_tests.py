"""Runs of tests in copies of a tree, forked from a process that has imported all but the product.

A run costs the import of the product and the tests alone. Bounds are CPU seconds, which a busy
machine does not use up, and a generous wall time for what hangs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

IMPORTED = (
    "asyncio", "concurrent.futures", "email.message", "falcon", "falcon.testing", "httpx",
    "hypothesis", "hypothesis.strategies", "jinja2", "jinja2.sandbox", "jsonschema", "llguidance",
    "msgspec", "numpy", "openai", "opentelemetry", "psutil", "pydantic", "sqlite3", "structlog",
    "tokenizers", "transformers", "unittest.mock", "xml.etree.ElementTree", "zeroconf", "zmq",
    "cryptography", "gunicorn.app.base", "yaml",
)  # fmt: skip
"""Not MLX, whose threads do not survive a fork."""
OURS = ("bus", "conf", "gateway", "master", "runner", "telemetry", "tests", "worker")
LOOK_S = 0.1


def import_others() -> None:
    """Import what tests and product need besides themselves, as far as it is installed."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class _First:
    """Notes the first test, or file, that fails."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported."""
        if report.failed and not self.failed:
            self.failed = report.nodeid


def _run(tree: Path, tests: Sequence[str], answer: int, cpu_s: int) -> None:
    """Run tests in this process, a child, and never return."""
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        for name in [one for one in sys.modules if one.partition(".")[0] in OURS]:
            del sys.modules[name]
        os.chdir(tree)
        sys.path[:] = [str(tree), *(one for one in sys.path if one not in ("", str(Path.cwd())))]
        sys.dont_write_bytecode = True
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        for name in [one for one in os.environ if one.startswith(("SHOAL_", "PYTEST_"))]:
            del os.environ[name]
        first = _First()
        quietly = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
        order = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", quietly]
        ended = pytest.main([*order, f"--rootdir={tree}", *tests], plugins=[first])
        passed = ended == pytest.ExitCode.OK
        os.write(answer, (first.failed or ("" if passed else f"pytest: {ended!r}")).encode())
        code = 0
    except BaseException:
        os.write(answer, traceback.format_exc().encode()[-4000:])
    finally:
        os._exit(code)


@dataclass
class Run:
    """A child that runs tests. `failed` is "" where all passed, once it has ended."""

    tree: Path
    tests: Sequence[str]
    cpu_s: int
    wall_s: float
    failed: str = ""
    cpu_used_s: float = 0.0
    _pid: int = field(default=0, repr=False)
    _answer: int = field(default=-1, repr=False)
    _ends_at: float = field(default=0.0, repr=False)

    def begin(self) -> Run:
        """Fork."""
        self._answer, to_parent = os.pipe()
        self._ends_at = time.monotonic() + self.wall_s
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _run(self.tree, self.tests, to_parent, self.cpu_s)
        os.close(to_parent)
        return self

    def has_ended(self) -> bool:
        """Return whether the child has ended; it is ended where its time is over."""
        pid, status, used = os.wait4(self._pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() >= self._ends_at:
                self._end()
                self.failed = f"no end within {self.wall_s:.0f} s"
                return True
            return False
        self.cpu_used_s = used.ru_utime + used.ru_stime
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        said = os.read(self._answer, 65536).decode()
        os.close(self._answer)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            said = f"no end within {self.cpu_s} CPU s"
        elif code != 0:
            raise RuntimeError(f"the process of the tests ended with {code}: {said}")
        self.failed = said
        return True

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._answer)


def wait_for_one(runs: Sequence[Run]) -> Run:
    """Return a run that has ended."""
    while True:
        for run in runs:
            if run.has_ended():
                return run
        time.sleep(LOOK_S)
