"""Talks to the open answers of providers: lists them for `/queue`, and stops them.

An answer is open from the moment its request is sent until its connection is released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bus.models.tasks import ProviderModel
from bus.wire.calls.processes import OpenRequestRow
from bus.wire.ids import RequestId
from gateway.fetching.providers.answer import ProviderAnswer, ProviderConnections
from gateway.fetching.providers.call import ProviderFailed


@dataclass(frozen=True, slots=True)
class OpenProviderRequest:
    """An open answer of a provider.

    `provided`: the model that answers. `client`: the name that the client sends. `since_at`: when
    the request arrived. `answer`: the bytes of the answer. `tokens`: counts the tokens so far.
    `begun`: returns whether the answer has begun. `cancel`: ends the request for its client.
    """

    request: RequestId
    provided: ProviderModel
    client: str | None
    priority: int
    since_at: float
    answer: ProviderAnswer = field(repr=False)
    tokens: Callable[[], int] = field(repr=False)
    begun: Callable[[], bool] = field(repr=False)
    cancel: Callable[[], None] = field(repr=False)


class OpenAnswers:
    """The open answers of one HTTP process, and its connections to providers."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.connections = ProviderConnections()
        self._now = now
        self._by_id: dict[RequestId, OpenProviderRequest] = {}

    def add(self, opened: OpenProviderRequest) -> None:
        self._by_id[opened.request] = opened

    def discard(self, request_id: RequestId) -> None:
        """Forget an answer that has ended."""
        self._by_id.pop(request_id, None)

    def cancel(self, request_id: RequestId) -> bool:
        """Stop an answer and close its connection. Return False if no such answer is open."""
        opened = self._by_id.get(request_id)
        if opened is None:
            return False
        opened.cancel()
        return True

    def stop_all(self, why: ProviderFailed) -> None:
        """End all open answers with this failure."""
        for opened in list(self._by_id.values()):
            opened.answer.stop(why)

    def rows(self) -> tuple[OpenRequestRow, ...]:
        now = self._now()
        return tuple(
            OpenRequestRow(
                request=str(opened.request),
                model=opened.provided.name,
                client=opened.client,
                priority=opened.priority,
                instance=None,
                provider=opened.provided.provider,
                waiting=not opened.begun(),
                tokens=opened.tokens(),
                seconds=round(now - opened.since_at, 3),
            )
            for opened in self._by_id.values()
        )
