"""Run a gateway or a runner under a profiler hook, which counts calls while a byte says so.

    python -P -m tests.house.walked MARK FOLDER runner

MARK is a file of one byte, mapped into memory: 1 counts, 0 does not. When the byte rises to 1 each
process writes `FOLDER/PID-on-NUMBER.json`; when it falls to 0, `FOLDER/PID-off-NUMBER.json`: path,
line, name and calls of each function of this repository.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

ROOT = str(Path(__file__).resolve().parents[2]) + os.sep
POLL_S = 0.005


class Hook:
    """Counts the calls of Python functions in every thread of a process, and of its forks.

    A thread of its own sets the hook in all others while the byte is 1, so that starting and
    loading cost what they always do.
    """

    def __init__(self, mark: Path, folder: Path) -> None:
        with mark.open("rb") as file:
            self._mark = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        self._folder = folder
        self._calls: dict[CodeType, int] = {}

    def install(self) -> None:
        """Start the thread that follows the byte, here and in each fork."""
        os.register_at_fork(after_in_child=self._start)
        self._start()

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            code = frame.f_code
            self._calls[code] = self._calls.get(code, 0) + 1

    def _start(self) -> None:
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        was, number = 0, 0
        while True:
            mark = self._mark[0]
            if mark and not was:
                set_in_all_threads(self._called)
                self._say(f"on-{number}", [])
            if was and not mark:
                set_in_all_threads(None)
                calls, self._calls = self._calls, {}
                rows = [
                    (code.co_filename.removeprefix(ROOT), code.co_firstlineno, code.co_name, n)
                    for code, n in calls.items()
                    if code.co_filename.startswith(ROOT)
                ]
                self._say(f"off-{number}", rows)
                number += 1
            was = mark
            time.sleep(POLL_S)

    def _say(self, word: str, rows: list[tuple[str, int, str, int]]) -> None:
        file = self._folder / f"{os.getpid()}-{word}.json"
        file.with_suffix(".part").write_text(json.dumps(rows))
        file.with_suffix(".part").rename(file)


Profile = Callable[[FrameType, str, object], None]
_TRACE = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_int, ctypes.c_void_p
)
_set_here: list[object] = []
"""C functions in use, which must outlive their use."""


def set_in_all_threads(hook: Profile | None) -> None:
    """Set a profile function, or none, in each thread that runs and in later ones."""
    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(hook)
        return
    threading.setprofile(hook)
    api = ctypes.pythonapi
    for name in ("PyInterpreterState_Main", "PyInterpreterState_ThreadHead", "PyThreadState_Next"):
        getattr(api, name).restype = ctypes.c_void_p
    trace: object = None
    if hook is not None:

        def called(_self: object, frame: FrameType, what: int, _argument: int | None) -> int:
            if what == 0:
                hook(frame, "call", None)
            return 0

        trace = _TRACE(called)
        _set_here.append(trace)
    interpreter = ctypes.c_void_p(api.PyInterpreterState_Main())
    thread = api.PyInterpreterState_ThreadHead(interpreter)
    while thread:
        argument = ctypes.py_object(_set_here) if trace is not None else None
        api._PyEval_SetProfile(ctypes.c_void_p(thread), trace, argument)
        thread = api.PyThreadState_Next(ctypes.c_void_p(thread))


def gateway() -> None:
    """Run `tests.harness.gateway_process` under the hook; for a fork server."""
    _start("tests.harness.gateway_process", *sys.argv[2:4])


def _start(program: str, mark: str, folder: str) -> None:
    Hook(Path(mark), Path(folder)).install()
    sys.exit(importlib.import_module(program).main())


if __name__ == "__main__":
    _start(f"{sys.argv[3]}.__main__", *sys.argv[1:3])
