"""Talks to one BLAS library: measures its products in a process of its own, and checks them.

    python -I -S conf/blas/probe.py LIBRARY THREADS,THREADS... [KERNELS]

It uses only the standard library, so that it starts fast. A library that crashes ends only this
process. An empty LIBRARY means the preloaded one. Without THREADS the products are checked but not
timed. If the library chose KERNELS, nothing is measured. Prints one JSON object:

- `kernels`, their name; `right`: all products are right
- `share` of the time that this process had a core
- `threads`, by number: the time of a product by its rows (`seconds`), and of one row through
  `cblas_sgemv` (`sgemv_s`). `steady`: the products have the bits of one thread's. `even`: one row
  has the same bits alone and among others.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from array import array
from math import fsum
from random import Random

ROWS = (1, 16, 32, 256)
INNER, OUTER = 512, 2048
"""Lengths of the timed products: a layer of a model with about 30 M parameters."""
BITS = ((192, 192, 32), (192, 384, 32), (384, 192, 32), (640, 256, 16), (192, 2048, 256))
"""Further products (inner, outer, most rows) whose bits are compared. A library computes small and
large products in different ways, and may split an inner length differently."""
UNEVEN_ROWS = (22, 43, 301)
"""Rows of further products. If the rows are no multiple of the kernel's, kernels of some processors
sum up the rest in another way, which depends on the threads."""
POOL_BYTES = 32 << 20
"""Size of all weights. Products use them in turn, because a model's weights do not stay in the
processor's cache."""
PASSES = 3
PASSES_S = 0.1
"""After this time no further pass starts, on a slow or busy machine."""
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
TOLERANCE = 1e-4
"""Allowed error for each term of a sum of products in [-1, 1]."""

Real = ctypes.c_float


class Products:
    """Multiplies rows by transposed weights, as a model's layers do."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path or None)
        chance = Random(7)
        block = array("f", [chance.uniform(-1.0, 1.0) for _ in range(8191)])
        self._pool = block * (POOL_BYTES // (block.itemsize * len(block)) + 1)
        self._address = self._pool.buffer_info()[0]
        self._out = (Real * (max(ROWS) * OUTER))()
        self._threads = 1

    @property
    def kernels(self) -> str:
        """Return the name of OpenBLAS's kernels; "" for other libraries."""
        name = getattr(self._library, "openblas_get_corename", None)
        if name is None:
            return ""
        name.restype = ctypes.c_char_p
        return name().decode()

    def set_threads(self, threads: int) -> None:
        """Set the library's number of threads."""
        self._threads = threads
        for name in ("openblas_set_num_threads", "MKL_Set_Num_Threads"):
            if hasattr(self._library, name):
                getattr(self._library, name)(threads)

    def sgemm(self, rows: int, inner: int, outer: int, weights: int = 0) -> None:
        """Multiply `rows` rows by a weight matrix, which begins at element `weights` of the
        buffer."""
        self._library.cblas_sgemm(
            ROW_MAJOR, PLAIN, TRANSPOSED, rows, outer, inner, Real(1.0), self._at(13), inner,
            self._at(weights), inner, Real(0.0), self._out, outer,
        )  # fmt: skip

    def sgemv(self, inner: int, outer: int, weights: int = 0) -> None:
        """Multiply one row by a weight matrix, which begins at element `weights` of the buffer."""
        self._library.cblas_sgemv(
            ROW_MAJOR, PLAIN, outer, inner, Real(1.0), self._at(weights), inner, self._at(13), 1,
            Real(0.0), self._out, 1,
        )  # fmt: skip

    def product(self, rows: int, inner: int, outer: int) -> bytes:
        """Return the bytes of a product of `rows` rows; 0: of one row, by `cblas_sgemv`."""
        if rows:
            self.sgemm(rows, inner, outer)
        else:
            self.sgemv(inner, outer)
        return ctypes.string_at(self._out, 4 * max(1, rows) * outer)

    def is_right(self, product: bytes, rows: int, inner: int, outer: int) -> bool:
        """Return whether three elements of a product are close to plain sums."""
        values, rows = memoryview(product).cast("f"), max(1, rows)
        for row, column in ((0, 0), (rows - 1, outer - 1), (rows // 2, outer // 3)):
            first, second = 13 + row * inner, column * inner
            pairs = zip(
                self._pool[first : first + inner],
                self._pool[second : second + inner],
                strict=True,
            )
            plain = fsum(x * y for x, y in pairs)
            # This form also rejects NaN.
            if not abs(values[row * outer + column] - plain) <= TOLERANCE * inner:
                return False
        return True

    def is_even(self) -> bool:
        """Return whether a row's product has the same bits if the row is multiplied alone and among
        other rows."""
        alone = self.product(1, INNER, OUTER)
        return all(self.product(rows, INNER, OUTER)[: len(alone)] == alone for rows in ROWS)

    def seconds(self, rows: int) -> float:
        """Return the time of a product of `rows` rows; 0: of one row, by `cblas_sgemv`.

        It is CPU time for one thread, which other work hardly changes, and wall time for several.
        """
        clock = time.thread_time if self._threads == 1 else time.perf_counter
        size = INNER * OUTER
        count = len(self._pool) // size - 1 if rows <= 1 else max(1, 64 // rows)
        best, end_at = float("inf"), time.perf_counter() + PASSES_S
        for _ in range(PASSES):
            if time.perf_counter() > end_at:
                break
            began = clock()
            for number in range(count):
                if rows:
                    self.sgemm(rows, INNER, OUTER, number * size)
                else:
                    self.sgemv(INNER, OUTER, number * size)
            best = min(best, (clock() - began) / count)
        return best

    def _at(self, offset: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._address + 4 * offset)


def shapes() -> list[tuple[int, int, int]]:
    """Return the checked products: (rows, inner, outer)."""
    timed = [(rows, INNER, OUTER) for rows in (0, *ROWS)]
    uneven = [(rows, *BITS[1][:2]) for rows in UNEVEN_ROWS]
    more = [(rows, inner, outer) for inner, outer, most in BITS for rows in ROWS if rows <= most]
    return timed + uneven + more


def main(path: str, counts: list[int], known_kernels: str) -> int:
    """Print the report; return 1 if a product is wrong."""
    products = Products(path)
    if known_kernels and products.kernels == known_kernels:
        _print({"kernels": known_kernels, "right": True, "share": 1.0, "threads": {}})
        return 0
    products.set_threads(1)
    plain = {shape: products.product(*shape) for shape in shapes()}
    right = all(products.is_right(bits, *shape) for shape, bits in plain.items())
    began, spent = time.perf_counter(), time.thread_time()
    table: dict[int, dict[str, object]] = {}
    for threads in counts if right else ():
        products.set_threads(threads)
        table[threads] = {
            "steady": all(products.product(*s) == bits for s, bits in plain.items() if s[0]),
            "even": products.is_even(),
            "seconds": {rows: products.seconds(rows) for rows in ROWS},
            "sgemv_s": products.seconds(0),
        }
    share = (time.thread_time() - spent) / (time.perf_counter() - began)
    _print({"kernels": products.kernels, "right": right, "share": share, "threads": table})
    return 0 if right else 1


def _print(report: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    numbers = [int(count) for count in sys.argv[2].split(",") if count]
    sys.exit(main(sys.argv[1], numbers, "".join(sys.argv[3:4])))
