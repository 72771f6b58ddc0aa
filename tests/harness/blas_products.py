"""Products through what was preloaded, one a line of standard input, held against numpy.

Reads a case as JSON: order, transposes, sizes, alpha, beta, strides beyond the least, a seed.
Answers with the greatest error, whether anything but the product was written, and whether the bytes
are those that `cblas_sgemv` writes (None where the product has neither one row nor one column).
"""

from __future__ import annotations

import ctypes
import json
import sys

import numpy as np
from numpy.typing import NDArray

LIBRARY = ctypes.CDLL(None)
ROW, COLUMN, PLAIN, TRANSPOSED = 101, 102, 111, 112
GUARD = 7.25
Floats = NDArray[np.float32]


def stored(matrix: Floats, order: int, extra: int) -> tuple[Floats, int]:
    """A matrix as it lies in memory, with `extra` guards after each row (or column)."""
    lines = matrix if order == ROW else matrix.T
    room = np.full((lines.shape[0], lines.shape[1] + extra), GUARD, np.float32)
    room[:, : lines.shape[1]] = lines
    return room, room.shape[1]


def pointer(array: Floats) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def by_sgemv(
    case: dict[str, int], a: Floats, b: Floats, c: Floats, alpha: float, beta: float
) -> bytes | None:
    """The one row or column as `cblas_sgemv` computes it, from contiguous copies of its own."""
    if case["m"] == 1:
        weights, x, y = np.ascontiguousarray(b.T), a[0], c[0]
        plain = (case["order"] == ROW) == (case["tb"] == TRANSPOSED)
    elif case["n"] == 1:
        weights, x, y = np.ascontiguousarray(a), b[:, 0], c[:, 0]
        plain = (case["order"] == ROW) == (case["ta"] == PLAIN)
    else:
        return None
    # The bits depend on the way through memory, so it is the same way.
    weights = weights if plain else np.ascontiguousarray(weights.T)
    x, y = x.copy(), (y.copy() if beta else np.zeros_like(y))
    f = ctypes.c_float
    LIBRARY.cblas_sgemv(
        ROW, PLAIN if plain else TRANSPOSED, *weights.shape, f(alpha), pointer(weights),
        weights.shape[1], pointer(x), 1, f(beta), pointer(y), 1,
    )  # fmt: skip
    return y.tobytes()


def answer(case: dict[str, int], alpha: float, beta: float) -> dict[str, object]:
    """Compute one case."""
    chance = np.random.default_rng(case["seed"])
    m, n, k = case["m"], case["n"], case["k"]
    a, b, c = (
        chance.uniform(-1, 1, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n))
    )
    if beta == 0:
        c[:] = np.nan
    order = case["order"]
    in_a, lda = stored(a if case["ta"] == PLAIN else a.T, order, case["more_a"])
    in_b, ldb = stored(b if case["tb"] == PLAIN else b.T, order, case["more_b"])
    out, ldc = stored(c, order, case["more_c"])
    f = ctypes.c_float
    LIBRARY.cblas_sgemm(
        order, case["ta"], case["tb"], m, n, k, f(alpha), pointer(in_a), lda, pointer(in_b), ldb,
        f(beta), pointer(out), ldc,
    )  # fmt: skip
    width = ldc - case["more_c"]
    found = out[:, :width] if order == ROW else out[:, :width].T
    kept = beta * c.astype(np.float64) if beta else 0.0
    wanted = alpha * (a.astype(np.float64) @ b.astype(np.float64)) + kept
    one = by_sgemv(case, a, b, c, alpha, beta)
    return {
        "error": float(np.max(np.abs(found - wanted) / (1 + k))) if found.size else 0.0,
        "guards": bool(np.all(out[:, width:] == GUARD)),
        "as_sgemv": None if one is None else bool(np.ascontiguousarray(found).tobytes() == one),
    }


def main() -> None:
    """Answer until there are no more lines."""
    for line in sys.stdin:
        told = json.loads(line)
        print(json.dumps(answer(told["case"], told["alpha"], told["beta"])), flush=True)


if __name__ == "__main__":
    main()
