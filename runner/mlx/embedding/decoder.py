# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: runs a language model of mlx-lm without its head, for embedding models that use its
hidden states.

Attention is causal, so padding at the end of a row does not change the hidden states of its tokens.
Long rows are computed in chunks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from runner.library import load_model, make_prompt_cache, model_classes

CHUNK_TOKENS = 1024


class Decoder:
    """The body of a language model: everything except the projection onto its vocabulary."""

    def __init__(self, module: nn.Module, body: nn.Module) -> None:
        self._module: Any = module
        self._body: Any = body

    def __call__(self, tokens: mx.array, lengths: mx.array) -> mx.array:
        """Return hidden states after the last norm, (rows, tokens, hidden), for token ids (rows,
        tokens)."""
        if tokens.shape[1] <= CHUNK_TOKENS:
            return self._body(tokens)
        cache = make_prompt_cache(self._module)
        chunks: list[mx.array] = []
        for at in range(0, tokens.shape[1], CHUNK_TOKENS):
            chunks.append(self._body(tokens[:, at : at + CHUNK_TOKENS], cache=cache))
            mx.eval(chunks[-1])
        return mx.concatenate(chunks, axis=1)


def load_decoder(folder: Path) -> tuple[Decoder, nn.Module]:
    """Return the body of the language model in `folder` in two forms: a `Decoder` to call, and a
    module with its unevaluated weights. Raises ValueError if weights are missing, and mlx-lm's
    errors for an unknown model."""
    held = set[str]()

    def classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
        """Return the classes of a model family; the model class accepts weights without a head."""
        family, arguments = model_classes(config)

        class Tolerant(family):
            """A model class of a family that also accepts weights without a head, and weights whose
            names lack the prefix `model.`"""

            def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
                """Return the weights under mlx-lm's names, and record these names in `held`."""
                if not any(name.startswith(("model.", "language_model.")) for name in weights):
                    weights = {f"model.{name}": array for name, array in weights.items()}
                named = getattr(super(), "sanitize", dict)(weights)
                held.update(named)
                return named

        return Tolerant, arguments

    module, _ = load_model(
        folder, lazy=True, strict=False, get_model_classes=classes, trust_remote_code=False
    )
    path, body = _body(module)
    missing = [name for name, _ in tree_flatten(body.parameters()) if f"{path}.{name}" not in held]
    if missing:
        raise ValueError(
            f"{len(missing)} weights of the model are missing, for example {missing[0]}"
        )
    module.eval()
    return Decoder(module, body), body


def _body(module: Any) -> tuple[str, nn.Module]:
    for path in ("model", "language_model.model"):
        body = module
        for name in path.split("."):
            body = getattr(body, name, None)
        if isinstance(body, nn.Module):
            return path, body
    raise ValueError("shoal does not know which part of this architecture returns hidden states")
