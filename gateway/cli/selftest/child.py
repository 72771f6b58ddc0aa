"""Talks to a child process: runs one measurement of the runner package, which alone imports MLX."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from gateway.cli.output.errors import CliError

REMEDY = "run `shoal doctor`; report this message if doctor finds no problem"


def measured_by(
    name: str, question: Mapping[str, str], variables: Mapping[str, str], timeout_s: float
) -> dict[str, Any]:
    """Return the document of a measurement. Raises CliError if the child fails or takes too long.
    The child and its own children end in any case."""
    quiet = {key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "runner", "selftest", name],
        env={**quiet, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        text, errors = child.communicate(json.dumps(question), timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise CliError(
            f"the measurement {name} did not finish within {timeout_s:.0f} s",
            remedy="close other programs and try again; report the message if it appears again",
        ) from error
    finally:
        # its group may outlive it: a compiler of kernels runs beside the measurement
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode != 0:
        last = (errors.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise CliError(f"the measurement {name} failed: {last}", remedy=REMEDY)
    return json.loads(text.splitlines()[-1])
