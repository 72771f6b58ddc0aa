"""What the command line says and sends: every word true."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from conf.paths import bundled_models
from tests.harness.commands import CODE, forked
from tests.harness.node_server import card, instance, serving, state
from tests.harness.nodes import MODEL, TREE, Node, answered, eventually, shoal

WORD: list[Any] = [
    {"choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
    "data: [DONE]\n\n",
]


def typed(url: str, *words: str, say: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line of the inspected tree against the node at `url`, `say` piped in."""
    with tempfile.TemporaryDirectory(prefix="shoal-test-") as home:
        env = {**os.environ, "NO_COLOR": "1", "SHOAL_HOME": home}
        return forked(*words, "--url", url, env=env, timeout=60, cwd=home, say=say)


def told(index: int, *loaded: Any) -> dict[str, Any]:
    """Return `GET /state` of a node that has read the log up to `index`."""
    instances = {str(one.instance): one.model_dump(mode="json") for one in loaded}
    return {
        "state": {"term": 1, "holder": "n1", "index": index, "instances": instances},
        "node": "n1",
        "holder": "n1",
        "live": True,
        "telemetry": {"nodes": {}, "runners": [], "cards": [], "peers": {}},
        "nodeHealth": {},
    }


def test_what_is_piped_in_follows_the_prompt() -> None:
    asked: list[Any] = []

    def answer(_method: str, _path: str, body: dict[str, Any]) -> Any:
        asked.append(body["messages"])
        return WORD

    with serving(answer) as url:
        both = typed(url, "run", "m", "Summarise this:", say="the tide came in\n")
        alone = typed(url, "run", "m", "hello")
    assert (both.returncode, alone.returncode) == (0, 0), both.stderr + alone.stderr
    said = [one[-1]["content"] for one in asked]
    assert said == ["Summarise this:\n\nthe tide came in", "hello"]


def test_a_model_is_not_called_removed_before_its_placement_is_read() -> None:
    states = [told(3), told(4), told(7, instance("m", "placed")), told(8, instance("m"))]

    def answer(method: str, path: str, _body: dict[str, Any]) -> Any:
        if path == "/place_instance":
            return 200, {"model": "m", "instance": "inst-m", "term": 1, "index": 7}
        return 200, states.pop(0) if len(states) > 1 else states[0]

    with serving(answer) as url:
        found = typed(url, "place", "m")
    assert found.returncode == 0, found.stderr
    assert "m is ready" in found.stdout


SPY = """
import sys, time
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            print("loads", flush=True)
            time.sleep(20)
sys.meta_path.insert(0, Spy())
from gateway.cli.app import main
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["typer", "pydantic", "rich.console", "httpx2"])
def test_an_interrupt_while_it_loads_is_no_traceback(name: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", SPY.format(name=name), "ps", "--url", "http://127.0.0.1:9"],
        # A test run in the background may have been told to ignore Ctrl-C; a user has not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TREE), "SHOAL_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "loads\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert "Traceback" not in said, said
    assert process.returncode == 130


def test_help_loads_what_it_shows_and_no_more() -> None:
    program = [sys.executable, "-X", "importtime", "-P", "-c", CODE, "--help"]
    env = {**os.environ, "PYTHONPATH": str(TREE)}
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"typer", "gateway.cli.app"} <= loaded
    heavy = {"httpx", "httpx2", "pydantic", "rich", "psutil", "supervisor", "zmq", "conf.settings"}
    assert not heavy & loaded, heavy & loaded
    assert not [name for name in loaded if name.startswith("gateway.cli.verbs.")]


def test_version_and_help_are_words() -> None:
    for words, wanted in (
        (("--version",), "shoal "),
        (("version",), "shoal "),
        (("help",), "Usage"),
        (("help", "run"), "--temperature"),
    ):
        done = shoal(*words)
        assert done.returncode == 0 and wanted in done.stdout, (words, done.stderr)


@pytest.mark.parametrize("words", [("logs",), ("tap", "--for", "0"), ("doctor",)])
def test_an_address_is_obeyed_or_refused(words: tuple[str, ...]) -> None:
    with serving(lambda *_: (200, told(1))) as url:
        found = typed(url, *words)
        assert found.returncode == 2 and "--url" in found.stderr, (found.returncode, found.stderr)


def test_status_at_an_address_is_of_the_node_there() -> None:
    process = {
        "name": "bus", "pid": 77, "status": "running", "cpu_s": 1.0, "cpu_ratio": 0.0,
        "resident_bytes": 1, "threads": 2, "uptime_s": 600.0, "description": "",
    }  # fmt: skip
    body = told(1, instance("m"))
    body["telemetry"]["nodes"]["n1"] = {"processes": [process]}
    with serving(lambda *_: (200, body)) as url:
        found = typed(url, "status")
    assert found.returncode == 0, found.stderr
    assert "77" in found.stdout and "10 min" in found.stdout and "inst-m" in found.stdout
    nobody = typed("http://127.0.0.1:9", "status")
    assert nobody.returncode == 3 and "http://127.0.0.1:9" in nobody.stderr


def test_doctor_in_a_pipe_has_a_line_for_each_check_as_long_as_its_words(
    tmp_path: Path,
) -> None:
    done = shoal("doctor", env={"SHOAL_HOME": str(tmp_path)})
    lines = done.stdout.splitlines()
    assert any("python" in line for line in lines), done.stderr
    assert [line for line in lines if line != line.rstrip()] == []


def counted(tokens: int, cached: int) -> list[Any]:
    """Return the stream of an answer of so many tokens, to 100 of which some were cached."""
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": 100, "completion_tokens": tokens, "prompt_tokens_details": details}
    return [WORD[0], {"choices": [], "usage": usage}, WORD[2]]


def test_no_two_benches_ask_the_same() -> None:
    asked: list[str] = []

    def answer(_method: str, path: str, body: dict[str, Any]) -> Any:
        if path.startswith("/v1/chat"):
            asked.append(body["messages"][-1]["content"])
            return counted(3, 0)
        return 200, told(1)

    with serving(answer) as url:
        for _ in range(2):
            done = typed(url, "bench", "m", "-c", "2", "--runs", "1", "--tokens", "3")
            assert done.returncode == 0, done.stderr
    assert len(asked) == 8
    assert len({prompt[:12] for prompt in asked}) == 8, asked


def test_a_bench_counts_what_was_made_and_what_was_cached() -> None:
    with serving(
        lambda _m, path, _b: counted(3, 40) if path.startswith("/v1/chat") else (200, told(1))
    ) as url:
        words = ("bench", "m", "--runs", "1", "--warmup", "0", "--tokens", "5000")
        said = typed(url, *words).stdout
        figures = json.loads(typed(url, *words, "--json").stdout)
    assert "1 answer of 3 tokens (requested: 5000" in said, said
    assert "100 prompt tokens, 40 of them cached" in said
    assert (figures["tokens"], figures["tokens_most"], figures["cached_tokens"]) == (3, 3, 40)
    computed = figures["prefill_tokens_per_s"]["mean"] * figures["ttft_ms"]["mean"] / 1000
    assert 59 < computed < 61


def test_what_was_answered_is_told_though_some_was_refused() -> None:
    asked: list[str] = []

    def answer(_method: str, path: str, _body: dict[str, Any]) -> Any:
        if not path.startswith("/v1/chat"):
            return 200, told(1)
        asked.append(path)
        return (
            counted(3, 0) if len(asked) % 4 else (429, {"error": {"message": "the queue is full"}})
        )

    with serving(answer) as url:
        words = ("bench", "m", "-c", "4", "--runs", "2", "--warmup", "0", "--tokens", "3")
        done = typed(url, *words, "--json")
        figures = json.loads(done.stdout)
        assert done.returncode == 5 and "runs" in figures, (done.returncode, figures)
        assert (figures["runs"], figures["answers"], figures["missing"]) == (2, 6, 2), figures
        assert "the queue is full" in figures["problem"]["message"]
        shown = typed(url, *words)
    assert "TTFT" in shown.stdout and "2 answers are missing" in shown.stderr


def test_run_tells_how_far_a_load_is_while_it_waits() -> None:
    waits = [
        ": waiting for m to be loaded\n\n",
        ": keep-alive\n\n",
        ": loading 43 % (1 of 2 MB) m\n\n",
    ]
    with serving(lambda *_: [*waits, *WORD]) as url:
        plain, verbose = typed(url, "run", "m", "hi"), typed(url, "run", "m", "hi", "-v")
        quiet, as_json = typed(url, "run", "m", "hi", "-q"), typed(url, "run", "m", "hi", "--json")
    assert plain.stdout == quiet.stdout == "word\n"
    assert "waiting for m to be loaded" in plain.stderr
    assert "loading 43 %" in verbose.stderr and "keep-alive" not in verbose.stderr
    assert quiet.stderr == as_json.stderr == ""


@pytest.mark.parametrize("streamed", [False, True])
def test_a_model_that_stays_broken_is_not_to_be_tried_in_a_moment(streamed: bool) -> None:
    error = {"error": {"message": "m cannot be loaded: no tensors (given up)", "given_up": True}}
    with serving(lambda *_: [WORD[0], error] if streamed else (503, error)) as url:
        found = typed(url, "run", "m", "hi")
    assert "no tensors" in found.stderr and "in a moment" not in found.stderr, found.stderr
    assert found.returncode == 1 and "correct the cause" in found.stderr


def test_a_failed_model_is_not_called_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "models" / "m"
    folder.mkdir(parents=True)
    failed = instance("m", "failed", failures=("generation 1 rank 0: no tensors",))
    with serving(lambda *_: (200, state([card("m", folder)], [failed]))) as url:
        env = {"SHOAL_HOME": str(tmp_path), "SHOAL_URL": url}
        ps, show = shoal("ps", env=env), shoal("show", "m", env=env)
        assert "m failed: no tensors" in ps.stdout, ps.stdout + ps.stderr
        assert "loaded" not in show.stdout and "no tensors" in show.stdout
        done = shoal("rm", "m", "--yes", env=env)
    assert done.returncode == 0, done.stderr
    assert not folder.exists()


@pytest.mark.proof  # tests/processes/test_waiting.py asks a node for such a model
def test_a_broken_model_folder_fails_with_its_reason_first(node: Node) -> None:
    broken = node.home / "data" / "models" / "broken"
    shutil.copytree(bundled_models()[MODEL], broken)
    config = json.loads((broken / "config.json").read_text())
    config["intermediate_size"] = config["intermediate_size"] * 2
    (broken / "config.json").write_text(json.dumps(config))
    try:
        eventually(lambda: "broken" in node.shoal("ls").stdout, 60, "the folder is seen")
        found = answered(
            lambda: node.shoal("run", "broken", "hi"),
            lambda found: found.returncode != 4,
            "each process of the gateway knows it",
        )
        said = " ".join(found.stderr.split())
        assert found.returncode == 1 and "in a moment" not in said, said
        assert "broken cannot be loaded" in said and "correct the cause" in said
        reason = said.partition("broken cannot be loaded: ")[2]
        assert not reason.startswith("given up"), said
    finally:
        shutil.rmtree(broken)
        for name, one in node.state()["instances"].items():
            if one["model"] == "broken":
                node.http.delete(f"/instance/{name}")


def test_a_deadline_has_one_text_whoever_sees_it_first(node: Node) -> None:
    eventually(node.ready, 60, "the node serves")
    said: set[str] = set()
    for seconds in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4):
        answer = node.chat("Count to 1000.", max_tokens=3000, ignore_eos=True, x_timeout_s=seconds)
        assert answer.status_code == 504, answer.text
        said.add(answer.json()["error"]["message"].replace(f"{seconds} s", "N s"))
    assert len(said) == 1 and "x_timeout_s" in said.pop(), said
