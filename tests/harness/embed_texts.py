"""Talks to MLX: the vectors of texts by an embedding model of ours, in a process of its own.

    python -m tests.harness.embed_texts FOLDER < TEXTS.json > VECTORS.npy

So that a BLAS can be preloaded, without which a real model takes minutes on a Linux CPU.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from conf.blas.choice import Choice, variables
from runner.mlx.embedding import EmbeddingEngine
from runner.text import EmbeddingInputs
from tests.harness.blas_of_tests import libraries_here

ROOT = Path(__file__).parents[2]
Vectors = np.ndarray[Any, np.dtype[np.float32]]


def vectors_of(folder: Path, texts: Sequence[str]) -> Vectors:
    """The vectors of texts, too long ones cut, computed in this process."""
    inputs, engine = EmbeddingInputs.load(folder), EmbeddingEngine.load(folder)
    prompts = [inputs.prepare(text, cut=True).tokens for text in texts]
    return as_array(engine.embed(prompts))


def as_array(vectors: Sequence[bytes]) -> Vectors:
    return np.array([np.frombuffer(one, "<f4") for one in vectors], np.float32)


def fast_blas() -> dict[str, str] | None:
    """The variables that preload OpenBLAS on Linux; None where there is none."""
    if not sys.platform.startswith("linux"):
        return {}
    found = libraries_here()
    return variables(Choice(found[0])) if found else None


def vectors_apart(folder: Path, texts: Sequence[str], variables: dict[str, str]) -> Vectors:
    """The same, computed in a process that is started with these variables."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.embed_texts", str(folder)],
        input=json.dumps(texts).encode(),
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return np.load(io.BytesIO(done.stdout))


if __name__ == "__main__":
    made = io.BytesIO()
    np.save(made, vectors_of(Path(sys.argv[1]), json.load(sys.stdin)))
    sys.stdout.buffer.write(made.getvalue())
