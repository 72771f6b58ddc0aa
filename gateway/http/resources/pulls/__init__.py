"""Talks to clients about models on disk: search a hub, pull models from it, copy models between
nodes, edit a card, verify files, and delete fetched models.
"""

from gateway.http.resources.pulls.card import CardBody, ModelCardResource
from gateway.http.resources.pulls.listing import (
    PullChangeAnswer,
    PullChangeBody,
    PullList,
    PullOfPath,
    PullsAnswer,
)
from gateway.http.resources.pulls.plan import PullPlan
from gateway.http.resources.pulls.pull import (
    AddBody,
    AddModel,
    ModelToFetch,
    PullAnswer,
    PullBody,
    PullEvent,
    PullModel,
)
from gateway.http.resources.pulls.search import SearchAnswer, SearchModels
from gateway.http.resources.pulls.store import (
    DownloadBody,
    ModelInStore,
    PurgeBody,
    PurgeStaging,
    StorageResource,
    StoreHealth,
    StoreRegistry,
)
from gateway.http.resources.pulls.stored import (
    ModelInStoreAnswer,
    PurgeAnswer,
    RegistryAnswer,
    StorageAnswer,
    StoreHealthAnswer,
)
from gateway.http.resources.pulls.sync import SyncBody, SyncEnd, SyncLine, SyncModels
from gateway.http.resources.pulls.verify import VerifyBody, VerifyEvent, VerifyModel

__all__ = [
    "AddBody",
    "AddModel",
    "CardBody",
    "DownloadBody",
    "ModelCardResource",
    "ModelInStore",
    "ModelInStoreAnswer",
    "ModelToFetch",
    "PullAnswer",
    "PullBody",
    "PullChangeAnswer",
    "PullChangeBody",
    "PullEvent",
    "PullList",
    "PullModel",
    "PullOfPath",
    "PullPlan",
    "PullsAnswer",
    "PurgeAnswer",
    "PurgeBody",
    "PurgeStaging",
    "RegistryAnswer",
    "SearchAnswer",
    "SearchModels",
    "StorageAnswer",
    "StorageResource",
    "StoreHealth",
    "StoreHealthAnswer",
    "StoreRegistry",
    "SyncBody",
    "SyncEnd",
    "SyncLine",
    "SyncModels",
    "VerifyBody",
    "VerifyEvent",
    "VerifyModel",
]
