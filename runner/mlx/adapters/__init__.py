"""Talks to MLX: LoRA adapters of a loaded model, applied per row within one forward.

All arrays belong to the engine's thread. A forward gets the adapter of each row. If no row has one,
layers compute the same result by the same kernels as without adapters.
"""

from runner.mlx.adapters.bank import AdapterBank
from runner.mlx.adapters.load import adapter_folders, load_adapters

__all__ = ["AdapterBank", "adapter_folders", "load_adapters"]
