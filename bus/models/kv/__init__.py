"""Talks to the disk: the files with the KV of long prompts, their folder, and the hashes that name
them.

Runners write and read the files. Workers delete them, and copy them between nodes (decisions 0099
and 0106).
"""

from bus.models.kv.files import (
    UNFINISHED,
    KvFile,
    KvLimits,
    delete_gone,
    evict,
    files_mark,
    kv_files,
    kv_key,
    kv_root,
    make_private,
    model_folder,
    purge,
    run_of,
    run_path,
)
from bus.models.kv.run_file import (
    BadRun,
    StoredPart,
    Unwanted,
    check_run,
    read_header,
    read_parts,
    write_run,
)
from bus.models.kv.runs import (
    DiskOrder,
    DiskReport,
    DiskRun,
    KvKey,
    PrefixDisk,
    RunNews,
    RunQuestion,
)
from bus.models.kv.token_chain import (
    BLOCK_TOKENS,
    TokenChain,
    kept_apart,
    shared_blocks,
    short_hashes,
)

__all__ = [
    "BLOCK_TOKENS",
    "UNFINISHED",
    "BadRun",
    "DiskOrder",
    "DiskReport",
    "DiskRun",
    "KvFile",
    "KvKey",
    "KvLimits",
    "PrefixDisk",
    "RunNews",
    "RunQuestion",
    "StoredPart",
    "TokenChain",
    "Unwanted",
    "check_run",
    "delete_gone",
    "evict",
    "files_mark",
    "kept_apart",
    "kv_files",
    "kv_key",
    "kv_root",
    "make_private",
    "model_folder",
    "purge",
    "read_header",
    "read_parts",
    "run_of",
    "run_path",
    "shared_blocks",
    "short_hashes",
    "write_run",
]
