"""Talks to MLX: applies LoRA adapters to a loaded model. Each row of a forward pass can have a
different adapter.

All arrays belong to the engine's thread. If no row of a forward pass has an adapter, the layers use
the same kernels as a model without adapters, so the result is the same.
"""

from runner.mlx.adapters.bank import AdapterBank
from runner.mlx.adapters.load import adapter_folders, load_adapters

__all__ = ["AdapterBank", "adapter_folders", "load_adapters"]
