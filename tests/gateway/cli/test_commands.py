"""Verbs as they are typed, against a server that answers as a node does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bus.wire.cards import NodeCard, PartialModel
from bus.wire.ids import ModelId, NodeId
from bus.wire.instances import Conditions, Instance
from gateway.cli.app import VERBS, Group, app
from tests.harness.node_server import card, instance, serving, state

EVENTS: list[Any] = [
    ": loading\n\n",
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]},
    {"choices": [{"index": 0, "delta": {"content": "one "}}]},
    {"choices": [{"index": 0, "delta": {"content": "fish"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}},
    "data: [DONE]\n\n",
]


PREVIEWS = {
    "model": "org/own",
    "blocked": {"box4": "lacks disk space for the weights"},
    "refusal": None,
    "chosen": {},
    "previews": [
        {"size": 1, "sharding": "none", "fits": False, "chosen": False, "plan": None,
         "refusal": {"message": "it needs 28.60 GB"}},
        {"size": 2, "sharding": "pipeline", "fits": True, "chosen": True, "refusal": None,
         "plan": {"tokens_per_s": 12.5, "fetch_bytes": 7, "ranks": [
            {"name": "box1", "first_layer": 0, "last_layer": 4, "need_bytes": 10**9,
             "usable_bytes": 2 * 10**9}]}},
    ],
}  # fmt: skip


class Desk:
    """A node's answers, and what it was asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.cards = [
            card("shoal-tiny", Path("/elsewhere"), bundled=True),
            card("org/own", home / "data" / "models" / "org" / "own"),
            card("cached", Path("/elsewhere/cache")),
        ]
        self.parts: tuple[PartialModel, ...] = ()
        self.others: tuple[NodeCard, ...] = ()
        self.instances = [instance("shoal-tiny")]
        self.then: list[Instance] = []
        """What takes the instances' place after the next look at the state."""
        self.chat: tuple[int, Any] | list[Any] = EVENTS

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        self.asked.append((method, path, body))
        if path == "/state":
            found = 200, state(self.cards, self.instances, self.parts, self.others)
            self.instances = self.then or self.instances
            return found
        if path.startswith("/v1/chat"):
            return self.chat
        if path == "/health":
            return 200, {"status": "ok"}
        if path.startswith("/instance/previews"):
            return 200, PREVIEWS
        if path == "/place_instance":
            if body["dry_run"]:
                return 200, {"model": body["model"], "plan": {"needed_bytes": 5_000_000}}
            if not any(one.model == body["model"] for one in self.instances):
                self.instances.append(instance(body["model"]))
            return 200, {"model": body["model"], "instance": f"inst-{body['model']}"}
        if method == "DELETE":
            self.instances.clear()
            return 200, {}
        return 404, {"error": {"message": f"no {path}", "type": "not_found"}}


class Shoal:
    def __init__(self, desk: Desk, url: str) -> None:
        self.desk = desk
        self.url = url
        self._runner = CliRunner()

    def __call__(self, *words: str, say: str | None = None, url: str | None = None) -> Result:
        row = VERBS.get(words[0])
        is_here = isinstance(row, Group) or (row is not None and row.here)
        address = [] if is_here and url is None else ["--url", url or self.url]
        options = ["--home", str(self.desk.home), *address]
        return self._runner.invoke(app, [*options, *words], input=say)

    def json(self, *words: str, **more: Any) -> Any:
        return json.loads(self(*words, "--json", **more).stdout)


@pytest.fixture
def shoal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shoal]:
    monkeypatch.setenv("NO_COLOR", "1")
    desk = Desk(tmp_path)
    with serving(desk.answer) as url:
        yield Shoal(desk, url)


@pytest.mark.parametrize(
    ("typed", "meant"), [("donw", "down"), ("list", "ls"), ("unload", "stop"), ("statsu", "status")]
)
def test_a_mistyped_verb_is_answered_with_the_one_that_was_meant(
    shoal: Shoal, typed: str, meant: str
) -> None:
    found = shoal(typed)
    assert found.exit_code == 2
    assert f"Did you mean '{meant}'" in found.stderr


def test_a_verb_that_is_yet_to_come_says_so(shoal: Shoal) -> None:
    found = shoal("drain")
    assert found.exit_code == 2 and "`shoal nodes drain NODE`" in found.stderr


def test_a_node_that_does_not_answer_is_said_with_the_next_step(shoal: Shoal) -> None:
    found = shoal("ps", url="http://127.0.0.1:9")
    assert found.exit_code == 3
    assert "no node answers at http://127.0.0.1:9" in found.stderr
    assert "shoal up" in found.stderr and "Traceback" not in found.stderr


def test_with_json_an_error_is_a_document_too(shoal: Shoal) -> None:
    found = shoal("ps", "--json", url="http://127.0.0.1:9")
    error = json.loads(found.stdout)["error"]
    assert (found.exit_code, error["code"]) == (3, 3)
    assert error["remedy"]


def test_shared_options_may_stand_before_or_after_the_verb(shoal: Shoal) -> None:
    after = shoal("ls", "--json").stdout
    before = shoal("--json", "ls").stdout
    assert json.loads(after) == json.loads(before)


@pytest.mark.parametrize("verb", ["status", "ps", "ls", "doctor", "bench", "up", "down", "logs"])
def test_every_verb_explains_itself_and_knows_json(shoal: Shoal, verb: str) -> None:
    found = shoal(verb, "--help")
    assert found.exit_code == 0 and "--json" in found.stdout


def test_ls_lists_what_is_on_disk(shoal: Shoal) -> None:
    assert [m["model"] for m in shoal.json("ls")["models"]] == ["cached", "org/own", "shoal-tiny"]
    assert "4.0M" in shoal("ls").stdout


def test_show_tells_where_a_model_is_loaded(shoal: Shoal) -> None:
    assert shoal.json("show", "shoal-tiny")["instances"][0]["status"] == "ready"
    assert [shoal.json("show", name)["model"] for name in ("own", "ORG/Own:latest")] == [
        "org/own"
    ] * 2
    assert "template" in shoal("show", "shoal-tiny").stdout
    told = shoal.json("show", "shoal-tiny")["found"]
    assert told == {"template": "arguments of tool calls as JSON text"}
    assert shoal.json("show", "org/own")["found"] == {}
    missing = shoal("show", "sahol-tiny")
    assert missing.exit_code == 4 and "shoal-tiny" in missing.stderr


def test_ps_shows_work_and_when_a_model_leaves(shoal: Shoal) -> None:
    found = shoal("ps").stdout
    assert "never" in found and "42" in found
    assert "30 of 40 drafted tokens accepted (75 %, ngram)" in found
    assert shoal.json("ps")["instances"][0]["reading"]["running"] == 3


def test_run_streams_the_answer_alone_to_standard_output(shoal: Shoal) -> None:
    found = shoal("run", "shoal-tiny", "count", "fish", "--temperature", "0", "--no-think")
    assert (found.exit_code, found.stdout) == (0, "one fish\n")
    assert "hm" in found.stderr
    body = shoal.desk.asked[-1][2]
    assert body["messages"] == [{"role": "user", "content": "count fish"}]
    assert body["temperature"] == 0.0
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "seed" not in body


def test_run_reads_the_prompt_from_a_pipe(shoal: Shoal) -> None:
    assert shoal("run", "shoal-tiny", say="from a pipe\n").stdout == "one fish\n"
    assert shoal.desk.asked[-1][2]["messages"][-1]["content"] == "from a pipe"
    empty = shoal("run", "shoal-tiny", say="")
    assert empty.exit_code == 1 and "the prompt is empty" in empty.stderr


def test_run_in_json_tells_the_whole_answer(shoal: Shoal) -> None:
    found = shoal.json("run", "shoal-tiny", "hi")
    assert (found["text"], found["reasoning"]) == ("one fish", "hm")
    assert found["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] == 3


def test_an_error_in_the_stream_ends_run_in_words(shoal: Shoal) -> None:
    shoal.desk.chat = [EVENTS[3], {"error": {"message": "the runner was lost"}}]
    found = shoal("run", "shoal-tiny", "hi")
    assert found.exit_code == 1 and "the runner was lost" in found.stderr


def test_a_refusal_keeps_the_nodes_words_and_has_its_own_exit_code(shoal: Shoal) -> None:
    shoal.desk.chat = (429, {"error": {"message": "the queue is full (8 waiting)"}})
    found = shoal("run", "shoal-tiny", "hi")
    assert found.exit_code == 5 and "the queue is full (8 waiting)" in found.stderr


def test_a_chat_remembers_what_was_said_until_it_is_cleared(shoal: Shoal) -> None:
    found = shoal("chat", say='first\n"""two\nlines"""\n/clear\nafter\n/bye\nnever\n')
    assert found.exit_code == 0
    talks = [body["messages"] for _, path, body in shoal.desk.asked if "chat" in path]
    assert [len(talk) for talk in talks] == [1, 3, 1]
    assert talks[1][1] == {"role": "assistant", "content": "one fish"}
    assert talks[1][2]["content"] == "two\nlines"


def test_a_question_that_failed_is_not_part_of_the_conversation(shoal: Shoal) -> None:
    shoal.desk.chat = (503, {"error": {"message": "loading"}})
    assert shoal("chat", say="first\nsecond\n").exit_code == 0
    talks = [body["messages"] for _, path, body in shoal.desk.asked if "chat" in path]
    assert [len(talk) for talk in talks] == [1, 1]


def test_load_waits_until_the_instance_is_ready(shoal: Shoal) -> None:
    found = shoal.json("load", "org/own", "--context", "1024")
    assert found == {"model": "org/own", "instance": "inst-org/own", "status": "ready"}
    placed = next(body for _, path, body in shoal.desk.asked if path == "/place_instance")
    assert placed["context_tokens"] == 1024 and placed["if_absent"] is True


def test_load_says_how_kv_is_held_and_knows_the_kinds(shoal: Shoal) -> None:
    for kind in ("4bit", "window:4096"):
        assert shoal("load", "org/own", "--kv", kind).exit_code == 0
        placed = next(body for _, path, body in shoal.desk.asked if path == "/place_instance")
        assert placed["kv"] == kind
        shoal.desk.asked.clear()
    refused = shoal("load", "org/own", "--kv", "window")
    assert refused.exit_code == 2 and "a window needs its number of tokens" in refused.stderr
    assert not shoal.desk.asked


def test_load_dry_run_shows_the_plan_and_places_nothing(shoal: Shoal) -> None:
    told = shoal("load", "org/own", "--dry-run").stdout
    assert "5.0 MB" in told
    assert not any(odd in told for odd in ("None", "[", "{"))
    assert len(shoal.desk.instances) == 1


def test_place_takes_a_split_by_hand_and_waits(shoal: Shoal) -> None:
    words = ("place", "org/own", "--layers", "box2=3, box1=5", "--exclude", "box3", "--nodes", "2")
    found = shoal.json(*words)
    assert (found["model"], found["status"]) == ("org/own", "ready")
    body = next(body for _, path, body in shoal.desk.asked if path == "/place_instance")
    assert list(body["layers"].items()) == [("box2", 3), ("box1", 5)]
    assert (body["min_nodes"], body["excluded_nodes"], body["if_absent"]) == (2, ["box3"], True)
    assert "ready" in shoal(*words).stdout


@pytest.mark.parametrize("layers", ["box1", "box1=x", "=3", "a=1,a=2", ""])
def test_a_split_that_cannot_be_read_is_refused_before_anything_is_asked(
    shoal: Shoal, layers: str
) -> None:
    found = shoal("place", "org/own", "--layers", layers)
    assert found.exit_code == 2 and "NODE=COUNT" in found.stderr
    assert shoal.desk.asked == []
    assert shoal("place", "org/own", "--sharding", "both").exit_code == 2


def test_place_dry_run_shows_every_way_and_why_not(shoal: Shoal) -> None:
    found = shoal("place", "org/own", "--dry-run", "--nodes", "2", "--exclude", "box9").stdout
    assert "it needs 28.60 GB" in found and "box1 0-3 (1.0 GB of 2.0 GB)" in found
    assert "12.5" in found and "*" in found
    path = next(path for _, path, _ in shoal.desk.asked if path.startswith("/instance/previews"))
    assert "min_nodes=2" in path and "excluded_nodes=box9" in path
    assert len(shoal.json("place", "org/own", "--dry-run")["previews"]) == 2
    assert len(shoal.desk.instances) == 1


def test_a_copy_that_was_refused_is_followed_to_its_next_place(shoal: Shoal) -> None:
    bad = instance("bad", "failed", why="no room", place_again=Conditions(min_nodes=2))
    shoal.desk.instances = [bad]
    shoal.desk.then = [instance("bad").model_copy(update={"instance": "inst-2"})]
    assert shoal.json("load", "bad")["instance"] == "inst-2"


def test_a_model_that_cannot_be_loaded_says_why(shoal: Shoal) -> None:
    shoal.desk.instances = [instance("bad", "failed", why="3 failures in 60 s")]
    found = shoal("load", "bad")
    assert found.exit_code == 1 and "3 failures in 60 s" in found.stderr


def test_stop_unloads_and_names_what_is_loaded_when_it_is_another(shoal: Shoal) -> None:
    wrong = shoal("stop", "org/own")
    assert wrong.exit_code == 4 and "shoal-tiny" in wrong.stderr
    assert shoal.json("stop", "shoal-tiny")["unloaded"] == ["inst-shoal-tiny"]
    assert ("DELETE", "/instance/inst-shoal-tiny?drain_s=30", {}) in shoal.desk.asked


def test_rm_deletes_only_after_a_yes_and_only_here(shoal: Shoal) -> None:
    folder = shoal.desk.home / "data" / "models" / "org" / "own"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    asked = shoal("rm", "org/own")
    assert asked.exit_code == 1 and "--yes" in asked.stderr and folder.exists()
    assert shoal("rm", "org/own", "--yes").exit_code == 0
    assert not folder.parent.exists() and folder.parent.parent.exists()


def test_rm_deletes_the_part_of_a_model_that_lies_here(shoal: Shoal) -> None:
    stage = shoal.desk.home / "data" / "models" / ".staging" / "d1"
    (stage / "files").mkdir(parents=True)
    shoal.desk.parts = (
        PartialModel(
            model=ModelId("org/part"), layers=((0, 2),), have_bytes=7, size_bytes=9, path=str(stage)
        ),
    )
    shoal.desk.instances = [instance("org/part")]
    loaded = shoal("rm", "org/part", "--yes")
    assert loaded.exit_code == 1 and "shoal stop org/part" in loaded.stderr and stage.exists()
    shoal.desk.instances = []
    assert shoal.json("rm", "org/part", "--yes")["deleted"][0]["bytes"] == 7
    assert not stage.exists() and stage.parent.parent.exists()


def test_rm_deletes_the_copy_of_its_own_node_wherever_else_there_is_one(shoal: Shoal) -> None:
    folder = shoal.desk.home / "data" / "models" / "org" / "own"
    folder.mkdir(parents=True)
    elsewhere = NodeCard(
        node=NodeId("n0"), name="other", platform="p", cores=1, memory_bytes=1, backends=(),
        mlx_version="", shoal_version="", slots=1, announced_at_s=1.0,
        models=(card("org/own", Path("/on/another/node")),),
    )  # fmt: skip
    shoal.desk.others = (elsewhere,)
    assert shoal.json("rm", "org/own", "--yes")["deleted"][0]["folder"] == str(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("model", "why"), [("shoal-tiny", "is part of shoal"), ("cached", "is not in")]
)
def test_rm_refuses_what_is_not_its_own(shoal: Shoal, model: str, why: str) -> None:
    found = shoal("rm", model, "--yes")
    assert found.exit_code == 1 and why in found.stderr


@pytest.mark.parametrize("name", ["mine", "Mine:latest"])
def test_a_name_that_a_card_gives_is_neither_given_away_nor_the_end_of_its_model(
    shoal: Shoal, name: str
) -> None:
    folder = shoal.desk.home / "data" / "models" / "org" / "own"
    folder.mkdir(parents=True)
    shoal.desk.cards = [card("org/own", folder, aliases=(ModelId("mine"),), origin="pulled")]
    for words in (("rm", name), ("rm", name, "--everywhere")):
        kept = shoal(*words, "--yes")
        assert kept.exit_code == 1 and "an alias in the card of org/own" in kept.stderr
    assert folder.exists()
    taken = shoal("cp", "org/own", name)
    assert taken.exit_code == 1 and "an alias in the card of org/own" in taken.stderr
    assert {method for method, _, _ in shoal.desk.asked} == {"GET"}


def test_rm_refuses_a_model_in_memory(shoal: Shoal) -> None:
    shoal.desk.instances = [instance("org/own")]
    found = shoal("rm", "org/own", "--yes")
    assert found.exit_code == 1 and "shoal stop org/own" in found.stderr


def test_bench_counts_what_the_node_counted(shoal: Shoal) -> None:
    words = ("bench", "shoal-tiny", "--concurrency", "2", "--runs", "2", "--tokens", "3")
    found = shoal.json(*words)
    assert (found["runs"], found["concurrency"], found["tokens"]) == (2, 2, 12)
    (peak,) = found["memory"]["peaks"]
    assert (peak["rank"], peak["peak_bytes"]) == (0, 3)
    assert found["ttft_ms"]["std"] >= 0
    assert 0 < found["links"]["round_trip_ms"]["p50"] <= found["links"]["round_trip_ms"]["p99"]
    assert found["links"]["between_nodes"] == []
    chats = [body for _, path, body in shoal.desk.asked if "chat" in path]
    assert len(chats) == 6
    assert len({body["messages"][0]["content"] for body in chats}) == 6
    assert all(body["ignore_eos"] and body["max_tokens"] == 3 for body in chats)


def test_bench_without_warm_up_works(shoal: Shoal) -> None:
    found = shoal.json("bench", "--warmup", "0", "--runs", "1", "--tokens", "3")
    assert (found["runs"], found["warmup"], found["model"]) == (1, 0, "shoal-tiny")


def test_config_show_tells_value_and_source(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SLOTS", "3")
    found = shoal.json("config", "show")
    assert found["settings"]["slots"] == {"value": 3, "source": "environment SHOAL_SLOTS"}
    assert found["folders"]["data"] == str(shoal.desk.home / "data")


def test_config_show_tells_the_settings_and_sections_that_are_named(shoal: Shoal) -> None:
    found = shoal.json("config", "show", "slots", "fetch")["settings"]
    assert "slots" in found and "fetch.enabled" in found
    assert all(key == "slots" or key.startswith("fetch.") for key in found)
    said = shoal("config", "show", "slots")
    assert "slots" in said.stdout and "folder" not in said.stdout
    wrong = shoal("config", "show", "slosts")
    assert wrong.exit_code == 2 and "did you mean slots?" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("unload x", "stop"),
        ("get x", "pull"),
        ("config get x", "show"),
        ("lease list", "ls"),
        ("config unload", ""),
    ],
)
def test_a_word_of_other_tools_is_answered_with_ours_of_that_group(
    shoal: Shoal, words: str, meant: str
) -> None:
    said = shoal(*words.split())
    assert said.exit_code == 2 and "No such command" in said.stderr
    assert (f"Did you mean '{meant}'?" in said.stderr) == bool(meant)


def test_a_wrong_setting_is_named_with_its_source(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_SLOTS", "none")
    found = shoal("config", "show")
    assert found.exit_code == 1 and "SHOAL_SLOTS" in found.stderr


def test_verbs_of_a_home_without_a_node_say_so(shoal: Shoal) -> None:
    for words in (("status",), ("tap", "event.*")):
        found = CliRunner().invoke(app, [*words, "--home", str(shoal.desk.home)])
        assert found.exit_code == 3 and "no node runs in" in found.stderr
    assert shoal("logs").exit_code == 4
    assert shoal.json("down")["status"] == "was not running"


def test_a_pattern_that_no_topic_fits_is_refused(shoal: Shoal) -> None:
    found = shoal("tap", "evnt.*")
    assert found.exit_code == 4 and "event" in found.stderr


def test_logs_of_all_processes_are_merged_by_time(shoal: Shoal) -> None:
    logs = shoal.desk.home / "state" / "logs"
    logs.mkdir(parents=True)
    for process, seconds in (("bus", (1, 3)), ("runner-00", (2,))):
        times = [(second, f"2026-11-26T10:00:0{second}.000Z") for second in seconds]
        lines = [
            json.dumps({"time": at, "level": "info", "message": f"m{second}", "process": process})
            for second, at in times
        ]
        (logs / f"{process}.log").write_text("\n".join(lines) + "\n")
    shown = shoal("logs").stdout.splitlines()
    assert [line.split()[-1] for line in shown] == ["m1", "m2", "m3"]
    raw = [json.loads(line) for line in shoal("logs", "runner:00", "--json").stdout.splitlines()]
    assert [line["message"] for line in raw] == ["m2"]
    assert "runner:00" in shoal("logs", "worker").stderr


def test_a_node_of_another_version_is_named_not_guessed(shoal: Shoal) -> None:
    desk, known = shoal.desk, shoal.desk.answer
    newer = state(desk.cards, desk.instances)
    newer["state"]["moon_phase"] = "full"

    def answer(method: str, path: str, body: dict[str, Any]) -> Any:
        return (200, newer) if path == "/state" else known(method, path, body)

    with serving(answer) as url:
        found = shoal("ps", url=url)
    assert found.exit_code == 1 and "moon_phase" in found.stderr


def test_run_takes_a_prompt_and_what_is_piped_in(shoal: Shoal) -> None:
    assert shoal("run", "shoal-tiny", "sum", "up:", say=" notes\n").exit_code == 0
    assert shoal.desk.asked[-1][2]["messages"][-1]["content"] == "sum up:\n\nnotes"


def test_status_at_an_address_tells_of_the_node_there(shoal: Shoal) -> None:
    found = shoal("status")
    assert found.exit_code == 0 and f"desk at {shoal.url}" in found.stdout
    said = shoal.json("status")
    assert (said["node"], said["home"], said["answers"]) == ("desk", None, True)
    assert said["instances"][0]["model"] == "shoal-tiny"


@pytest.mark.parametrize("words", [("logs",), ("tap",), ("doctor",), ("down",), ("config", "show")])
def test_a_verb_about_this_machine_refuses_the_address_of_a_node(
    shoal: Shoal, words: tuple[str, ...]
) -> None:
    found = shoal(*words, url=shoal.url)
    assert found.exit_code == 2 and shoal.url in found.stderr.replace("\n", "")
    assert shoal.desk.asked == []


@pytest.mark.parametrize("words", [("help",), ("-h",), ("help", "keys"), ("help", "keys", "join")])
def test_help_is_a_word_too(words: tuple[str, ...]) -> None:
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0 and "Usage" in found.stdout


def test_the_version_is_told_as_a_verb_and_as_an_option() -> None:
    runner = CliRunner()
    [told] = {runner.invoke(app, [word]).stdout for word in ("version", "--version")}
    assert told.startswith("shoal ") and told.strip("shoal \n")[0].isdigit()
    assert json.loads(runner.invoke(app, ["version", "--json"]).stdout)["version"] in told


def test_the_list_of_verbs_has_a_short_line_for_each() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout.splitlines()
    for name, row in VERBS.items():
        assert any(line.split() == [name, *row.about.split()] for line in shown), name


def test_bench_keeps_what_was_answered_before_the_node_was_gone(shoal: Shoal) -> None:
    known, asked = shoal.desk.answer, [0]

    def answer(method: str, path: str, body: dict[str, Any]) -> Any:
        asked[0] += path.startswith("/v1/chat")
        refused = 503, {"error": {"message": "it is draining"}}
        return refused if asked[0] > 2 else known(method, path, body)

    with serving(answer) as url:
        found = shoal("bench", "--warmup", "0", "--runs", "4", "--tokens", "3", "--json", url=url)
    told = json.loads(found.stdout)
    assert found.exit_code == 5 and told["problem"]["message"] == "it is draining"
    assert (told["runs"], told["answers"], told["missing"]) == (2, 2, 1)
