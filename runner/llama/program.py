"""Talks to xllamacpp, a library that contains llama-server: serves as that program.

    python -P -m runner.llama.program --model FILE --host SOCKET --ctx-size N ...

It takes the options that `runner.llama.launch` gives. The library's kernels need AVX2 on x86-64.
"""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from typing import Any

LIBRARY = "xllamacpp"
"""The package of the extra `llamacpp`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal ends the process; return 1 if the model cannot be loaded."""
    library: Any = import_module(LIBRARY)
    parser = ArgumentParser(prog="runner.llama.program")
    for name in ("model", "host"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("parallel", "ctx-size", "batch-size", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--ubatch-size", type=int)
    parser.add_argument("--embedding", action="store_true")
    parser.add_argument("--pooling", choices=["rank"])
    parser.add_argument("--slot-save-path", default="")
    options, _ = parser.parse_known_args(arguments)
    params = library.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.n_parallel, params.n_ctx = options.parallel, options.ctx_size
    params.n_batch = options.batch_size
    params.n_ubatch = options.ubatch_size or options.batch_size
    params.embedding = options.embedding
    params.slot_save_path = options.slot_save_path
    if options.pooling:
        params.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads, cpu.poll = options.threads, 0
    params.n_gpu_layers = params.cache_ram_mib = 0
    params.kv_unified = params.offline = True
    params.ctx_shift = params.fit_params = params.ui = params.endpoint_slots = False
    try:
        server = library.Server(params)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return 1
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while server is not None:
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
