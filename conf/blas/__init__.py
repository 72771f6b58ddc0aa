"""Talks to the disk and to child processes: chooses the BLAS library that runners on a Linux CPU
preload.

MLX's CPU backend on Linux multiplies float32 matrices with the first `cblas_sgemm` that the loader
finds. MLX's own `cblas_sgemm` is about 40 times slower on prompts than OpenBLAS, so runners preload
a better library. Which library, number of threads and kernels are best differs by machine. The
first start measures them and stores the results (`measure`); fixed rules then choose (`choice`).
macOS does not use this room.
"""

from conf.blas.choice import Choice, choose, told, told_gains
from conf.blas.libraries import INSTALL_HINT, usable_cores
from conf.blas.measure import Outcome, known_blas, prepared_blas
from conf.blas.runners import publish_blas
from conf.blas.table import told_measurement

__all__ = [
    "INSTALL_HINT",
    "Choice",
    "Outcome",
    "choose",
    "known_blas",
    "prepared_blas",
    "publish_blas",
    "told",
    "told_gains",
    "told_measurement",
    "usable_cores",
]
