"""Talks to MLX: LoRA adapters beside a loaded model, applied row by row within one forward.

All arrays belong to the engine's thread. A forward is told which rows have which adapter; where
none has one, layers compute what they compute without adapters, by the same kernels.
"""

from runner.mlx.adapters.bank import AdapterBank
from runner.mlx.adapters.load import adapter_folders, load_adapters

__all__ = ["AdapterBank", "adapter_folders", "load_adapters"]
