# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX: a language model of mlx-lm's without its head, for the hidden states of its tokens.

Attention is causal, so what a row is filled up with behind its end changes nothing before it. Long
rows are computed by chunks.
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
    """The body of a language model: all but the projection onto its vocabulary."""

    def __init__(self, module: nn.Module, body: nn.Module) -> None:
        self._module: Any = module
        self._body: Any = body

    def __call__(self, tokens: mx.array, lengths: mx.array) -> mx.array:
        """Return (rows, tokens, hidden), behind the last norm, for token ids (rows, tokens)."""
        if tokens.shape[1] <= CHUNK_TOKENS:
            return self._body(tokens)
        cache = make_prompt_cache(self._module)
        found: list[mx.array] = []
        for at in range(0, tokens.shape[1], CHUNK_TOKENS):
            found.append(self._body(tokens[:, at : at + CHUNK_TOKENS], cache=cache))
            mx.eval(found[-1])
        return mx.concatenate(found, axis=1)


def load_decoder(folder: Path) -> tuple[Decoder, nn.Module]:
    """Return the body of the language model in `folder`, twice: to call, and with its weights,
    which are not evaluated yet. Raises ValueError where weights are missing, and what mlx-lm raises
    for a model that it does not know."""
    held = set[str]()

    def classes(config: dict[str, Any]) -> tuple[type[nn.Module], type]:
        """Return the family's classes, of which the model bears a lack of its head."""
        known, arguments = model_classes(config)

        class Tolerant(known):
            """The model, whose weights may lack the head and the name of the body."""

            def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
                """Return the weights as mlx-lm names them, and note which there are."""
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
        raise ValueError(f"its weights lack {len(missing)} of the model's, {missing[0]} among them")
    module.eval()
    return Decoder(module, body), body


def _body(module: Any) -> tuple[str, nn.Module]:
    for path in ("model", "language_model.model"):
        found = module
        for name in path.split("."):
            found = getattr(found, name, None)
        if isinstance(found, nn.Module):
            return path, found
    raise ValueError("of this architecture it is not known which part makes hidden states")
