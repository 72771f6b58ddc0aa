from __future__ import annotations

from pathlib import Path

import pytest

from bus.process.endpoints import Endpoints
from conf.paths import MAX_ROOT_BYTES, runtime_root

TMP = Path("/private/tmp")


@pytest.mark.parametrize("name", ["ann", "a" * 40])
def test_a_macs_runtime_folders_lie_where_nothing_is_swept_and_sockets_stay_short(
    name: str,
) -> None:
    cache = Path(f"/Users/{name}/Library/Caches/shoal")
    root = runtime_root("darwin", TMP, cache, 501)
    assert root == (cache if len(str(cache)) <= MAX_ROOT_BYTES else TMP / "shoal-501")
    assert root == cache or len(name) == 40
    endpoints = Endpoints(str(root / "0123456789"))
    assert endpoints.stacks("runner:99") and endpoints.gateway(63) and endpoints.supervisor


def test_elsewhere_they_lie_in_the_temporary_folder() -> None:
    assert runtime_root("linux", Path("/tmp"), Path("/home/ann/.cache/shoal"), 7) == Path(
        "/tmp/shoal-7"
    )
