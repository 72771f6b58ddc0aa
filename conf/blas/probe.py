"""Talks to one BLAS library: measures its products in a process of its own, and checks them.

    python -I -S conf/blas/probe.py LIBRARY THREADS,THREADS... [KERNELS]

The standard library alone, for this has to start fast; a library that crashes takes this process
alone along. An empty LIBRARY is what was preloaded; without THREADS products are checked, not
timed; nothing is done where the library chose KERNELS, which are known already. Prints one JSON
object: the kernels' name, whether the products are right, the share of the time that this process
had a core, and for each number of threads the seconds of a product by its rows, of one row through
`cblas_sgemv`, whether the products have the bits of those of one thread (`steady`), and whether one
row has the bits that it has among many (`even`).
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
"""Of the timed products: a layer of a model of some 30 M parameters."""
BITS = ((192, 192, 32), (192, 384, 32), (384, 192, 32), (640, 256, 16), (192, 2048, 256))
"""More products (inner, outer, most rows) of which all bits are compared: small ones go other ways
through a library than large ones, and an inner length may be cut differently."""
UNEVEN_ROWS = (22, 43, 301)
"""Of one more product each: kernels of some processors cut rows between threads so that those left
over, where the rows are no multiple of the kernel's, are summed up another way."""
POOL_BYTES = 32 << 20
"""Weights that are gone through in turn, for a model's do not stay in the processor's cache."""
PASSES = 3
PASSES_S = 0.1
"""After which no other pass is begun, on a machine that is slow or busy."""
ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112
TOLERANCE = 1e-4
"""Of a sum of products in [-1, 1], for each of its terms."""

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
        """Return the name of OpenBLAS's kernels; of other libraries none."""
        name = getattr(self._library, "openblas_get_corename", None)
        if name is None:
            return ""
        name.restype = ctypes.c_char_p
        return name().decode()

    def set_threads(self, threads: int) -> None:
        """Have the library use so many threads from now on."""
        self._threads = threads
        for name in ("openblas_set_num_threads", "MKL_Set_Num_Threads"):
            if hasattr(self._library, name):
                getattr(self._library, name)(threads)

    def sgemm(self, rows: int, inner: int, outer: int, weights: int = 0) -> None:
        """Multiply `rows` by the weights that begin at an element."""
        self._library.cblas_sgemm(
            ROW_MAJOR, PLAIN, TRANSPOSED, rows, outer, inner, Real(1.0), self._at(13), inner,
            self._at(weights), inner, Real(0.0), self._out, outer,
        )  # fmt: skip

    def sgemv(self, inner: int, outer: int, weights: int = 0) -> None:
        """Multiply one row by the weights that begin at an element."""
        self._library.cblas_sgemv(
            ROW_MAJOR, PLAIN, outer, inner, Real(1.0), self._at(weights), inner, self._at(13), 1,
            Real(0.0), self._out, 1,
        )  # fmt: skip

    def product(self, rows: int, inner: int, outer: int) -> bytes:
        """Return a product; of 0 rows: of one by `cblas_sgemv`."""
        if rows:
            self.sgemm(rows, inner, outer)
        else:
            self.sgemv(inner, outer)
        return ctypes.string_at(self._out, 4 * max(1, rows) * outer)

    def is_right(self, product: bytes, rows: int, inner: int, outer: int) -> bool:
        """Return whether some elements of a product are what plain sums say."""
        found, rows = memoryview(product).cast("f"), max(1, rows)
        for row, column in ((0, 0), (rows - 1, outer - 1), (rows // 2, outer // 3)):
            first, second = 13 + row * inner, column * inner
            pairs = zip(
                self._pool[first : first + inner],
                self._pool[second : second + inner],
                strict=True,
            )
            plain = fsum(x * y for x, y in pairs)
            # Written so that what is no number is wrong.
            if not abs(found[row * outer + column] - plain) <= TOLERANCE * inner:
                return False
        return True

    def is_even(self) -> bool:
        """Return whether a row has the same bits alone and among others."""
        one = self.product(1, INNER, OUTER)
        return all(self.product(rows, INNER, OUTER)[: len(one)] == one for rows in ROWS)

    def seconds(self, rows: int) -> float:
        """Return what a product of so many rows takes; 0 rows: one by `cblas_sgemv`.

        One thread's own time is taken, which other work hardly changes; of several all that passes.
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
    """Return the products (rows, inner, outer) that are checked."""
    timed = [(rows, INNER, OUTER) for rows in (0, *ROWS)]
    uneven = [(rows, *BITS[1][:2]) for rows in UNEVEN_ROWS]
    more = [(rows, inner, outer) for inner, outer, most in BITS for rows in ROWS if rows <= most]
    return timed + uneven + more


def main(path: str, counts: list[int], known: str) -> int:
    """Print what was found; return 1 where a product is wrong."""
    products = Products(path)
    if known and products.kernels == known:
        _tell({"kernels": known, "right": True, "share": 1.0, "threads": {}})
        return 0
    products.set_threads(1)
    plain = {shape: products.product(*shape) for shape in shapes()}
    right = all(products.is_right(found, *shape) for shape, found in plain.items())
    began, spent = time.perf_counter(), time.thread_time()
    table: dict[int, dict[str, object]] = {}
    for threads in counts if right else ():
        products.set_threads(threads)
        table[threads] = {
            "steady": all(products.product(*s) == found for s, found in plain.items() if s[0]),
            "even": products.is_even(),
            "seconds": {rows: products.seconds(rows) for rows in ROWS},
            "sgemv_s": products.seconds(0),
        }
    share = (time.thread_time() - spent) / (time.perf_counter() - began)
    _tell({"kernels": products.kernels, "right": right, "share": share, "threads": table})
    return 0 if right else 1


def _tell(found: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    numbers = [int(count) for count in sys.argv[2].split(",") if count]
    sys.exit(main(sys.argv[1], numbers, "".join(sys.argv[3:4])))
