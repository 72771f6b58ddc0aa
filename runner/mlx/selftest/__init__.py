"""Talks to MLX: measures the engine for `shoal selftest`. The command line judges the results.

Each measurement runs in a process of its own and writes one JSON document. The composition root
passes a function that loads an engine, so this room depends only on the engine's interface.
"""

from runner.mlx.selftest.measure import EngineLoader, run_measurement

__all__ = ["EngineLoader", "run_measurement"]
