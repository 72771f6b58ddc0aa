"""LoRA adapters as they lie on disks: which files they have, and by what rule those are read.

Pure. mlx-lm's and PEFT's formats are known. The worker, which lists adapters, and the runner, which
applies them, read files by this one rule; what cannot be applied is refused with the reason.
"""

from bus.wire.lora.files import (
    CONFIG_FILE,
    FOLDER,
    MAX_ADAPTERS,
    MAX_CONFIG_BYTES,
    MAX_HEADER_BYTES,
    MAX_RANK,
    WEIGHTS_FILES,
    AdapterFiles,
    BadAdapter,
    Pair,
    adapter_files,
    config_in,
    is_adapter_name,
    no_such_adapter,
    shapes_in,
    stacked_bytes,
)

__all__ = [
    "CONFIG_FILE",
    "FOLDER",
    "MAX_ADAPTERS",
    "MAX_CONFIG_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_RANK",
    "WEIGHTS_FILES",
    "AdapterFiles",
    "BadAdapter",
    "Pair",
    "adapter_files",
    "config_in",
    "is_adapter_name",
    "no_such_adapter",
    "shapes_in",
    "stacked_bytes",
]
