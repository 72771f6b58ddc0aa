"""Talks to the settings: composes the process of one runner slot, or of one measurement.

python -P -m runner                    (supervisord sets SHOAL_SLOT to the slot's two digits)
python -P -m runner selftest NAME      (`shoal selftest` starts it and reads its output)
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bus.models.kv import KvLimits, kv_root
from bus.process.installation import ENVIRONMENTS, environment_in
from bus.wire.errors import ConfigError
from bus.wire.messages.control import GroupSpec, RunnerSpec
from bus.wire.messages.requests import DraftWeights, Speculate
from conf.blas import usable_cores
from conf.paths import llama_server
from conf.settings import load_settings
from runner.group.collectives import Exchanges
from runner.group.lockstep import RankContext
from runner.roles.role import Factories, Progressed
from runner.service import run_slot
from runner.text import import_libraries

if TYPE_CHECKING:
    from bus.models.tasks import CommandEngine
    from runner.mlx.embedding import EmbeddingEngine
    from runner.mlx.engine import MlxEngine, Precision
    from runner.mlx.model.quantize import ModelMaker
    from runner.text import EmbeddingInputs, EngineTokenizer, PairInputs, Text

SWITCH_S = 0.0005
"""How long a Python thread may hold the GIL while another thread waits for it. This is a tenth of
Python's default, so that the engine's thread does not wait while another thread renders a chat
template."""
THRASHING_CHECK = "MLX_ENABLE_CACHE_THRASHING_CHECK"
"""With this environment variable, MLX raises in the middle of a step if shapes change more often
than its CUDA caches allow. We turn it off, because a slow runner is better than a dead one. A value
exported by the user is kept."""
GPU_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""With this environment variable, CUDA counts GPUs as the node's card does, so that MLX's first GPU
is the one on which its memory was reserved. A value exported by the user is kept."""
SELFTEST_BYTES = 2 << 30
"""Memory limit of an engine that is measured; the measured models need a tenth of it."""


def load_engine(
    spec: RunnerSpec,
    context: RankContext | None,
    progress: Progressed,
    *,
    busy_runners: Path | None = None,
    kv_limits: KvLimits | None = None,
    speculate: Speculate = "off",
) -> MlxEngine:
    """Import MLX in the calling thread, which then owns it, and load the engine. The file
    `busy_runners` lists the busy runners of this machine; the engine shares the CPU cores with
    them. `kv_limits` are those of the folder for KV on disk. `speculate` is the operator's setting.
    The cost of verifying drafts is measured if the card names a drafter. It is also measured unless
    drafting is off, by the card or else by this setting."""
    from runner.mlx.engine import load_engine as load
    from runner.mlx.model.cores import shared_threads

    draft = spec.draft
    return load(
        Path(spec.path),
        dtype=cast("Precision", spec.dtype),
        memory_limit_bytes=spec.memory_limit_bytes,
        context_tokens=spec.context_tokens,
        kv=spec.kv,
        adapters=spec.adapters,
        progress=progress,
        rank_context=context,
        threads=shared_threads(busy_runners, usable_cores()) if busy_runners else None,
        drafts=(spec.speculate or speculate) != "off" or draft is not None,
        **_proposer(spec.draft),
        disk=None if kv_limits is None else (kv_limits, spec.model),
    )


def vocabulary_digest(spec: RunnerSpec) -> str:
    """Return the digest of the model's tokens."""
    from runner.mlx.model.files import vocabulary_digest as digest

    return digest(Path(spec.path))


def _proposer(draft: DraftWeights | None) -> dict[str, Any]:
    """Return the engine's arguments for the proposer that a card names."""
    if draft is None or not draft.path:
        return {}
    if draft.drafter == "mtp":
        return {"mtp": (Path(draft.path), draft.depth)}
    if draft.drafter == "block":
        return {"block": Path(draft.path)}
    return {"draft_path": Path(draft.path)}


def load_embedder(spec: RunnerSpec, progress: Progressed) -> EmbeddingEngine:
    """Import MLX in the calling thread, which then owns it, and load an embedding model."""
    from runner.mlx.embedding import EmbeddingEngine

    return EmbeddingEngine.load(
        Path(spec.path),
        dtype=cast("Precision", spec.dtype),
        memory_limit_bytes=spec.memory_limit_bytes,
        progress=progress,
    )


def open_maker(spec: RunnerSpec) -> ModelMaker:
    """Import MLX in the calling thread, which then owns it, and open a model to quantise. Raises
    NotMade."""
    from runner.mlx.model.quantize import ModelMaker

    assert spec.quantizes is not None, "the spec does not say what to quantise"
    limits = spec.memory_limit_bytes
    return ModelMaker(Path(spec.path), Path(spec.into), spec.model, spec.quantizes, limits)


def form_group(group: GroupSpec, rank: int, deadline_s: float) -> None:
    """Make this rank join the group, within `deadline_s`. Called in the main thread; this is the
    process's first call of MLX."""
    from runner.mlx.ranks.comm import form

    form(group, rank, deadline_s)


def open_exchanges(spec: RunnerSpec, context: RankContext) -> Exchanges:
    """Return the exchanges between ranks that a collective test runs on this rank."""
    from runner.mlx.ranks.collective_checks import open_checks

    return open_checks(context, spec.memory_limit_bytes)


def load_text(spec: RunnerSpec, *, constrain_tools: bool = False) -> Text:
    """Open the model's tokenizer, and return the object that does all text work. The tokenizer
    library is imported only now. Raises TokenizerError."""
    from runner.text import ModelTokenizer, Parsers, Text

    return Text(
        ModelTokenizer(
            Path(spec.path),
            parsers=Parsers(spec.tool_parser, spec.reasoning_parser),
            special_tokens_in_messages=spec.special_tokens_in_messages,
        ),
        thinking_by_default=spec.thinking,
        constrain_tools=constrain_tools,
    )


def command_engine(folder: Path, name: str) -> CommandEngine | None:
    """Return the program with this name in the configuration folder's `engines.toml`; None if there
    is none. Raises ConfigError."""
    from bus.models.tasks import ENGINES_FILE, read_engines

    try:
        return read_engines((folder / ENGINES_FILE).read_text()).engines.get(name)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{ENGINES_FILE}: {error}") from error


def load_inputs(spec: RunnerSpec, engine: EngineTokenizer | None) -> EmbeddingInputs | PairInputs:
    """Open the tokenizer of an embedding model or a reranker, and return the object that tokenises
    inputs. `engine`: the tokenizer of the engine, if it has one. Raises TokenizerError."""
    from runner.text import EmbeddingInputs, PairInputs

    folder, most = Path(spec.path), spec.context_tokens
    if spec.makes == "reranker":
        if engine is None:
            return PairInputs.load(folder, most)
        return PairInputs.beside(engine.encode, around=engine.around, max_tokens=most)
    if engine is not None:
        encode, vocabulary = engine.encode, engine.vocabulary
        return EmbeddingInputs.beside(folder, encode, max_tokens=most, vocabulary=vocabulary)
    return EmbeddingInputs.load(folder, max_tokens=most)


def engine_bytes() -> int | None:
    """Return MLX's peak memory in bytes; None if no engine has imported MLX yet."""
    device: Any = sys.modules.get("runner.mlx.model.device")
    return None if device is None else device.taken_bytes()


def measure_for_selftest(name: str) -> int:
    """Run one measurement of `shoal selftest`; return the exit code."""
    from runner.mlx.engine import load_engine as load
    from runner.mlx.selftest import run_measurement

    os.environ.setdefault(THRASHING_CHECK, "0")
    return run_measurement(
        name, lambda path, kv: load(path, memory_limit_bytes=SELFTEST_BYTES, kv=kv)
    )


def main() -> int:
    """Serve one slot; return an exit code of `runner.lifecycle`."""
    settings = load_settings()
    sys.setswitchinterval(SWITCH_S)
    os.environ.setdefault(THRASHING_CHECK, "0")
    os.environ.setdefault(*GPU_ORDER)
    shares = sys.platform.startswith("linux") and settings.runner.blas_threads == "auto"
    busy_runners = settings.paths.busy_runners if shares else None
    kv_limits = KvLimits(
        kv_root(settings.paths.state),
        most_bytes=settings.runner.kv_disk_bytes,
        least_tokens=settings.runner.kv_disk_min_tokens,
        unused_s=3600 * settings.runner.kv_disk_hours,
        moves=settings.runner.kv_moves,
    )
    load = partial(
        load_engine,
        busy_runners=busy_runners,
        kv_limits=kv_limits,
        speculate=settings.runner.speculate,
    )
    return run_slot(
        os.environ.get("SHOAL_SLOT", "00"),
        **settings.process_arguments(),
        factories=Factories(
            load_engine=load,
            load_follower=load,
            load_text=partial(load_text, constrain_tools=settings.runner.constrain_tools),
            load_sent_text=partial(load_text, constrain_tools=settings.runner.constrain_tools),
            llama_server=llama_server(settings.runner.llama_server),
            command_engine=partial(command_engine, settings.paths.config),
            environment=partial(environment_in, settings.paths.data / ENVIRONMENTS),
            load_embedder=load_embedder,
            load_inputs=load_inputs,
            form_group=form_group,
            open_exchanges=open_exchanges,
            open_maker=open_maker,
            prepare=import_libraries,
            engine_bytes=engine_bytes,
            vocabulary_digest=vocabulary_digest,
            speculate=settings.runner.speculate,
            parity=settings.runner.parity,
            kv_limits=kv_limits,
        ),
    )


if __name__ == "__main__":
    exit_code = measure_for_selftest(sys.argv[2]) if sys.argv[1:2] == ["selftest"] else main()
    sys.stderr.flush()
    # Not sys.exit: a wedged device would hold up the interpreter's own end.
    os._exit(exit_code)
