"""What a model says does not depend on the threads that multiply for it: bit by bit, with `exact`.

Each number of threads is a process of its own, with the variables that runners are started with.
Prompts are of the lengths for which that is promised (decision 0016): of up to 320 tokens, or of a
multiple of 32.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.blas.choice import Choice, variables
from conf.blas.libraries import usable_cores
from conf.blas.measure import measure
from tests.bench.models import endless_tiny, random_qwen3
from tests.harness.blas_of_tests import libraries_here
from tests.harness.variants import mostly_proof

ROOT = Path(__file__).resolve().parents[3]
GREEDY = """
import hashlib, json, sys
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from pathlib import Path

model, _ = load_model(Path(sys.argv[1]))
model.set_dtype(mx.float32)
found = []
for rows, length in ((1, 48), (1, 301), (1, 640), (16, 24)):
    cache, said, digest = make_prompt_cache(model), [], hashlib.sha256()
    tokens = mx.array([[(7 * i + 13 * r) % 1999 for i in range(length)] for r in range(rows)])
    for _ in range(12):
        logits = model(tokens, cache=cache)[:, -1, :]
        tokens = mx.argmax(logits, axis=-1)[:, None]
        mx.eval(logits, tokens)
        digest.update(bytes(memoryview(logits.astype(mx.float32))))
        said.append(tokens.flatten().tolist())
    found.append([said, digest.hexdigest()])
print(json.dumps(found))
"""
FOUND = libraries_here()[:1]


def said(model: Path, told: dict[str, str]) -> object:
    done = subprocess.run(
        [sys.executable, "-c", GREEDY, str(model)],
        env={**os.environ, **told}, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not FOUND or usable_cores() < 2, reason="needs OpenBLAS and two cores")
@pytest.mark.parametrize("make", mostly_proof([endless_tiny, random_qwen3], [endless_tiny]))
def test_logits_and_greedy_text_are_the_same_on_every_number_of_threads(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    table = measure(FOUND, [], usable_cores(), 60.0)
    steady = [one.threads for one in table.measured if one.steady]
    model = make(tmp_path / "model")
    texts = {count: said(model, variables(Choice(FOUND[0], threads=count))) for count in steady}
    assert 1 in texts
    for count, text in texts.items():
        assert text == texts[1], f"{count} threads say otherwise"
