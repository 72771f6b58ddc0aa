"""A runner is looked into through HTTP while it streams, and the stream is none the worse."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.cli.verbs.models.bench_math import percentiles
from tests.harness.nodes import Node, Stream, eventually

STORY = "Tell me a long story about a fish."
PROFILE_S = 2.0
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def may_trace(node: Node) -> None:
    can = node.http.get("/v1/diagnostics/node").json()["diagnosis"]
    if not can["py_spy"]:
        pytest.skip(f"py-spy may not be used here: {can['reason']}")


def long_stream(node: Node) -> Stream:
    return node.stream(STORY, max_tokens=600, ignore_eos=True).flowing()


def itl_ms(stream: Stream) -> dict[str, float]:
    gaps = zip(stream.at, stream.at[1:], strict=False)
    return percentiles([(later - earlier) * 1000 for earlier, later in gaps])


def post_profile(node: Node, process: str) -> httpx.Response:
    order = {"seconds": PROFILE_S, "format": "speedscope"}
    path = f"/v1/diagnostics/node/processes/{process}/profile"
    return node.http.post(path, json=order, timeout=60.0)


def post_until_taken(node: Node, process: str) -> httpx.Response:
    """Ask for a profile again for as long as another look comes before it."""

    def taken() -> httpx.Response | None:
        found = post_profile(node, process)
        return None if found.status_code == 429 else found

    return eventually(taken, 30, "a profile is taken")


def test_stacks_and_a_profile_show_the_engine_and_the_stream_is_none_the_worse(
    node: Node,
) -> None:
    process, _ = node.runner()
    alone = long_stream(node).wait(180)

    looked_at = long_stream(node)
    found = node.http.get(f"/v1/diagnostics/node/processes/{process}/stacks", timeout=60.0)
    assert found.status_code == 200, found.text
    profiled = post_profile(node, process)
    assert profiled.status_code == 200, profiled.text
    looked_at.wait(180)

    threads: list[dict[str, Any]] = found.json()["threads"]
    files = {frame["filename"] for thread in threads for frame in thread["frames"]}
    assert any("runner/lead/lead_loop" in file for file in files)
    frames = json.loads(profiled.content)["shared"]["frames"]
    assert any("runner/mlx" in frame["file"] for frame in frames)
    assert looked_at.error is None and looked_at.done
    assert (looked_at.text, looked_at.finish) == (alone.text, alone.finish)
    figures = {"ITL alone (ms)": itl_ms(alone), "ITL looked at (ms)": itl_ms(looked_at)}
    print(json.dumps(figures))


def test_a_second_look_at_the_same_time_is_told_to_come_back(node: Node) -> None:
    process, _ = node.runner()
    path = f"/v1/diagnostics/node/processes/{process}/stacks"

    def busy() -> httpx.Response | None:
        found = node.http.get(path, timeout=60.0)
        return found if found.status_code == 429 else None

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post_until_taken, node, process)
        refused = eventually(busy, 30, "the second is refused while the first goes on")
        assert "another examination" in refused.json()["error"]["message"]
        assert first.result(60).status_code == 200
    assert node.http.get(path, timeout=60.0).status_code == 200
