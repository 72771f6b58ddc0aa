"""What `tasks.toml` says: names that several models may answer for, and where providers are asked.

Pure. The file is taken whole or refused whole.
"""

from bus.wire.tasks.table import (
    MOST_BYTES,
    TASKS_FILE,
    NamedTask,
    Provider,
    ProviderKind,
    ProviderModel,
    TaskTable,
    read_tasks,
)

__all__ = [
    "MOST_BYTES",
    "TASKS_FILE",
    "NamedTask",
    "Provider",
    "ProviderKind",
    "ProviderModel",
    "TaskTable",
    "read_tasks",
]
