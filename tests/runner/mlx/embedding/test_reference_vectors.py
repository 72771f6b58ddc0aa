"""Vectors are those that `tests/harness/embedding_vectors.py` had sentence-transformers make."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.harness.embed_texts import Vectors, fast_blas, vectors_apart, vectors_of
from tests.harness.embedding_vectors import KINDS, MINILM, SMALL, SMALL_TEXTS, TEXTS
from tests.harness.minilm import NotFetched, minilm_folder
from tests.harness.missing import missing

SHORT_CHARACTERS = 20


def cosines(ours: Vectors, theirs: Vectors) -> Vectors:
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return np.einsum("ij,ij->i", ours, theirs) / lengths


def test_all_minilm_gives_the_50_recorded_vectors() -> None:
    """Without a BLAS, on a Linux CPU, those of short texts alone: MLX's own products are slow."""
    try:
        folder = minilm_folder()
    except NotFetched as error:
        missing(error)
    texts, theirs = json.loads(TEXTS.read_text()), np.load(MINILM)
    assert theirs.shape == (50, 384) and len(texts) == 50
    variables = fast_blas()
    if variables is None:
        kept = [at for at, text in enumerate(texts) if len(text) <= SHORT_CHARACTERS]
        texts, theirs, variables = [texts[at] for at in kept], theirs[kept], {}
    ours = vectors_apart(folder, texts, variables)
    found = cosines(ours, theirs)
    print(f"{len(found)} texts: cosine {found.min():.7f} at least")
    assert found.min() >= 0.9999
    assert np.abs(np.linalg.norm(ours, axis=1) - 1).max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_model_of_each_kind_gives_the_recorded_vectors(tmp_path: Path, kind: str) -> None:
    with np.load(SMALL) as recorded:
        theirs = recorded[kind]
    ours = vectors_of(KINDS[kind](tmp_path / "model"), SMALL_TEXTS)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 2e-5


def test_the_kinds_differ_so_that_none_stands_for_another() -> None:
    """BERT and RoBERTa, and each pooling, give vectors of their own."""
    with np.load(SMALL) as recorded:
        of_long = {kind: recorded[kind][3] for kind in KINDS}
    same = {
        frozenset((a, b))
        for a in of_long
        for b in of_long
        if a != b and of_long[a].shape == of_long[b].shape and np.allclose(of_long[a], of_long[b])
    }
    # (a mean over the square root of its length is a mean again once it is normalised)
    assert same == {frozenset(("bert, mean", "bert, mean_sqrt_len"))}
