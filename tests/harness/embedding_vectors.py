"""Talks to the disk: makes the vectors that embedding models are held to, by sentence-transformers.

Run by hand only, where sentence-transformers (6.2), torch and this repository can be imported, as

    python -m tests.harness.embedding_vectors

It writes the vectors of 50 texts by all-MiniLM-L6-v2, and those of small random models of each
kind that are made on the spot, into `tests/runner/mlx/embedding/vectors/`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.harness.embedding_folders import add_dense, write_decoder, write_encoder
from tests.harness.minilm import minilm_folder

DATA = Path(__file__).parents[1] / "runner" / "mlx" / "embedding" / "vectors"
TEXTS = DATA / "texts.json"
MINILM = DATA / "minilm.npy"
SMALL = DATA / "small.npz"
SMALL_TEXTS = ("", "a", "a bee sees a sea", "Grüße, 世界", "over and over " * 9)
"""The last has more tokens than the small models take, 40, and is cut."""

Writer = Callable[[Path], Path]
KINDS: dict[str, Writer] = {
    "bert, mean": lambda folder: write_encoder(folder),
    "bert, cls": lambda folder: write_encoder(folder, ("cls_token",)),
    "bert, max": lambda folder: write_encoder(folder, ("max_tokens",)),
    "bert, mean_sqrt_len": lambda folder: write_encoder(folder, ("mean_sqrt_len_tokens",)),
    "bert, weightedmean": lambda folder: write_encoder(folder, ("weightedmean_tokens",)),
    "bert, cls and mean": lambda folder: write_encoder(folder, ("cls_token", "mean_tokens")),
    "bert, tanh gelu": lambda folder: write_encoder(folder, hidden_act="gelu_new"),
    "bert, dense": lambda folder: add_dense(write_encoder(folder), 24),
    "bert, two pooled, dense": lambda folder: add_dense(
        write_encoder(folder, ("max_tokens", "mean_tokens")),
        16,
        activation="linear.Identity",
        bias=False,
    ),
    "roberta, mean": lambda folder: write_encoder(
        folder, model_type="roberta", architectures=["RobertaModel"], type_vocab_size=1
    ),
    "xlm-roberta, cls": lambda folder: write_encoder(
        folder,
        ("cls_token",),
        model_type="xlm-roberta",
        architectures=["XLMRobertaModel"],
        type_vocab_size=1,
    ),
    "qwen3, lasttoken": lambda folder: write_decoder(folder),
    "qwen3, mean": lambda folder: write_decoder(folder, ("mean_tokens",)),
}
"""Small models of each kind, by name: what writes each into a folder."""


def main() -> None:
    """Write all vectors anew."""
    from sentence_transformers import SentenceTransformer  # pyright: ignore

    def vectors(folder: Path, texts: list[str]) -> np.ndarray:
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        return np.asarray(model.encode(texts, batch_size=1), dtype=np.float32)

    np.save(MINILM, vectors(minilm_folder(), json.loads(TEXTS.read_text())))
    found = {}
    with tempfile.TemporaryDirectory() as made:
        for number, (kind, write) in enumerate(KINDS.items()):
            found[kind] = vectors(write(Path(made) / str(number)), list(SMALL_TEXTS))
    np.savez(SMALL, **found)


if __name__ == "__main__":
    main()
