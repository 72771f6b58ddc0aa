"""What a runner did last is known after it was killed (C16)."""

from __future__ import annotations

from typing import Any

from tests.harness.nodes import Node, eventually, kill


def test_c16_a_killed_runners_flight_recorder_is_kept_by_its_worker(node: Node) -> None:
    eventually(node.ready, 60, "the model is loaded")
    answered = node.chat("Hi.", max_tokens=4)
    assert answered.status_code == 200
    stream = node.stream("Tell me a long story.", max_tokens=500, ignore_eos=True).flowing()
    _, pid = node.runner()
    kill(pid)

    def ended() -> list[dict[str, Any]]:
        """Return what diagnostics tell of that runner, which is gone."""
        told = node.http.get("/v1/diagnostics/node").json()
        return [one for one in told.get("ended", []) if one["pid"] == pid]

    (found,) = eventually(ended, 30, "diagnostics tell of the runner that was killed")
    request = answered.json()["id"].removeprefix("chatcmpl-")
    phases = [one["phase"] for one in found["recorder"] if one.get("request_id") == request]
    assert phases[0] == "task_submission" and phases[-1] == "completion", found["recorder"]
    open_ones = {one.get("request_id") for one in found["recorder"]} - {request, None}
    assert open_ones, "the request that was open when it was killed is there too"
    assert found["exit_code"] != 0 and found["instance"]
    stream.wait(60)
    eventually(node.ready, 60, "the node serves again")
