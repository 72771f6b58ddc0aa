"""How llama-server is started for a model: its limits and its arguments.

Pure. All rows share one KV cache of `cells` tokens, which is allocated at the start. A row reserves
the tokens of its prompt and of its longest answer, so the cache never overflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bus.models.gguf import FIXED_BYTES, OVERHEAD, GgufFacts
from bus.wire.accelerators import IN_ORDER, VISIBLE, DeviceShare, Vendor, bytes_on
from bus.wire.messages.control import RunnerSpec

LEAST_BUILD, LEAST_NUMBERED = 7_500, 1_000
"""The oldest build of llama-server whose options and answers shoal understands. A build number
below `LEAST_NUMBERED` comes from a build without git history. It says nothing about the age, so
shoal accepts it."""
MOST_ROWS = 32
MOST_INPUTS = 8
"""An embedding model without a KV cache computes at most this many inputs together."""
SPARE_TOKENS = 64
"""A reranker gets room for this many more tokens than its input may have. llama-server joins the
texts of some rerankers before it tokenises them. This may add a few tokens."""
BATCH_TOKENS = 512
"""The tokens of a prompt that are computed at once. llama-server reports its progress after each
batch."""
FOREIGN = ("LLAMA_", "GGML_", "LD_PRELOAD", "HF_")
"""Beginnings of environment variables that would change what llama-server does."""
NAMES: Mapping[Vendor, str] = {"nvidia": "CUDA", "amd": "ROCm"}
"""llama-server's names of GPUs, before their number."""
MAPS_MEMORY = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"
"""With this variable, llama-server also allocates memory of the machine for the GPU of an APU."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A model to serve. `cells`: the size of the KV cache in tokens. `rows`: the most rows at a
    time. `devices`: the GPUs that hold the model, in index order; empty if the CPU computes it.
    `saves`: the folder for the KV of slots; None if KV is not kept on disk. `spills`: a part of the
    model is in the machine's memory, which the GPU of an APU maps."""

    file: Path
    socket: Path
    rows: int
    cells: int
    threads: int
    facts: GgufFacts
    devices: tuple[DeviceShare, ...] = ()
    spills: bool = False
    saves: Path | None = None

    def command(self, program: Sequence[str]) -> list[str]:
        """Return the command line of llama-server, which `program` starts."""
        return [
            *program,
            *("--model", str(self.file)),
            *("--host", str(self.socket)),
            *("--parallel", str(self.rows)),
            *("--ctx-size", str(self.cells)),
            *self._batched(),
            *("--threads", str(self.threads)),
            *self._placed(),
            *(("--slot-save-path", f"{self.saves}/") if self.saves else ()),
            *("--cache-ram", "0"),
            *("--fit", "off"),
            *("--poll", "0"),
            *("--log-colors", "off"),
            "--kv-unified",
            "--no-context-shift",
            "--no-webui",
            "--no-slots",
            "--offline",
        ]

    def _batched(self) -> list[str]:
        """Return the options about batches. A whole input of an embedding model is one batch."""
        if not self.facts.pooling:
            return ["--batch-size", str(BATCH_TOKENS)]
        cells = str(self.cells)
        options = ["--batch-size", cells, "--ubatch-size", cells, "--embedding"]
        return [*options, "--pooling", "rank"] if self.facts.ranks else options

    @property
    def input_tokens(self) -> int:
        """Return the most tokens of an input of an embedding model or a reranker."""
        return self.cells - SPARE_TOKENS if self.facts.ranks else self.cells

    def _placed(self) -> list[str]:
        """Return the options that say where the layers are. llama-server counts the visible GPUs
        from 0. It divides the layers and the output layer by the numbers of the tensor split."""
        if not self.devices:
            return ["--device", "none", "--gpu-layers", "0"]
        names = [f"{NAMES[share.vendor]}{count}" for count, share in enumerate(self.devices)]
        options = ["--device", ",".join(names), "--gpu-layers", str(self.facts.layers + 1)]
        if len(names) == 1:
            return [*options, "--split-mode", "none"]
        split = ",".join(str(share.layers) for share in self.devices)
        return [*options, "--split-mode", "layer", "--tensor-split", split]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of llama-server, from that of the runner."""
        others = {name: value for name, value in variables.items() if not name.startswith(FOREIGN)}
        if not self.devices:
            return others
        indices = ",".join(str(share.index) for share in self.devices)
        named = {**IN_ORDER, VISIBLE[self.devices[0].vendor]: indices}
        return {**others, **named, **({MAPS_MEMORY: "1"} if self.spills else {})}


def launch_of(spec: RunnerSpec, file: Path, facts: GgufFacts, socket: Path, cores: int) -> Launch:
    """Return how to serve the model in `file` within the memory that `spec` reserves. There is at
    least room for one row of the context. One core stays free: llama-server's threads wait for each
    other in loops, so a thread without a core slows all of them down by a factor of 10 to 100."""
    context, kv = spec.context_tokens, max(1, sum(facts.kv_bytes))
    free = spec.memory_limit_bytes - int(OVERHEAD * facts.weights_bytes) - FIXED_BYTES
    rows = min(spec.max_rows, MOST_ROWS)
    cells = max(context, min(free // kv, rows * context))
    if facts.pooling:
        rows, cells = (1 if any(facts.kv_bytes) else MOST_INPUTS), context
        cells += SPARE_TOKENS if facts.ranks else 0
    is_whole = all(not share.layers for share in spec.devices)
    beside = spec.memory_limit_bytes - bytes_on(spec.devices)
    spills = bool(spec.devices) and is_whole and beside > FIXED_BYTES
    threads = max(1, cores - 1)
    return Launch(file, socket, rows, cells, threads, facts, spec.devices, spills)
