"""The forms of tool calls by family, piece by piece, from which grammars of calls are made.

Pure. Arguments are one JSON object, or tags with one value each. Sources: the chat templates of the
models, and the formats that their parsers accept. A family that is missing here has calls that our
grammars cannot describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.text.families.spans import Marks


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression for a text that the model may choose, such as the id of a call."""

    regex: str


Piece = str | Pattern


@dataclass(frozen=True, slots=True)
class Tags:
    """Tool arguments written as tags, with one value between each pair of tags: a string as plain
    text, any other value as JSON.

    `any_json`: values other than strings may have any schema. Else their type must be one plain
    word, and the string "null" cannot be written.
    """

    before_name: tuple[Piece, ...]
    behind_name: tuple[Piece, ...]
    behind_value: tuple[Piece, ...]
    any_json: bool = False


@dataclass(frozen=True, slots=True)
class Turns:
    """The fixed texts of an output that consists of several messages: the openings of messages with
    thoughts, which may follow each other; the opening of the answer. Also the text between two
    messages."""

    thoughts: tuple[tuple[str, ...], ...]
    answer: tuple[str, ...]
    between: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallForm:
    """The fixed text in and around tool calls. An output is `opens`, the first call, `between`, the
    next call, ..., `closes`. A call is `head`, name, `middle`, arguments, `tail`. A piece that is a
    token must be written as a token.

    `names` is a pattern of names; None: any name, as a JSON string. `is_last`: no text follows
    calls. `is_single`: an answer has at most one call.
    """

    head: tuple[Piece, ...]
    middle: tuple[Piece, ...]
    tail: tuple[Piece, ...] = ()
    opens: tuple[Piece, ...] = ()
    between: tuple[Piece, ...] = ()
    closes: tuple[Piece, ...] = ()
    names: str | None = None
    tags: Tags | None = None
    turns: Turns | None = None
    is_last: bool = False
    is_single: bool = False

    @property
    def pieces(self) -> frozenset[str]:
        """Return all fixed texts in calls and messages of this form."""
        around = (*self.opens, *self.head, *self.middle, *self.tail, *self.between, *self.closes)
        turns = self.turns
        of_turns = (
            () if turns is None else (*turns.answer, *turns.between, *sum(turns.thoughts, ()))
        )
        tags = self.tags
        within = () if tags is None else (*tags.before_name, *tags.behind_name, *tags.behind_value)
        return frozenset(piece for piece in (*around, *of_turns, *within) if isinstance(piece, str))

    @property
    def mark(self) -> str:
        """Return the first fixed text of a call, which distinguishes a call from other text."""
        first = (self.opens or self.head)[0]
        assert isinstance(first, str)
        return first


_NUMBER = Pattern("[0-9]{1,2}")
_LINE = Pattern(r"\n?")
_WORD = r"[\w-]+"
_DOTTED = r"[\w.:-]+"
_UNMARKED = r"[^\s<>\"'\[\]{}]+"
_CALL, _ARGUMENT, _SEPARATOR = (
    "<｜tool▁call▁begin｜>",
    "<|tool_call_argument_begin|>",
    "<｜tool▁sep｜>",
)
_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"

_IN_JSON = CallForm(
    head=("<tool_call>", '\n{"name": '),
    middle=(', "arguments": ',),
    tail=("}\n", "</tool_call>"),
    between=("\n",),
)
_FORMS: Mapping[str, CallForm] = {
    "json_tools": _IN_JSON,
    "json_calls": _IN_JSON,
    "bare_json": CallForm(
        head=('{"name": ',), middle=(', "parameters": ',), tail=("}",), between=("; ",)
    ),
    "kimi_k2": CallForm(
        opens=("<|tool_calls_section_begin|>",),
        head=("<|tool_call_begin|>", "functions."),
        middle=(":", _NUMBER, _ARGUMENT),
        tail=("<|tool_call_end|>",),
        closes=("<|tool_calls_section_end|>",),
        names=_DOTTED,
    ),
    "mistral": CallForm(head=("[TOOL_CALLS]",), middle=("[ARGS]",), names=_WORD, is_last=True),
    "mistral_list": CallForm(
        opens=("[TOOL_CALLS]", Pattern(" ?"), "["),
        head=('{"name": ',),
        middle=(', "arguments": ',),
        tail=("}",),
        between=(", ",),
        closes=("]",),
        is_last=True,
    ),
    "qwen3_coder": CallForm(
        head=("<tool_call>", "\n<function="),
        middle=(">\n",),
        tail=("</function>\n", "</tool_call>"),
        between=("\n",),
        names=_UNMARKED,
        tags=Tags(("<parameter=",), (">\n",), ("\n</parameter>\n",)),
    ),
    "minimax_m2": CallForm(
        opens=("<minimax:tool_call>", "\n"),
        head=('<invoke name="',),
        middle=('">\n',),
        tail=("</invoke>\n",),
        closes=("</minimax:tool_call>",),
        names=_UNMARKED,
        tags=Tags(('<parameter name="',), ('">',), ("</parameter>\n",)),
    ),
    "glm47": CallForm(
        head=("<tool_call>",),
        middle=(_LINE,),
        tail=("</tool_call>",),
        between=("\n",),
        names=_UNMARKED,
        tags=Tags(
            ("<arg_key>",),
            ("</arg_key>", _LINE, "<arg_value>"),
            ("</arg_value>", _LINE),
            any_json=True,
        ),
    ),
    "harmony": CallForm(
        head=(_CHANNEL, "commentary to=functions."),
        middle=(" ", "<|constrain|>", "json", _MESSAGE),
        tail=("<|call|>",),
        names=_DOTTED,
        turns=Turns(
            thoughts=((_CHANNEL, "analysis", _MESSAGE), (_CHANNEL, "commentary", _MESSAGE)),
            answer=(_CHANNEL, "final", _MESSAGE),
            between=("<|end|>", "<|start|>", "assistant"),
        ),
        is_last=True,
        is_single=True,
    ),
}
_DEEPSEEK = CallForm(
    opens=("<｜tool▁calls▁begin｜>",),
    head=(_CALL,),
    middle=(_SEPARATOR,),
    tail=("<｜tool▁call▁end｜>",),
    closes=("<｜tool▁calls▁end｜>",),
    names=_DOTTED,
)
_DEEPSEEK_FENCED = CallForm(
    opens=_DEEPSEEK.opens,
    head=(_CALL, "function", _SEPARATOR),
    middle=("\n```json\n",),
    tail=("\n```", *_DEEPSEEK.tail),
    between=("\n",),
    closes=_DEEPSEEK.closes,
    names=_DOTTED,
)


def call_form(format: str | None, marks: Marks | None, template: str) -> CallForm | None:
    """Return the form of the calls that the `format` of this name writes between `marks`; some
    details depend on the template. Return None if the form is unknown."""
    if format == "deepseek":
        return _DEEPSEEK_FENCED if "```json" in template else _DEEPSEEK
    if format == "mistral":
        return _FORMS["mistral" if "[ARGS]" in template else "mistral_list"]
    if format == "json_list" and marks is not None:
        return _listed(marks)
    return _FORMS.get(format or "")


def _listed(marks: Marks) -> CallForm:
    """Return the form of calls in a JSON list. Command R numbers its calls and uses other keys."""
    is_numbered = marks.start == "<|START_ACTION|>"
    numbered = ('{"tool_call_id": "', _NUMBER, '", "tool_name": ')
    return CallForm(
        opens=(marks.start, "["),
        head=numbered if is_numbered else ('{"name": ',),
        middle=(', "parameters": ' if is_numbered else ', "arguments": ',),
        tail=("}",),
        between=(", ",),
        closes=("]", *((marks.end,) if marks.end else ())),
        is_last=not marks.end,
    )
