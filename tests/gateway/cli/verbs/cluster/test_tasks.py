"""`shoal tasks`, over a gateway with tasks and providers; each line of its page runs as printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.gateway_testbed import MODEL, eventually
from tests.harness.tasked_gateway import TaskedGateway, tasked_gateway
from tests.harness.typed_lines import examples, typed


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskedGateway]:
    with tasked_gateway(tmp_path_factory.mktemp("config")) as found:
        yield found


@pytest.mark.parametrize("line", examples("tasks"))
def test_each_line_of_the_page_runs_as_printed(
    site: TaskedGateway, tmp_path: Path, line: str
) -> None:
    found = typed(site.made, tmp_path, line)
    assert found.returncode == 0, found.stderr
    if "--json" in line:
        assert json.loads(found.stdout)["allowCloudFallback"] in (True, False)
    else:
        row = next(row for row in found.stdout.splitlines() if row.startswith("warm "))
        assert row.split()[1:] == ["org/other,", "cloud:says,", MODEL, MODEL, *"----"]


def test_the_guard_is_set_on_the_command_line(site: TaskedGateway, tmp_path: Path) -> None:
    for option, word, allowed in (("no-cloud", "may not", False), ("cloud", "may", True)):
        said = typed(site.made, tmp_path, f"shoal tasks --{option}-fallback").stdout
        assert f"providers {word} answer if the models before them in a task fail" in said
        told = httpx.get(f"{site.made.url}/api/v1/config").json()
        assert told == {"allowCloudFallback": allowed}


def test_what_is_nowhere_and_what_has_no_key_is_marked(site: TaskedGateway, tmp_path: Path) -> None:
    said = typed(site.made, tmp_path, "shoal tasks").stdout
    assert "no-such (not here), down:m, keyless:m" in said
    assert "SHOAL_TEST_NO_SUCH_KEY is not set" in said and "none needed" in said
    row = next(line for line in said.splitlines() if line.startswith("pinned "))
    assert row.split()[-5:] == ["0", "s", "-", "pinned", "-"]


def test_a_broken_file_is_said(site: TaskedGateway, tmp_path: Path) -> None:
    site.file.write_text(f"{site.text}\n[task.x]\n")

    def said() -> bool:
        return "did you mean tasks?" in typed(site.made, tmp_path, "shoal tasks").stderr

    try:
        eventually(said, 20, "what is wrong is said")
    finally:
        site.file.write_text(site.text)
