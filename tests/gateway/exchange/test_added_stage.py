"""A stage that is added as CONTRIBUTING.md says."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import textwrap
from pathlib import Path
from typing import Any

from gateway.exchange import STAGES, Pipeline, StageRow, grouped
from tests.harness.exchange_parts import WARM, Request
from tests.house.trees import ROOT

BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks() -> list[str]:
    """Return the code of the page's section about stages: the new file, and the new row."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("\n## Add a stage\n")[2].partition("\n## ")[0]
    return [textwrap.dedent(code) for code in BLOCK.findall(section)]


def added(folder: Path) -> tuple[StageRow, ...]:
    """Return the table with the row of the page, behind the stage that identifies the client."""
    file, row = blocks()
    path = folder / "turns.py"
    path.write_text(file)
    spec = importlib.util.spec_from_file_location("turns", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = eval(row, {"StageRow": StageRow, **vars(module)})
    place = [row.name for row in STAGES].index("identify") + 1
    return (*STAGES[:place], made, *STAGES[place:])


async def answer(table: tuple[StageRow, ...], fields: dict[str, Any]) -> dict[str, str]:
    """Answer a request by these stages; return the headers."""
    parts, http, flow = Request(fields).begun()
    everything: Any = parts
    await Pipeline(everything, flow, grouped(table)).answer()
    await parts.close()
    assert [record[:2] for record in parts.recorded] == [("answer", "finished")]
    return http.reply.headers


def test_the_page_s_stage_acts_in_its_place(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    fields = {"model": WARM, "input": [*turns, turns[0]], "store": False}
    assert asyncio.run(answer(added(tmp_path), fields))["x-shoal-turns"] == "3"
    assert "x-shoal-turns" not in asyncio.run(answer(STAGES, fields))
