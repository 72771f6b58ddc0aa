"""Talks to one BLAS library: measures its products in a process of its own, and checks them.

    python -I -S conf/blas/probe.py LIBRARY THREADS,THREADS... [SECONDS [KERNELS]]

It uses only the standard library, so that it starts fast. A library that crashes ends only this
process. An empty LIBRARY means the preloaded one. Without THREADS the products are checked but not
timed. Timing takes at most about SECONDS. If the library chose KERNELS, nothing is measured.

A product during which a thread of this process waited for a core is *disturbed*. Only the times of
undisturbed products count, so a busy machine makes the measurement longer, not wrong. Prints one
JSON object:

- `kernels`, their name; `right`: all products are right
- `waited`: the share of the measurement for which a thread waited for a core, on average
- `threads`, by number: the undisturbed times of a product by its rows (`seconds`); 0 is one row
  through `cblas_sgemv`. `steady`: the products have the bits of one thread's. `even`: one row has
  the same bits alone and among others.
"""

from __future__ import annotations

import ctypes
import json
import os
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
SAMPLES = 5
"""So many undisturbed products are timed."""
LEAST_SAMPLES = 5
"""Fewer of them are useless. The products of one thread then count even if they were disturbed."""
USUAL_S = 2.0
CALM = 0.02
"""A product is undisturbed if threads waited for less than this share of its time."""
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

    def seconds(self, rows: int, waits: Waits, most_s: float) -> list[float]:
        """Return undisturbed times of a product of `rows` rows; 0: of one row, by `cblas_sgemv`.

        It is CPU time for one thread, which other work hardly changes, and wall time for several.
        Takes about `most_s` at most, if other programs disturb it.
        """
        clock = time.thread_time if self._threads == 1 else time.perf_counter
        size = INNER * OUTER
        calm: list[float] = []
        disturbed: list[float] = []
        count, end_at = len(self._pool) // size - 1, time.perf_counter() + most_s
        self.multiply(rows, 0)
        for number in range(1, 1 << 16):
            waited_s, began = waits.total_s(), clock()
            self.multiply(rows, size * (number % count))
            took_s, waited_s = clock() - began, waits.total_s() - waited_s
            (calm if waited_s <= CALM * took_s else disturbed).append(took_s)
            is_late = number >= LEAST_SAMPLES and time.perf_counter() > end_at
            if len(calm) == SAMPLES or is_late:
                break
        if self._threads == 1 and len(calm) < LEAST_SAMPLES:
            return calm + disturbed
        return calm

    def multiply(self, rows: int, weights: int) -> None:
        """Compute a timed product; 0 rows: of one row, by `cblas_sgemv`."""
        if rows:
            self.sgemm(rows, INNER, OUTER, weights)
        else:
            self.sgemv(INNER, OUTER, weights)

    def _at(self, offset: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._address + 4 * offset)


class Waits:
    """The time for which the threads of this process waited for a core. Without Linux's
    `schedstat` it is the time that the first thread did not compute: OpenBLAS's threads compute
    while they wait for each other."""

    def __init__(self) -> None:
        self._files: list[int] = []
        try:
            tasks = [f"/proc/self/task/{task}/schedstat" for task in os.listdir("/proc/self/task")]
            self._files += [os.open(path, os.O_RDONLY) for path in tasks]
        except OSError:
            self._files = []

    @property
    def threads(self) -> int:
        """Return the number of threads that are observed."""
        return max(1, len(self._files))

    def total_s(self) -> float:
        """Return the sum over all threads."""
        if not self._files:
            return time.perf_counter() - time.thread_time()
        return sum(int(os.pread(file, 64, 0).split()[1]) for file in self._files) / 1e9


def shapes() -> list[tuple[int, int, int]]:
    """Return the checked products: (rows, inner, outer)."""
    timed = [(rows, INNER, OUTER) for rows in (0, *ROWS)]
    uneven = [(rows, *BITS[1][:2]) for rows in UNEVEN_ROWS]
    more = [(rows, inner, outer) for inner, outer, most in BITS for rows in ROWS if rows <= most]
    return timed + uneven + more


def main(path: str, counts: list[int], most_s: float, known_kernels: str) -> int:
    """Print the report; return 1 if a product is wrong."""
    products = Products(path)
    if known_kernels and products.kernels == known_kernels:
        _print({"kernels": known_kernels, "right": True, "waited": 0.0, "threads": {}})
        return 0
    products.set_threads(1)
    plain = {shape: products.product(*shape) for shape in shapes()}
    right = all(products.is_right(bits, *shape) for shape, bits in plain.items())
    if not counts or not right:
        _print({"kernels": products.kernels, "right": right, "waited": 0.0, "threads": {}})
        return 0 if right else 1
    each_s = most_s / (len(counts) * (1 + len(ROWS)))
    table: dict[int, dict[str, object]] = {}
    began = time.perf_counter()
    products.set_threads(counts[-1])
    products.multiply(ROWS[-1], 0)  # a library may start its threads only now
    waits = Waits()
    waited_s = waits.total_s()
    for threads in counts:
        products.set_threads(threads)
        table[threads] = {
            "steady": all(products.product(*s) == bits for s, bits in plain.items() if s[0]),
            "even": products.is_even(),
            "seconds": {rows: products.seconds(rows, waits, each_s) for rows in (0, *ROWS)},
        }
    share = (waits.total_s() - waited_s) / (time.perf_counter() - began) / waits.threads
    _print({"kernels": products.kernels, "right": True, "waited": share, "threads": table})
    return 0


def _print(report: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    numbers = [int(count) for count in sys.argv[2].split(",") if count]
    seconds = float(sys.argv[3]) if sys.argv[3:] else USUAL_S
    sys.exit(main(sys.argv[1], numbers, seconds, "".join(sys.argv[4:5])))
