"""LoRA adapters on disk: which files they have, and how to read them.

Pure. It reads the formats of mlx-lm and PEFT. The worker lists adapters by these rules, and the
runner applies adapters by the same rules. An adapter that cannot be applied is refused with the
reason.
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
