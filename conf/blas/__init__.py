"""Talks to the disk and to child processes: how runners on a Linux CPU multiply matrices.

MLX's CPU backend on Linux multiplies float32 matrices with the `cblas_sgemm` that the loader finds
first; its own is some 40 times slower on prompts than OpenBLAS. Runners are therefore started with
a better one preloaded. Which one, how many threads and which kernels are right differs by machine:
it is measured at the first start and remembered (`measure`), chosen by rules without surprises
(`choice`), and never guessed. On macOS nothing of this is used.
"""

from conf.blas.choice import Choice, choose, told, told_gains
from conf.blas.libraries import INSTALL_HINT, usable_cores
from conf.blas.measure import Outcome, known_blas, prepared_blas

__all__ = [
    "INSTALL_HINT",
    "Choice",
    "Outcome",
    "choose",
    "known_blas",
    "prepared_blas",
    "told",
    "told_gains",
    "usable_cores",
]
