"""What a gateway tells of a cluster, for tests of how it is shown."""

from __future__ import annotations

from typing import Any

BOUNDS: list[float | None] = [0.1, 0.2, 0.4, None]
OK = {"status": "ok", "code": "ok", "message": "", "remediation": ""}
FULL = {
    "status": "error",
    "code": "disk",
    "message": "2 % of the disk is free",
    "remediation": "remove models with `shoal rm`",
}


def histogram(*counts: int) -> dict[str, Any]:
    return {"bounds": BOUNDS, "counts": list(counts), "sum": 1.0}


def counters(ended: int = 0, errors: int = 0, ttft: tuple[int, ...] = (0, 0, 0, 0)) -> Any:
    return {
        "requests": {"stop": ended},
        "prompt_tokens": 5 * ended,
        "generation_tokens": 9 * ended,
        "http_errors": errors,
        "ttft_s": histogram(*ttft),
        "itl_s": histogram(ended, 0, 0, 0),
    }


def node(name: str, **more: Any) -> dict[str, Any]:
    return {
        "node": f"id-{name}",
        "name": name,
        "draining": False,
        "silent_s": 0.4,
        "health": OK,
        "cpu_ratio": 0.25,
        "load_1m": 1.0,
        "memory_total_bytes": 16_000_000_000,
        "memory_available_bytes": 8_000_000_000,
        "disk_total_bytes": 10,
        "disk_free_bytes": 5,
        "promised_bytes": 6_000_000_000,
        "used_bytes": 4_000_000_000,
        **more,
    }


def copy(model: str, nodes: tuple[str, ...] = ("reef",), **more: Any) -> dict[str, Any]:
    return {
        "instance": f"inst-{model}",
        "model": model,
        "status": "ready",
        "why": "",
        "pinned": False,
        "ranks": [
            {"rank": at, "node": f"id-{name}", "promised_bytes": 2_000_000, "used_bytes": 1_000_000}
            for at, name in enumerate(nodes)
        ],
        "phase": "ready",
        "loaded_bytes": 0,
        "to_load_bytes": 0,
        "running": 3,
        "waiting": 0,
        "max_running": 32,
        "generation_tokens_per_s": 42.4,
        "kv_bytes": 10,
        "kv_limit_bytes": 100,
        **more,
    }


def cluster(
    nodes: list[dict[str, Any]], copies: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    return {
        "at_s": 0.0,
        "node": "id-reef",
        "term": 4,
        "index": 12,
        "holder": "id-reef",
        "live": True,
        "running": 3,
        "waiting": 0,
        "prompt_tokens_per_s": 7.25,
        "generation_tokens_per_s": 142.4,
        "kv_bytes": 12_000_000,
        "kv_limit_bytes": 1_200_000_000,
        "nodes": nodes,
        "instances": copies,
        "pulls": [],
        "counters": counters(),
        **more,
    }


def wait(model: str, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "kind": "demand",
        "priority": 5,
        "standing": 5.0,
        "waited_s": 7.0,
        "phase": "evicting",
        "why": "other makes way, after 2 answers",
        "ahead": 0,
        "victims": ["inst-other"],
        "nodes": ["id-reef"],
        "ready_in_s": 12.0,
        "within_s": None,
        **more,
    }


def queued(model: str, priority: int, waiting: int, at: str = "gateway") -> dict[str, Any]:
    oldest = 3.0 if at == "gateway" else None
    return {
        "priority": priority, "model": model, "at": at, "waiting": waiting, "oldest_s": oldest,
    }  # fmt: skip


def pool(**more: Any) -> dict[str, Any]:
    return {"holder": "id-reef", "waits": [], "copies": [], "pins": [], "queue": [], **more}
