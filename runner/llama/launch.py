"""How llama-server is started for a model: its limits and its arguments.

Pure. All rows share one KV cache of `cells` tokens, which is allocated at the start. A row reserves
the tokens of its prompt and of its longest answer, so the cache never overflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bus.models.gguf import FIXED_BYTES, OVERHEAD, GgufFacts
from bus.wire.messages.control import RunnerSpec

LEAST_BUILD, LEAST_NUMBERED = 7_500, 1_000
"""The oldest build of llama-server whose options and answers shoal understands. Lower numbers than
the second are those of builds without the project's history, whose age is unknown."""
MOST_ROWS = 32
BATCH_TOKENS = 512
"""The tokens of a prompt that are computed at once. llama-server reports its progress after each
batch."""
FOREIGN = ("LLAMA_", "GGML_", "LD_PRELOAD", "HF_")
"""Beginnings of environment variables that would change what llama-server does."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A model to serve. `cells`: the tokens of the KV cache; `rows`: the most rows at a time."""

    file: Path
    socket: Path
    rows: int
    cells: int
    threads: int
    facts: GgufFacts

    def command(self, program: Sequence[str]) -> list[str]:
        """Return the command line of llama-server, which `program` starts."""
        return [
            *program,
            *("--model", str(self.file)),
            *("--host", str(self.socket)),
            *("--parallel", str(self.rows)),
            *("--ctx-size", str(self.cells)),
            *("--batch-size", str(BATCH_TOKENS)),
            *("--threads", str(self.threads)),
            *("--device", "none"),
            *("--gpu-layers", "0"),
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


def launch_of(spec: RunnerSpec, file: Path, facts: GgufFacts, socket: Path, cores: int) -> Launch:
    """Return how to serve the model in `file` within the memory that `spec` reserves. There is at
    least room for one row of the context. One core stays free: llama-server's threads wait for each
    other in loops, so a thread without a core slows all of them down by a factor of 10 to 100."""
    context, kv = spec.context_tokens, max(1, sum(facts.kv_bytes))
    free = spec.memory_limit_bytes - int(OVERHEAD * facts.weights_bytes) - FIXED_BYTES
    rows = min(spec.max_rows, MOST_ROWS)
    cells = max(context, min(free // kv, rows * context))
    return Launch(file, socket, rows, cells, max(1, cores - 1), facts)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of llama-server, from that of the runner."""
    return {name: value for name, value in variables.items() if not name.startswith(FOREIGN)}
