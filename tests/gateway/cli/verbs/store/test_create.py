"""`shoal create`, over a gateway; the lines of the page run as printed, with its Modelfile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.gateway_testbed import GatewayTestbed, gateway_testbed
from tests.harness.typed_lines import CODE, PAGE, examples, typed


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as found:
        yield found


def page_modelfile() -> str:
    """Return the Modelfile that the page shows."""
    section = PAGE.read_text().partition("\n## `create`\n")[2].partition("\n## ")[0]
    return section.split("```")[3].strip() + "\n"


def test_the_lines_of_the_page_run_as_printed(made: GatewayTestbed, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(page_modelfile())
    told = [typed(made, tmp_path, line) for line in examples("create")]
    assert [one.returncode for one in told] == [0, 0, 0, 0], [one.stderr for one in told]
    assert "created pirate on every node" in told[0].stdout
    assert "an alias of shoal-tiny, with a system prompt, temperature 0.5" in told[2].stdout
    assert not made.do(lambda: made.holder.state.derived)


def test_a_modelfile_comes_from_standard_input_too(made: GatewayTestbed, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", CODE, "--url", made.url, "--json"]
    told = subprocess.run(
        [*command, "create", "Steady", "-f", "-"],
        input="FROM other\nPARAMETER temperature 0\nPARAMETER stop END\n",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == {"name": "Steady"}
    (derived,) = made.do(lambda: list(made.holder.state.derived.values()))
    assert (derived.base, derived.stop) == ("org/other", ("END",))
    assert typed(made, tmp_path, "shoal rm Steady").returncode == 0


@pytest.mark.parametrize(
    ("modelfile", "says"),
    [
        (None, "cannot read Modelfile: No such file or directory next: pass the Modelfile with"),
        ("SYSTEM You are.", "from is required"),
        ("FROM nowhere", "nowhere"),
        ("FROM ./weights.gguf", "FROM must name a model"),
        ("FROM shoal-tiny\nFORM x", "unknown instruction 'form'; use FROM"),
        ("FROM shoal-tiny\nPARAMETER temperature hot", "'hot' is not a number"),
        ("FROM shoal-tiny\nPARAMETER temprature 1", "temprature"),
    ],
)
def test_what_is_wrong_with_a_modelfile_is_said_and_nothing_is_made(
    made: GatewayTestbed, tmp_path: Path, modelfile: str | None, says: str
) -> None:
    if modelfile is not None:
        (tmp_path / "Modelfile").write_text(modelfile)
    told = typed(made, tmp_path, "shoal create mine")
    assert told.returncode != 0
    assert says in " ".join(told.stderr.split()), told.stderr
    assert not made.do(lambda: made.holder.state.derived)
