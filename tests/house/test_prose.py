"""Each rule of plain English, broken on purpose, and plain text that no rule finds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house import ceilings, passages, prose
from tests.house.trees import Module

MOTTO = "The gateway sends the request to a healthy runner and waits for its first token. "


def rules_of_page(text: str) -> list[str]:
    return [f.rule for f in prose.of_sentences(passages.page_sentences("docs/a.md", text))]


def module(text: str) -> Module:
    return Module("bus.a", "bus/a.py", text, ast.parse(text))


def rules_of_module(text: str) -> list[str]:
    found = prose.of_sentences(passages.module_sentences(module(text)))
    found += prose.of_docstrings(passages.function_docstrings(module(text)))
    return [finding.rule for finding in found]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("A " + "very " * 29 + "long sentence.", "long-sentence"),
        ("Of images there are the paths alone (501).", "object-first"),
        ("Of two nodes the older one wins.", "object-first"),
        ("Counted are the frames of messages.", "object-first"),
        ("What has no row is the owner's.", "clause-first"),
        ("Who asks for the counts gets the sums.", "clause-first"),
        ("The gateway stores what is told by a runner.", "no-noun"),
        ("It drops what was not asked for.", "no-noun"),
        ("Return what stands for the weights.", "no-noun"),
        ("It answers those that wait.", "no-noun"),
        ("It skips one that is full.", "no-noun"),
        ("It was such a one.", "no-noun"),
        ("The asked is not the told.", "no-noun"),
        ("The older model makes way.", "vocabulary"),
        ("A cache is let go first.", "vocabulary"),
        ("A model keeps its turn for 20 s.", "vocabulary"),
        ("A file put there by hand stays.", "vocabulary"),
        ("The runner gave a row back.", "vocabulary"),
        ("The row goes back to the queue.", "vocabulary"),
        ("The row goes on later.", "vocabulary"),
        ("The worker looks at each file.", "vocabulary"),
        ("The runner is told the plan.", "vocabulary"),
        ("The page tells of each node.", "vocabulary"),
        ("The limit is said in the header.", "vocabulary"),
        ("A node was heard again.", "vocabulary"),
        ("The process is not well.", "vocabulary"),
        ("The master meets each wish.", "vocabulary"),
        ("The promised memory is free.", "vocabulary"),
        ("The client rests for 5 s.", "vocabulary"),
        ("The node that holds the term decides.", "vocabulary"),
        ("Ask the holder first.", "vocabulary"),
    ],
)
def test_a_sentence_that_breaks_a_rule_is_found(text: str, rule: str) -> None:
    assert rule in rules_of_page(MOTTO + text)


@pytest.mark.parametrize(
    "text",
    [
        MOTTO,
        "A word " * 14 + "ends here. " + "A word " * 14 + "ends here.",
        "Of course a node may leave.",
        "What does a node cost? Who may ask?",
        "What to do: run `shoal up`.",
        "What it does:",
        "What is more, a node may leave.",
        "It says what is wrong, the limit, and what to do.",
        "No one who has a key waits. Use the other one, which is free.",
        "The known values and the given name are kept in the told order.",
        "It runs until it is told to stop. The runner cannot be told apart.",
        "The flag goes on the command line. Go back to the start.",
        "The answer rests on the rest of the table. All works well.",
        "Two copies of the file are on disk.",
        "The placeholder is for the holder of a lock.",
        "## What is told of those that wait",
        "| what is told | those that wait |\n|---|---|\n| a row | a cell |",
        "```\nWhat is told of those that wait makes way.\n```",
        "Run `what is told` and `those that wait`.",
    ],
)
def test_plain_text_headings_and_code_are_left_alone(text: str) -> None:
    assert rules_of_page(text) == []


def test_generated_pages_are_left_alone_and_the_hand_written_top_of_a_page_is_not() -> None:
    bad = "\n\nThe model makes way.\n"
    assert rules_of_page("# A\n\nMade by `make docs` from code; do not edit." + bad) == []
    top = "# A" + bad + "\n## Rooms\n\nMade by `make docs`: pictures." + bad
    assert rules_of_page(top) == ["vocabulary"]


def test_each_cell_and_item_is_a_sentence_with_its_line() -> None:
    table = "| a | b |\n|---|---|\n| plain | the model makes way |\n\n1. one\n2. it is\n   let go\n"
    found = prose.of_sentences(passages.page_sentences("docs/a.md", table))
    assert [(finding.line, finding.rule) for finding in found] == [
        (3, "vocabulary"),
        (6, "vocabulary"),
    ]


@pytest.mark.parametrize(
    ("code", "rules"),
    [
        ('"""The model makes way."""\n', ["vocabulary"]),
        ('class A:\n    size: int\n    """What a row costs."""\n', ["clause-first"]),
        ('raise ValueError(f"the model {name} makes way for others")\n', ["vocabulary"]),
        ('log("those that wait are " "let go now")\n', ["no-noun", "vocabulary"]),
        ('ask = Option(help="the holder of this cluster answers")\n', ["vocabulary"]),
        ('def f():\n    """The holder answers."""\n', []),
        ('x = "SELECT one that is let go FROM rows"\n', []),
        ('x = "made.way"\ny = "let go"\n', []),
        ('def row_id(self) -> RowId:\n    """Return the row\'s id."""\n', ["repeats-name"]),
        ('def merge(rows: Rows) -> Batch:\n    """Return a batch."""\n', ["repeats-name"]),
        ('def merge(rows: Rows) -> Batch:\n    """Return a batch, oldest first."""\n', []),
        ('def peek(rows: Rows) -> int:\n    """Return the bytes, float32."""\n', []),
    ],
)
def test_docstrings_and_messages_are_checked_and_other_texts_are_not(
    code: str, rules: list[str]
) -> None:
    assert rules_of_module(code) == rules


def test_a_figure_over_its_ceiling_is_a_fault_and_only_raise_lifts_it(tmp_path: Path) -> None:
    file, command = tmp_path / "list.toml", "python -m tool"
    two, three = {"docs/a.md": {"vocabulary": 2}}, {"docs/a.md": {"vocabulary": 3}}
    assert ceilings.write(file, two, command) == ["docs/a.md: vocabulary: 0 -> 2"]
    assert not file.exists()
    ceilings.write(file, two, command, lift=True)
    assert ceilings.faults(two, ceilings.read(file), command) == []
    assert ceilings.faults({"docs/b.md": {"x": 1}}, ceilings.read(file), command)
    [fault] = ceilings.faults(three, ceilings.read(file), command)
    assert "3; the ceiling is 2" in fault
    assert ceilings.write(file, three, command) and ceilings.read(file) == two
    assert ceilings.room_to_shrink({}, ceilings.read(file)) == 2
    assert ceilings.write(file, {}, command) == [] and ceilings.read(file) == {}


def test_only_a_rule_over_its_ceiling_is_printed() -> None:
    text = "The model makes way. It skips one that is full."
    found = prose.of_sentences(passages.page_sentences("docs/a.md", text))
    limits = {"docs/a.md": {"vocabulary": 1}}
    assert [finding.rule for finding in prose.over_ceiling(found, limits)] == ["no-noun"]
    assert "1 below the ceilings" in prose.summary([], limits)
