"""Three files that an operator writes next to `shoal.toml`: `tasks.toml`, `clients.toml` and
`engines.toml`.

`tasks.toml` defines providers (other servers), and tasks: names for which the operator lists
several models, any of which can answer. `clients.toml` holds the profiles of clients.
`engines.toml` has programs that a node starts to serve a model. Pure. A file is accepted or refused
as a whole.
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
from bus.models.tasks.engines import (
    COMMAND_DTYPE,
    COMMAND_TAG,
    ENGINES_FILE,
    ENVIRONMENT_NAME,
    CommandEngine,
    EngineTable,
    lack_of,
    read_engines,
)
from bus.models.tasks.reading import MOST_BYTES, FileTable
from bus.models.tasks.table import (
    TASKS_FILE,
    NamedTask,
    Provider,
    ProviderKind,
    ProviderModel,
    SpillingModel,
    SpillOver,
    TaskTable,
    read_tasks,
)

__all__ = [
    "CLIENTS_FILE",
    "COMMAND_DTYPE",
    "COMMAND_TAG",
    "ENGINES_FILE",
    "ENVIRONMENT_NAME",
    "MOST_BYTES",
    "TASKS_FILE",
    "ClientKind",
    "ClientName",
    "ClientProfile",
    "ClientTable",
    "CommandEngine",
    "EngineTable",
    "FileTable",
    "NamedTask",
    "Provider",
    "ProviderKind",
    "ProviderModel",
    "SpillOver",
    "SpillingModel",
    "TaskTable",
    "capped",
    "lack_of",
    "read_clients",
    "read_engines",
    "read_tasks",
]
