"""Talks to MLX's cache of compiled kernels, and to a child process that fills it.

Without a GPU, MLX compiles the kernels of a traced forward pass with the system's C++ compiler.
That takes some ten CPU seconds, once per model and machine; the kernels are cached in the temporary
folder. Requests must not wait for that. So a child process with low priority compiles them while
the engine runs without traces; then the engine begins to use traces. The child ends with its
parent.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from enum import IntEnum
from importlib.metadata import version
from pathlib import Path
from typing import cast

from bus.wire.kv import KvKind
from runner.mlx.model import cpu_math
from runner.mlx.model.device import on_gpu

MOST_WEIGHTS_BYTES = 1 << 30
"""For models with more bytes of weights, no child process is started, because the child would also
load the weights. Such a model is traced only if its kernels already exist."""
NICENESS = 10
PARENT_CHECK_S = 0.5


class Outlook(IntEnum):
    """Whether a model's kernels exist (`WARM`), are being compiled (`SOON`), or neither (`NEVER`).
    The minimum of all ranks decides for a group."""

    NEVER = 0
    SOON = 1
    WARM = 2


class KernelCache:
    """Checks whether the kernels of one model exist, and runs the child process that compiles
    them."""

    def __init__(self, path: Path, weights_bytes: int, kind: KvKind = "full") -> None:
        """`kind` is the KV format, for example full precision, with which the model is traced."""
        self._path = path
        self._kind: KvKind = kind
        self._small = weights_bytes <= MOST_WEIGHTS_BYTES
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def warm(self) -> bool:
        """Return whether all kernels of this model exist. On a GPU this is always true."""
        return on_gpu() or _mark(self._path, self._kind).exists()

    def fill(self) -> None:
        """Start the child process that compiles the kernels, unless the model is too large."""
        if not self._small:
            return
        module = "runner.mlx.model.kernels"
        command = [sys.executable, "-P", "-m", module, str(self._path), self._kind]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            self._child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._child = None
            return
        # A thread reaps the child when it ends, because an idle runner would not check for that.
        threading.Thread(target=self._child.wait, name="kernels", daemon=True).start()

    def outlook(self) -> Outlook:
        """Return whether the kernels exist now, are being compiled by the child process, or will
        not exist."""
        if self._child is not None and self._child.poll() is None:
            return Outlook.SOON
        return Outlook.WARM if self.warm else Outlook.NEVER

    def close(self) -> None:
        """End the child process, if it still runs."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def _mark(path: Path, kind: KvKind) -> Path:
    """Return the path of a marker file, which exists if the kernels were compiled for this model's
    configuration, this KV format, and the present versions of MLX and of `cpu_math`."""
    config = (path / "config.json").read_bytes()
    mlx = version("mlx")
    facts = config + mlx.encode() + _own_functions() + (b"" if kind == "full" else kind.encode())
    name = hashlib.sha256(facts).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / "mlx" / mlx / "cpu" / f"traced-{name}"


@functools.cache
def _own_functions() -> bytes:
    """Return the source code of shoal's own functions that a trace contains."""
    return Path(cpu_math.__file__).read_bytes()


def main() -> None:
    """Make the engine's traces in this child process, so that MLX compiles and caches missing
    kernels."""
    from runner.mlx.model.capabilities import measure, trace_agrees, try_out
    from runner.mlx.model.last_token_head import LastTokenHead
    from runner.mlx.model.load import load_weights

    os.nice(NICENESS)
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    path, kind = Path(sys.argv[1]), cast(KvKind, sys.argv[2])
    model = load_weights(path, "float32", lambda _: None).model
    shape = measure(model, kind)
    packed = shape.narrowed > 0 and try_out(model, shape, LastTokenHead(model)).packs
    if trace_agrees(model, shape, packed=packed):
        _mark(path, kind).touch()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
