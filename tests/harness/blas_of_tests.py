"""The library that multiplies matrices in the processes of pytest: what runners are started with,
on one thread, for each core has a process. Without it a test of an engine takes twice as long.

`parts` starts pytest with these variables, and each process that runs tests takes them out of its
environment, so that what a test starts finds what a user's processes find.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from conf.blas.choice import Library
from conf.blas.libraries import find_libraries, make_forwarders
from conf.blas.measure import prepared_blas
from conf.settings import load_settings

NAMES = "TESTS_BLAS"
"""The variable that holds the names of the others."""
TRIES = 3


@functools.cache
def libraries_here() -> list[Library]:
    """Return the libraries that may be preloaded here, in a folder of this process."""
    folder = tempfile.mkdtemp(prefix="shoal-preloads-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    libraries = find_libraries("auto", Path(folder))
    make_forwarders(libraries)
    return libraries


@functools.cache
def of_tests() -> Mapping[str, str]:
    """Return the variables to start pytest with: none where there is no library to preload.

    Measures up to `TRIES` times: after a disturbed measurement every idle node of the tests would
    measure again, beside tests that disturb it."""
    with tempfile.TemporaryDirectory(prefix="shoal-blas-") as home:
        settings = load_settings(home=Path(home), flags={"runner.blas_threads": 1})
        for _ in range(TRIES):
            outcome = prepared_blas(settings, believed_s=0.0)
            if not outcome.repeats:
                break
    found = outcome.variables
    return {**found, NAMES: " ".join(found)} if found else {}


def taken_out(config: pytest.Config) -> None:
    """Take them out of the environment of a process that runs tests; the one that only deals them
    out keeps them for those it starts."""
    deals = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    for name in () if deals else os.environ.pop(NAMES, "").split():
        os.environ.pop(name, None)
