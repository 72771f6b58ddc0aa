"""Two files that an operator writes next to `shoal.toml`: `tasks.toml` and `clients.toml`.

`tasks.toml` defines providers (other servers), and tasks: names for which the operator lists
several models, any of which can answer. `clients.toml` holds the profiles of clients. Pure. A
file is accepted or refused as a whole.
"""

from bus.models.tasks.clients import (
    CLIENTS_FILE,
    ClientKind,
    ClientName,
    ClientProfile,
    ClientTable,
    capped,
    read_clients,
)
from bus.models.tasks.reading import MOST_BYTES, FileTable
from bus.models.tasks.table import (
    TASKS_FILE,
    NamedTask,
    Provider,
    ProviderKind,
    ProviderModel,
    TaskTable,
    read_tasks,
)

__all__ = [
    "CLIENTS_FILE",
    "MOST_BYTES",
    "TASKS_FILE",
    "ClientKind",
    "ClientName",
    "ClientProfile",
    "ClientTable",
    "FileTable",
    "NamedTask",
    "Provider",
    "ProviderKind",
    "ProviderModel",
    "TaskTable",
    "capped",
    "read_clients",
    "read_tasks",
]
