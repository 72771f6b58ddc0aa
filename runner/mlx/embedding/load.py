# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn is partially typed)
"""Talks to MLX: loads an embedding model or a reranker from its folder.

Reads weights only from safetensors files, and never runs code from the folder. If the weights do
not fit the model's config.json, loading fails with an error that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from bus.models.embedding_models import padding_token
from bus.models.embedding_parts import DenseStep, EmbeddingModel, Step
from runner.engine import LoadProgress
from runner.mlx.embedding.decoder import load_decoder
from runner.mlx.embedding.encoder import Encoder, encoder_shape, head_of, own_names
from runner.mlx.embedding.pooling import Dense, normalised, pooled
from runner.mlx.model import cpu_math
from runner.mlx.model.files import problem_of
from runner.mlx.model.load import Precision, UnloadableModel, bring_in, computes_in
from runner.text import TokenizerError, open_embedding_folder

Forward = Callable[..., mx.array]
"""Maps token ids (rows, tokens) and the rows' lengths to hidden states (rows, tokens, hidden). For
a reranker, a third argument is the index in each row from which tokens have the second token
type."""


@dataclass(frozen=True, slots=True)
class LoadedEmbedder:
    """An embedding model in memory. `dense` maps a folder's name to the linear layer from that
    folder, which is applied after the pooling."""

    model: EmbeddingModel
    forward: Forward
    dense: Mapping[str, Dense]
    vocabulary: int
    weights_bytes: int
    precision: str

    def vectors(
        self,
        prompts: Sequence[Sequence[int]],
        dimensions: int,
        seconds: Sequence[int] | None = None,
    ) -> mx.array:
        """Return the vectors (prompts, dimensions) as float32, normalised if the model's settings
        say so. The prompts are computed as one padded batch. `seconds`: for a reranker, the index
        in each prompt from which tokens have the second token type."""
        longest = max(map(len, prompts))
        lengths = mx.array([len(prompt) for prompt in prompts])
        rows = [[*prompt, *(longest - len(prompt)) * [0]] for prompt in prompts]
        more = () if seconds is None else (mx.array(list(seconds)),)
        hidden = self.forward(mx.array(rows), lengths, *more)
        vectors = pooled(hidden, lengths, self.model.pooling)
        for step in self.model.steps[: -1 if self.model.normalises else None]:
            vectors = self._stepped(vectors, step)
        vectors = vectors[:, :dimensions]
        return normalised(vectors) if self.model.normalises else vectors

    def _stepped(self, vectors: mx.array, step: Step) -> mx.array:
        return (
            self.dense[step.folder](vectors) if isinstance(step, DenseStep) else normalised(vectors)
        )


def load_embedder(
    folder: Path, precision: Precision, progress: Callable[[LoadProgress], None]
) -> LoadedEmbedder:
    """Return the model in `folder`, its weights evaluated by the calling thread. `progress` gets
    the bytes loaded so far. Raises UnloadableModel with the reason."""
    cpu_math.install()
    progress(LoadProgress("reading", 0, 0))
    problem = problem_of(folder)
    if problem is not None:
        raise UnloadableModel(f"{folder.name}: {problem}")
    try:
        return _loaded(folder, precision, progress)
    except UnloadableModel:
        raise
    except TokenizerError as error:
        raise UnloadableModel(str(error)) from error
    except ValueError as error:
        raise UnloadableModel(f"{folder.name}: {error}") from error
    except SystemExit as error:
        raise UnloadableModel(
            f"{folder.name}: mlx-lm's code for the model's architecture tried to end the process"
        ) from error
    except Exception as error:
        raise UnloadableModel(f"{folder.name}: {type(error).__name__}: {error}") from error


def _loaded(
    folder: Path, precision: Precision, progress: Callable[[LoadProgress], None]
) -> LoadedEmbedder:
    opened = open_embedding_folder(folder)
    model, config = opened.model, opened.config
    if model.architecture == "decoder":
        forward, module = load_decoder(folder)
    else:
        forward = module = _encoder(folder, config, roberta=model.architecture == "roberta")
    wanted = computes_in(precision)
    if wanted is not None:
        module.set_dtype(wanted)
    steps = [step for step in model.steps if isinstance(step, DenseStep)]
    if model.ranks:
        own = _weights_of(folder)
        dense = {step.folder: _linear(step, head_of(own, step.folder)) for step in steps}
    else:
        dense = {step.folder: _dense(folder, step) for step in steps}
    weights = [
        array for _, array in cast(list[tuple[str, mx.array]], tree_flatten(module.parameters()))
    ]
    weights += [
        part for layer in dense.values() for part in (layer.weight, layer.bias) if part is not None
    ]
    total = bring_in(weights, progress)
    progress(LoadProgress("probing", total, total))
    embedder = LoadedEmbedder(
        model=model,
        forward=forward,
        dense=dense,
        vocabulary=int(config["vocab_size"]),
        weights_bytes=total,
        precision="as stored" if wanted is None else str(wanted).removeprefix("mlx.core."),
    )
    _try_out(embedder)
    progress(LoadProgress("ready", total, total))
    return embedder


def _encoder(folder: Path, config: Mapping[str, Any], *, roberta: bool) -> Encoder:
    """Return a BERT or RoBERTa encoder with the weights in the folder. Raises ValueError."""
    if config.get("quantization") or config.get("quantization_config"):
        raise ValueError("the model's weights are quantized; encoders run unquantized only")
    shape = encoder_shape(config, padding_token(config) + 1 if roberta else 0)
    named = own_names(_weights_of(folder))
    encoder = Encoder(shape)
    wanted = dict(cast(list[tuple[str, mx.array]], tree_flatten(encoder.parameters())))
    for name, array in wanted.items():
        if name not in named:
            raise ValueError(
                f"{len(wanted.keys() - named.keys())} weights are missing, for example {name}"
            )
        _check_shape(name, named[name], array.shape)
    if more := named.keys() - wanted.keys():
        raise ValueError(f"the weights contain {min(more)}, which config.json does not describe")
    encoder.load_weights(list(named.items()))
    encoder.eval()
    return encoder


def _dense(folder: Path, step: DenseStep) -> Dense:
    """Return the linear layer after the pooling that `step` describes. Raises ValueError."""
    path = folder / step.folder / "model.safetensors"
    if not path.is_file():
        raise ValueError(f"{step.folder} has no model.safetensors; no other format is supported")
    return _linear(step, _weights_in(path))


def _linear(step: DenseStep, weights: Mapping[str, mx.array]) -> Dense:
    """Return a linear layer with these tensors. Raises ValueError if their names or shapes differ
    from the settings in `step`."""
    wanted: dict[str, tuple[int, ...]] = {"linear.weight": (step.outputs, step.inputs)}
    if step.has_bias:
        wanted["linear.bias"] = (step.outputs,)
    if weights.keys() != wanted.keys():
        raise ValueError(
            f"{step.folder} contains the tensors {sorted(weights)[:4]}; the required ones are "
            f"{sorted(wanted)}"
        )
    for name, shape in wanted.items():
        _check_shape(f"{step.folder}: {name}", weights[name], shape)
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    return Dense(
        weight.astype(mx.float32),
        None if bias is None else bias.astype(mx.float32),
        step.activation,
    )


def _weights_of(folder: Path) -> dict[str, mx.array]:
    """Return all tensors in a model's folder, unevaluated. Raises ValueError if there are none."""
    weights: dict[str, mx.array] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        weights |= _weights_in(path)
    if not weights:
        raise ValueError("the folder has no weights named model*.safetensors")
    return weights


def _weights_in(path: Path) -> dict[str, mx.array]:
    """Return the tensors of a safetensors file. Their values are read when they are evaluated.
    Raises ValueError if MLX cannot read the file."""
    try:
        return cast(dict[str, mx.array], mx.load(str(path)))
    except Exception as error:  # MLX raises plain errors of several kinds
        raise ValueError(f"{path.name} is not a safetensors file: {error}") from error


def _check_shape(name: str, array: mx.array, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(
            f"the tensor {name} has shape {array.shape}; the model's settings require {shape}"
        )
    if not mx.issubdtype(array.dtype, mx.floating):
        raise ValueError(f"the tensor {name} has dtype {array.dtype}, which is not supported")


def _try_out(loaded: LoadedEmbedder) -> None:
    """Compute a small batch. Raises ValueError if its vectors have a wrong shape or are not
    finite."""
    vectors = loaded.vectors([[0], [0, min(1, loaded.vocabulary - 1)]], loaded.model.width)
    if vectors.shape != (2, loaded.model.width):
        raise ValueError(
            f"a trial with two texts gave vectors of shape {vectors.shape}; the model's settings "
            f"require (2, {loaded.model.width}), so the weights do not belong to them"
        )
    if not bool(mx.isfinite(vectors).all().item()):
        raise ValueError(
            "the model's vectors are not finite numbers: the weights are damaged; download the "
            "model again"
        )
