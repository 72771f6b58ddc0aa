"""What `tasks.toml` may say, and what is wrong with it, by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.models.tasks import TaskTable, read_tasks
from bus.wire.errors import ConfigError

SOUND = """
# comments are free
[providers.cloud]
kind = "openai"
base_url = "https://api.example.org/v1/"
key_env = "CLOUD_KEY"
models = ["gpt-large", "meta/llama:free"]

[providers.claude]
kind = "anthropic"
base_url = "http://127.0.0.1:8080"

[tasks.chat]
candidates = ["shoal-tiny", "org/big:tag", "claude:sonnet", "cloud:gpt-large"]
budget_s = 30
keep_alive_s = 0
pin_primary = true

[tasks.short]
candidates = ["shoal-tiny"]
"""


def test_a_sound_file_is_taken_whole() -> None:
    table = read_tasks(SOUND)
    cloud, chat = table.providers["cloud"], table.tasks["chat"]
    assert (cloud.base_url, cloud.key_env) == ("https://api.example.org/v1", "CLOUD_KEY")
    assert (chat.budget_s, chat.keep_alive_s, chat.pin_primary) == (30.0, 0.0, True)
    assert table.tasks["short"].budget_s is None and not table.tasks["short"].pin_primary
    named = [one.name for one in table.provided_models()]
    assert named == ["claude:sonnet", "cloud:gpt-large", "cloud:meta/llama:free"]


@pytest.mark.parametrize("name", ["chat", "CHAT", "chat:latest"])
def test_a_task_is_found_in_other_letters_and_with_ollamas_tag(name: str) -> None:
    assert read_tasks(SOUND).task_named(name) == "chat"


def test_a_providers_model_is_what_stands_behind_the_first_colon() -> None:
    table = read_tasks(SOUND)
    found = table.provided("cloud:meta/llama:free")
    assert found is not None and (found.provider, found.model) == ("cloud", "meta/llama:free")
    assert table.provided("org/big:tag") is None and table.provided("cloud:") is None
    assert table.provided("cloud:two words") is None
    assert table.means("cloud:anything") and table.means("short") and not table.means("other")


def test_a_file_that_says_nothing_means_nothing() -> None:
    assert not read_tasks("") and read_tasks(SOUND) and read_tasks("") == TaskTable()


@pytest.mark.parametrize(
    ("was", "becomes", "line", "words"),
    [
        ("budget_s", "budgets", 15, "unknown key tasks.chat.budgets; did you mean budget_s?"),
        ("[tasks.short]", "[task.short]", 19, "unknown key task; did you mean tasks?"),
        ('kind = "openai"', 'kind = "azure"', 4, "providers.cloud.kind"),
        ('kind = "openai"', "", 3, "providers.cloud.kind is missing"),
        ("https://api", "ftp://api", 5, "providers.cloud.base_url: not a usable URL"),
        ("https://api", "https://me:pass@api", 5, "a URL must not contain a key"),
        ('"CLOUD_KEY"', '"sk-not-a-name"', 6, "the name of a variable, not a key"),
        ("budget_s = 30", "budget_s = 0", 15, "tasks.chat.budget_s"),
        ("budget_s = 30", "budget_s = inf", 15, "tasks.chat.budget_s"),
        ("budget_s = 30", 'budget_s = "30"', 15, "tasks.chat.budget_s"),
        ("pin_primary = true", "pin_primary = 1", 17, "tasks.chat.pin_primary"),
        ('"claude:sonnet"', '"shoal-tiny"', 14, "'shoal-tiny' is listed twice"),
        ('"claude:sonnet"', '"cluode:a/b"', 14, "no provider is called 'cluode'; did you mean"),
        ('"claude:sonnet"', '"../up"', 14, "'../up' is not a valid model name"),
        ('["shoal-tiny"]', "[]", 20, "tasks.short.candidates"),
        ("[tasks.short]", "[tasks.CHAT]", 19, "'chat' differs only in case"),
        ("[tasks.short]", '[tasks."a b"]', 19, "not a valid name: use 1 to 64 letters"),
        ("[providers.claude]", '[providers."a:b"]', 9, "not a valid name: use 1 to 64 letters"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(was: str, becomes: str, line: int, words: str) -> None:
    assert was in SOUND
    with pytest.raises(ConfigError) as refused:
        read_tasks(SOUND.replace(was, becomes))
    said = str(refused.value)
    assert said.startswith(f"tasks.toml, line {line}: ") and words in said, said
    assert "sk-not-a-name" not in said and "me:pass" not in said, "a key is not said back"


SPILLING = (
    SOUND.replace(
        "pin_primary = true", 'pin_primary = true\nspill_to = "cloud:mini"\nspill_after_s = 10'
    )
    + """
[models."org/big"]
spill_to = "claude:opus"
spill_after_s = 2.5
"""
)


def test_a_task_and_a_model_may_spill_over() -> None:
    table = read_tasks(SPILLING)
    of_task, of_model = table.spill_of(table.tasks["chat"]), table.spill_of(table.models["org/big"])
    assert of_task is not None and (of_task.to.name, of_task.after_s) == ("cloud:mini", 10.0)
    assert of_model is not None and (of_model.to.name, of_model.after_s) == ("claude:opus", 2.5)
    assert table.spill_of(table.tasks["short"]) is None
    assert {"cloud:mini", "claude:opus"} <= {model.name for model in table.provided_models()}


@pytest.mark.parametrize(
    ("was", "becomes", "words"),
    [
        ('"cloud:mini"', '"clod:mini"', "chat.spill_to: 'clod:mini' is not a provider's model"),
        ('"cloud:mini"', '"clod:mini"', "did you mean 'cloud'?"),
        ('"cloud:mini"', '"shoal-tiny"', "'shoal-tiny' is not a provider's model"),
        ('"cloud:mini"', '"claude:sonnet"', "'claude:sonnet' is already a candidate"),
        ('spill_to = "cloud:mini"\n', "", "chat.spill_after_s: needs spill_to"),
        ("\nspill_after_s = 10", "", "chat.spill_to: needs spill_after_s"),
        ("spill_after_s = 10", "spill_after_s = 0", "tasks.chat.spill_after_s"),
        ("spill_after_s = 2.5", "", "models.org/big.spill_after_s is missing"),
        ("spill_after_s = 2.5", "spill_after = 2.5", "did you mean spill_after_s?"),
        ('[models."org/big"]', "[models.chat]", "a task has this name: set spill_to in the task"),
        ('[models."org/big"]', '[models."cloud:x"]', "not the name of a model of the cluster"),
    ],
)
def test_what_is_wrong_about_spilling_over_is_said(was: str, becomes: str, words: str) -> None:
    assert was in SPILLING
    with pytest.raises(ConfigError) as refused:
        read_tasks(SPILLING.replace(was, becomes))
    assert str(refused.value).startswith("tasks.toml, line ") and words in str(refused.value)


def test_a_file_that_is_no_toml_or_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"not valid TOML.*line 2"):
        read_tasks("tasks = [\n[providers]")
    with pytest.raises(ConfigError, match="256 KiB"):
        read_tasks("#" * (300 << 10))


def test_the_guides_own_example_is_sound() -> None:
    page = Path(__file__).parents[3] / "docs" / "operations" / "http-api.md"
    blocks = page.read_text().split("```toml\n")[1:]
    (example,) = [one for one in blocks if one.startswith("[providers")]
    table = read_tasks(example.partition("```")[0])
    assert list(table.tasks) == ["chat"] and list(table.providers) == ["cloud"]
    assert table.tasks["chat"].candidates[-1] == "cloud:gpt-large"
