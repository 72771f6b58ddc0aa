"""Talks to MLX: measures the engine for `shoal selftest`; the command line judges the results.

Each measurement runs in a process of its own and writes one JSON document. The engine comes from
the composition root, so this room knows only the engine's interface.
"""

from runner.mlx.selftest.measure import EngineLoader, run_measurement

__all__ = ["EngineLoader", "run_measurement"]
