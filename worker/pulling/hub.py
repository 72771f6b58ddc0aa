"""Talks to a hub through `huggingface_hub`, and is the only user of it: the contents and addresses
of repositories.

The library reads its own variables (HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_OFFLINE)
and finds the token of `hf auth login`. It downloads nothing. The size of a hub's answers is
limited.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_url, set_client_factory
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ExpandModelProperty_T, ModelInfo
from huggingface_hub.utils import build_hf_headers  # pyright: ignore[reportUnknownVariableType]

from bus.models.gguf import repository_of
from bus.wire.ids import ModelId
from worker.pulling.failures import (
    failure_of,
    gated,
    no_repository,
    no_revision,
    retry_after_of,
    search_failure,
    unreachable,
)
from worker.pulling.listing import HubFile, HubListing, ListedFile, PullFailed, listing_of
from worker.pulling.searching import HubModel

LIST_S = 20.0
LIST_WHOLE_S = 60.0
MAX_LISTING_BYTES = 32 << 20
OFFLINE = "HF_HUB_OFFLINE is set: shoal does not contact the hub"
SHOWN: tuple[ExpandModelProperty_T, ...] = (
    "config", "downloads", "gated", "gguf", "lastModified", "library_name", "likes",
    "pipeline_tag", "safetensors", "siblings", "tags",
)  # fmt: skip
"""The fields that a search requests of each model."""


class _Bounded(httpx2.SyncByteStream):
    """An HTTP answer whose reading fails if it is too long or takes too long."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream
        self._ends_at = time.monotonic() + LIST_WHOLE_S

    def __iter__(self) -> Iterator[bytes]:
        count = 0
        for part in self._stream:
            count += len(part)
            if count > MAX_LISTING_BYTES:
                text = f"the hub's list is larger than {MAX_LISTING_BYTES >> 20} MiB"
                raise PullFailed("changed", text)
            if time.monotonic() > self._ends_at:
                raise unreachable(f"the list of files took more than {LIST_WHOLE_S:g} s")
            yield part

    def close(self) -> None:
        self._stream.close()


class _BoundedTransport(httpx2.HTTPTransport):
    """A transport for HTTP whose answers are limited in size and time. It requests lists
    uncompressed."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        answer = super().handle_request(request)
        if answer.headers.get("content-encoding", "identity") != "identity":
            answer.close()
            raise PullFailed("changed", "the hub compressed its list without being asked to")
        if isinstance(answer.stream, httpx2.SyncByteStream):
            answer.stream = _Bounded(answer.stream)
        return answer


class _SearchTransport(_BoundedTransport):
    """Connections for a search, which a person waits for: errors are reported at once, where
    `huggingface_hub` would retry for minutes."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer to a request. Raises PullFailed for any error status."""
        address = f"{request.url.scheme}://{request.url.netloc.decode()}"
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), LIST_S)
        try:
            answer = super().handle_request(request)
        except httpx2.HTTPError as error:
            raise unreachable(f"{address}: {error or type(error).__name__}") from None
        if answer.status_code >= 400:
            after_s = retry_after_of(answer.headers, time.time())
            answer.close()
            has_token = "authorization" in request.headers
            raise search_failure(answer.status_code, after_s, address, has_token=has_token)
        return answer


def _search_client() -> httpx2.Client:
    return httpx2.Client(follow_redirects=True, transport=_SearchTransport(trust_env=True))


def _client() -> httpx2.Client:
    transport = _BoundedTransport(trust_env=True)
    return httpx2.Client(follow_redirects=True, timeout=LIST_S, transport=transport)


class Hub:
    """The hub that the environment variables of this process name."""

    def __init__(self) -> None:
        set_client_factory(_client)
        self.address = constants.ENDPOINT.rstrip("/")
        self._api = HfApi(library_name="shoal")

    def headers(self) -> dict[str, str]:
        """Return the headers of requests to the hub: user agent and token."""
        made: dict[str, str] = build_hf_headers(library_name="shoal")
        return made

    def list(self, name: ModelId, revision: str, memory_bytes: int = 0) -> HubListing:
        """Return the needed files of a model, at a branch, tag or commit ("": the newest), for a
        node with this memory (0: no limit). Raises PullFailed."""
        model = repository_of(name)[0]
        if constants.is_offline_mode():
            raise PullFailed("offline", OFFLINE)
        try:
            info = self._api.model_info(
                model, revision=revision or None, files_metadata=True, timeout=LIST_S
            )
        except GatedRepoError:
            raise gated(model, self.address, has_token=bool(get_token())) from None
        except (RepositoryNotFoundError, DisabledRepoError) as error:
            status = error.response.status_code
            raise no_repository(model, self.address, status, has_token=bool(get_token())) from None
        except RevisionNotFoundError:
            raise no_revision(model, revision, self.address) from None
        except HFValidationError as error:
            raise PullFailed(
                "bad_name", f"{model} is not a valid repository name: {error}"
            ) from None
        except HfHubHTTPError as error:
            answer = error.response
            raise failure_of(
                answer.status_code, retry_after_of(answer.headers, time.time()), model, self.address
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise unreachable(f"{self.address}: {error or type(error).__name__}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            text = (
                f"cannot parse the answer of {self.address} about {model}: {type(error).__name__}"
            )
            raise PullFailed("changed", text) from None
        listed = [
            ListedFile(
                str(sibling.rfilename),
                sibling.size if sibling.lfs is None else sibling.lfs.size,
                None if sibling.lfs is None else str(sibling.lfs.sha256),
                sibling.blob_id,
            )
            for sibling in info.siblings or ()
        ]
        return listing_of(name, str(info.sha), listed, memory_bytes)

    def search(self, words: str, author: str, tag: str, most: int) -> list[HubModel]:
        """Return the models with a tag whose names contain the words, most downloads first. Raises
        PullFailed."""
        if constants.is_offline_mode():
            raise PullFailed("offline", OFFLINE)
        set_client_factory(_search_client)
        try:
            results = list(
                self._api.list_models(
                    search=words or None,
                    author=author or None,
                    filter=tag,
                    sort="downloads",
                    limit=most,
                    expand=list(SHOWN),
                )
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise unreachable(f"{self.address}: {error or type(error).__name__}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            text = f"cannot parse the search results of {self.address}: {type(error).__name__}"
            raise PullFailed("changed", text) from None
        return [_hub_model(result) for result in results]

    def url_of(self, listing: HubListing, file: HubFile) -> str:
        """Return the address of a file in a listing."""
        repository, path = listing.repository, file.source or file.path
        return hf_hub_url(repository, path, revision=listing.commit, endpoint=self.address)


def _hub_model(info: ModelInfo) -> HubModel:
    """Return a model from a hub's list, with checked types."""
    parameters: Any = info.safetensors.parameters if info.safetensors else {}
    counts = cast(dict[Any, Any], parameters) if isinstance(parameters, dict) else {}
    config: Any = vars(info).get("config")
    gguf: Any = vars(info).get("gguf")
    changed = info.last_modified
    return HubModel(
        name=str(info.id),
        tags=frozenset(map(str, info.tags or ())),
        library=str(info.library_name or ""),
        task=str(info.pipeline_tag or ""),
        config=cast(dict[str, Any], config) if isinstance(config, dict) else {},
        counts={str(kind): n for kind, n in counts.items() if isinstance(n, int) and n > 0},
        downloads=info.downloads or 0,
        likes=info.likes or 0,
        gated=bool(info.gated),
        changed_at="" if changed is None else changed.date().isoformat(),
        files=tuple(str(sibling.rfilename) for sibling in info.siblings or ()),
        gguf=cast(dict[str, Any], gguf) if isinstance(gguf, dict) else {},
    )
