"""What a runner sends reaches clients of every dialect, an event for each entry, many at once."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from gateway.dialects.api_table import Generates
from gateway.dialects.registry import APIS
from tests.bench.dialects_flat_out import Gateway, dialects, us_a_token
from tests.harness.gateway_testbed import gateway_testbed

TOKENS = 300
ASKED = dialects(f"tokens={TOKENS}")


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateway_testbed(processes=1) as made:
        made.runner()
        yield Gateway(made.port, psutil.Process(made.gateway.pid).children()[0].pid)


@pytest.mark.parametrize("name", ASKED)
def test_every_token_of_every_stream_is_one_event(gateway: Gateway, name: str) -> None:
    # counts the events, and raises where they are not as many as the tokens
    assert us_a_token(gateway, ASKED[name], 8, TOKENS) > 0


def test_every_dialect_that_streams_is_measured() -> None:
    paths = {
        endpoint.path
        for api in APIS
        for endpoint in api.endpoints
        if isinstance(endpoint, Generates)
    }
    assert {asked.path for asked in ASKED.values()} == {
        path
        for path in paths
        if not path.startswith("/v1/v1/") and (path.startswith("/v1/") or f"/v1{path}" not in paths)
    }
