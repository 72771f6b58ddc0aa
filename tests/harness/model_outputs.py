"""Outputs as models of each family write them, mutated: markers dropped or doubled, odd arguments.

Pure, but for the library's parsers. Each output is made of a seed. Every word in it, `w12z`, is
there once, so that one that is lost or told twice is noticed whatever else became of the text.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from runner.text.families import Family, LibraryMarks, Marks, Parsers, family_of
from runner.text.families.harmony import MARKERS as HARMONY
from runner.text.prepared import SpanState

Kind = Literal["whole", "odd", "marks", "broken", "cut"]
"""`whole`: as models write at their best. `odd`: with odd arguments. `marks`: with a marker dropped
or doubled. `broken`: arguments that break off, or that are no object. `cut`: by the limit."""

TYPES: Mapping[str, str] = {
    "at": "string", "why": "string", "count": "integer", "share": "number", "is_on": "boolean",
    "tags": "array", "where": "object",
}  # fmt: skip
_SCHEMA = {"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}}
TOOLS: Sequence[Mapping[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": _SCHEMA}}
    for name in ("lookfor", "note_it")
]
NAMES = tuple(tool["function"]["name"] for tool in TOOLS)


class Mark(str):
    """A marker of an output: it may be dropped or doubled."""

    __slots__ = ()


@dataclass(frozen=True)
class Called:
    """A call to be written: `arguments` is what is meant, `json` how it is written in JSON."""

    name: str
    arguments: Mapping[str, Any]
    json: str


Write = Callable[[Sequence[Called]], list[str]]


@dataclass(frozen=True)
class Form:
    """How one family writes. `is_json`: arguments are JSON, else each value has a place of its own.
    `leads`: calls are all of the visible text. `ends`: text may stand behind calls."""

    name: str
    family: Family
    write: Write
    is_json: bool = True
    leads: bool = False
    ends: bool = True
    single: bool = False
    opening: SpanState = "text"


@dataclass(frozen=True)
class Output:
    """A mutated output: its pieces, and what was meant by it."""

    form: Form
    seed: str
    kind: Kind
    text: str
    words: tuple[str, ...]
    calls: tuple[Called, ...]
    mutated: tuple[str, ...] = field(default=())

    @property
    def markers(self) -> list[str]:
        """Return the markers of calls, which no reader of the answer is to see."""
        family = self.form.family
        marks = family.calls
        around = [one for one in (marks.start, marks.end) if len(one) > 1] if marks else []
        return [*around, *family.inner]


# --- how calls are written --------------------------------------------------------------------


def _between(start: str, end: str, *, together: bool = False, **names: str) -> Write:
    """Return a writer of JSON between marks: all calls in one list (`together`), or each alone."""
    name, arguments = names.get("name", "name"), names.get("arguments", "arguments")

    def write(calls: Sequence[Called]) -> list[str]:
        made = [f'{{"{name}": "{one.name}", "{arguments}": {one.json}}}' for one in calls]
        if together:
            return [Mark(start), "[" + ", ".join(made) + "]", Mark(end)]
        found: list[str] = []
        for one in made:
            found += [*(["\n"] if found else []), Mark(start), f"\n{one}\n", Mark(end)]
        return found

    return write


def _llama(calls: Sequence[Called]) -> list[str]:
    return ["; ".join(f'{{"name": "{one.name}", "parameters": {one.json}}}' for one in calls)]


def _deepseek(calls: Sequence[Called], *, fenced: bool) -> list[str]:
    found: list[str] = [Mark("<｜tool▁calls▁begin｜>")]
    for one in calls:
        begin, sep = Mark("<｜tool▁call▁begin｜>"), Mark("<｜tool▁sep｜>")
        inner = ["function", sep, f"{one.name}\n```json\n{one.json}\n```"]
        found += [begin, *(inner if fenced else [one.name, sep, one.json])]
        found.append(Mark("<｜tool▁call▁end｜>"))
    return [*found, Mark("<｜tool▁calls▁end｜>")]


def _kimi_k2(calls: Sequence[Called]) -> list[str]:
    found: list[str] = [Mark("<|tool_calls_section_begin|>")]
    for number, one in enumerate(calls):
        found += [
            Mark("<|tool_call_begin|>"),
            f"functions.{one.name}:{number}",
            Mark("<|tool_call_argument_begin|>"),
            one.json,
            Mark("<|tool_call_end|>"),
        ]
    return [*found, Mark("<|tool_calls_section_end|>")]


def _mistral(calls: Sequence[Called]) -> list[str]:
    found: list[str] = []
    for one in calls:
        found += [Mark("[TOOL_CALLS]"), one.name, Mark("[ARGS]"), one.json]
    return found


def _harmony(calls: Sequence[Called]) -> list[str]:
    (one,) = calls
    return [
        Mark("<|start|>"), "assistant", Mark("<|channel|>"), f"commentary to=functions.{one.name} ",
        Mark("<|constrain|>"), "json", Mark("<|message|>"), one.json, Mark("<|call|>"),
    ]  # fmt: skip


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _tagged(around: tuple[str, str], call: str, end: str, argument: str, behind: str) -> Write:
    """Return a writer of values between tags; `call` and `argument` have `@` where the name is."""

    def write(calls: Sequence[Called]) -> list[str]:
        found: list[str] = []
        for one in calls:
            before, after = call.split("@")
            found += [*_marks(around[0]), *_marks(before), one.name, *_marks(after)]
            for name, value in one.arguments.items():
                first, then = argument.split("@")
                found += [*_marks(first), name, *_marks(then), _plain(value), *_marks(behind)]
            found += [*_marks(end), *_marks(around[1])]
        return found

    return write


def _marks(text: str) -> list[str]:
    """Return a text as a marker and the line ends around it."""
    bare = text.strip("\n")
    if not bare:
        return [text] if text else []
    before, after = text.split(bare)
    return [one for one in (before, Mark(bare), after) if one]


def _gemma(quote: str, start: str, end: str) -> Write:
    def value(one: Any) -> str:
        match one:
            case str():
                return f"{quote}{one}{quote}"
            case dict():
                members = cast(dict[str, Any], one).items()
                return "{" + ",".join(f"{name}:{value(inner)}" for name, inner in members) + "}"
            case list():
                return "[" + ",".join(map(value, cast(list[Any], one))) + "]"
            case _:
                return json.dumps(one)

    def write(calls: Sequence[Called]) -> list[str]:
        found: list[str] = []
        for one in calls:
            found += [Mark(start), f"call:{one.name}{value(dict(one.arguments))}", Mark(end)]
        return found

    return write


def _pythonic(calls: Sequence[Called]) -> list[str]:
    made = [
        f"{one.name}({', '.join(f'{name}={value!r}' for name, value in one.arguments.items())})"
        for one in calls
    ]
    return [Mark("<|tool_call_start|>"), f"[{', '.join(made)}]", Mark("<|tool_call_end|>")]


def _kimi_k3(calls: Sequence[Called]) -> list[str]:
    kinds: dict[type, str] = {
        str: "string",
        bool: "boolean",
        int: "number",
        float: "number",
        list: "array",
    }
    found: list[str] = [Mark("<|open|>tools<|sep|>")]
    for number, one in enumerate(calls, 1):
        found.append(Mark(f'<|open|>call tool="{one.name}" index="{number}"<|sep|>'))
        for name, value in one.arguments.items():
            kind = kinds.get(type(value), "object")
            found += [Mark(f'<|open|>argument key="{name}" type="{kind}"<|sep|>'), _plain(value)]
            found.append(Mark("<|close|>argument<|sep|>"))
        found.append(Mark("<|close|>call<|sep|>"))
    return [*found, Mark("<|close|>tools<|sep|>")]


_TOOL_CALL = ("<tool_call>", "</tool_call>")
_GLM = _tagged(_TOOL_CALL, "@\n", "", "<arg_key>@</arg_key>\n<arg_value>", "</arg_value>\n")
_OWN: tuple[tuple[str, Write], ...] = (
    ("hermes", _between(*_TOOL_CALL)),
    ("nemotron", _between("<TOOLCALL>", "</TOOLCALL>", together=True)),
    ("phi4", _between("<|tool_call|>", "<|/tool_call|>", together=True)),
    ("granite", _between("<|tool_call|>", "", together=True)),
    ("cohere", _between("<|START_ACTION|>", "<|END_ACTION|>", together=True, name="tool_name",
                        arguments="parameters")),
    ("deepseek", lambda calls: _deepseek(calls, fenced=False)),
    ("deepseek", lambda calls: _deepseek(calls, fenced=True)),
    ("llama", _llama),
)  # fmt: skip
_LIBRARY: tuple[tuple[str, Write, bool], ...] = (
    ("json_tools", _between(*_TOOL_CALL), True),
    ("mistral", _mistral, True),
    ("mistral", _between("[TOOL_CALLS]", "", together=True), True),
    ("kimi_k2", _kimi_k2, True),
    ("qwen3_coder", _tagged(_TOOL_CALL, "\n<function=@>\n", "</function>\n",
                            "<parameter=@>\n", "\n</parameter>\n"), False),
    ("minimax_m2", _tagged(("<minimax:tool_call>", "</minimax:tool_call>"),
                           '\n<invoke name="@">\n', "</invoke>\n",
                           '<parameter name="@">', "</parameter>\n"), False),
    ("glm47", _GLM, False),
    ("laguna", _GLM, False),
    ("longcat", _tagged(("<longcat_tool_call>", "</longcat_tool_call>"), "@\n", "",
                        "<longcat_arg_key>@</longcat_arg_key>\n<longcat_arg_value>",
                        "</longcat_arg_value>\n"), False),
    ("minicpm5", _tagged(("", ""), '<function name="@">', "</function>",
                         '<param name="@">', "</param>"), False),
    ("muse_spark", _tagged(("<atem:function_calls>", "</atem:function_calls>"),
                           '\n<atem:invoke name="@">\n', "</atem:invoke>\n",
                           '<atem:parameter name="@">', "</atem:parameter>\n"), False),
    ("function_gemma", _gemma("<escape>", "<start_function_call>", "<end_function_call>"), False),
    ("gemma4", _gemma('<|"|>', "<|tool_call>", "<tool_call|>"), False),
    ("pythonic", _pythonic, False),
    ("kimi_k3", _kimi_k3, False),
)  # fmt: skip
_THINK = Marks("<think>", "</think>")


def forms() -> list[Form]:
    """Return all forms in which families write calls."""
    found: list[Form] = []
    for name, write in _OWN:
        family = family_of("", (), LibraryMarks(), Parsers(calls=name, thinking="think"))
        ends = name not in ("granite", "llama")
        found.append(Form(name, family, write, leads=name == "llama", ends=ends))
    for name, write, is_json in _LIBRARY:
        library: Any = importlib.import_module(f"mlx_lm.tool_parsers.{name}")
        calls = Marks(library.tool_call_start, library.tool_call_end)
        told = LibraryMarks(_THINK, calls, name, library.parse_tool_call)
        ends = bool(calls.end)
        found.append(Form(name, family_of("", (), told), write, is_json=is_json, ends=ends))
    harmony = family_of("", HARMONY, LibraryMarks())
    found.append(Form("harmony", harmony, _harmony, ends=False, single=True, opening="header"))
    return found


# --- what is in them --------------------------------------------------------------------------


class _Words:
    """Words of which each is made once."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self) -> str:
        self.made.append(f"w{len(self.made)}z")
        return self.made[-1]


ODD = ("control", "surrogate", "escape", "marker", "unicode", "huge", "deep", "type", "comma",
       "twice", "key", "lines")  # fmt: skip
"""What may be odd about arguments."""
_UNICODE = ("é", "日本語", "🐟", "\u2028", "\u0085", "\ufeff", "e\u0301", "\u202e", "\u200d", "ß")
_CONTROL = ("\n", "\t", "\r\n", "\x01", "\x1b[0m", "\x7f")


def outputs(seed: int, count: int) -> Iterator[Output]:
    """Make so many outputs of a seed, the families in turn."""
    known = forms()
    for number in range(count):
        yield output_of(known[number % len(known)], f"{seed}/{number}")


def output_of(form: Form, seed: str) -> Output:
    """Make the output of one family that this seed tells of."""
    chance = random.Random(seed)
    kind: Kind = chance.choices(("whole", "odd", "marks", "broken", "cut"), (3, 4, 4, 1, 1))[0]
    words = _Words()
    odd = chance.choice(ODD) if kind == "odd" or (kind == "marks" and chance.random() < 0.3) else ""
    calls = _calls(form, chance, words, odd, broken=kind == "broken")
    pieces = _around(form, chance, words, calls)
    mutated = (odd,) if odd else ()
    if kind == "marks":
        pieces, how = _mutated(pieces, chance)
        mutated = (*mutated, *how)
    text = "".join(pieces)
    if kind == "cut":
        text = text[: chance.randrange(len(text) + 1)]
    there = tuple(word for word in words.made if word in text)
    return Output(form, seed, kind, text, there, calls, mutated)


def _calls(
    form: Form, chance: random.Random, words: _Words, odd: str, *, broken: bool
) -> tuple[Called, ...]:
    count = 1 if form.single or broken else chance.choice((1, 1, 1, 2, 3))
    if not odd and not broken and chance.random() < 0.1 and form.name != "llama":
        return ()
    made: list[Called] = []
    for number in range(count):
        arguments = _arguments(form, chance, words, odd if number == 0 else "")
        text = json.dumps(arguments, ensure_ascii=chance.random() < 0.3)
        text = _odd_json(text, chance, odd if number == 0 else "")
        if broken:
            text = _broken(text, chance, words)
        made.append(Called(chance.choice(NAMES), arguments, text))
    return tuple(made)


def _arguments(form: Form, chance: random.Random, words: _Words, odd: str) -> dict[str, Any]:
    names = chance.sample(sorted(TYPES), chance.randrange(len(TYPES) + 1))
    if odd and not names:
        names = ["at"]
    found = {name: _value(TYPES[name], chance, words) for name in names}
    if odd == "key" and form.is_json:
        key = chance.choice(("", "a b", 'q"x', "ключ", "x:y", "</a>", "n\nl", "a.b-c", "1"))
        found[key] = words()
    where = chance.choice(names) if names else "at"
    match odd:
        case "unicode":
            found["at"] = "".join(chance.choices(_UNICODE, k=3)) + words()
        case "control" | "lines":
            found["at"] = words() + "".join(chance.choices(_CONTROL, k=2)) + words()
        case "marker":
            own = [one for one in _inner_markers(form) if one]
            found["at"] = f"{words()} {chance.choice(own)} {words()}"
        case "huge":
            found["count"] = chance.choice((10**19, -(10**40), 2**64, 10**400, 1.5e308))
        case "deep":
            depth = chance.choice((40, 70, 130, 300))
            if form.name == "pythonic":
                depth = min(depth, 130)  # CPython's parser reads 200 levels; see docs/plans.md
            value: Any = words()
            for _ in range(depth):
                value = [value] if chance.random() < 0.5 else {"a": value}
            found["where"] = value
        case "type":
            found[where] = chance.choice(
                (words(), 7, 2.5, True, None, [words(), 1], {"a": words()}, f"2026-01-15 {words()}")
            )
        case _:
            pass
    return found


def _inner_markers(form: Form) -> list[str]:
    marks = form.family.calls
    around = [marks.start, marks.end] if marks else []
    return [*around, *form.family.inner, "<think>", "</think>", "</tool_call>", "<|im_end|>",
            "</parameter>", "[TOOL_CALLS]", "```"]  # fmt: skip


def _value(kind: str, chance: random.Random, words: _Words) -> Any:
    match kind:
        case "string":
            return " ".join(words() for _ in range(chance.randrange(1, 4)))
        case "integer":
            return chance.randrange(-5, 10**6)
        case "number":
            return chance.choice((0.5, -2.25, 1e-9, 3))
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return [words() if chance.random() < 0.5 else 1 for _ in range(chance.randrange(3))]
        case _:
            return {"a": words(), "b": [1, {"c": None}]} if chance.random() < 0.7 else {}


def _odd_json(text: str, chance: random.Random, odd: str) -> str:
    """Return JSON text as a careless model writes it."""
    match odd:
        case "control":
            return text.replace("\\n", "\n").replace("\\t", "\t").replace("\\u0001", "\x01")
        case "surrogate":
            half = chance.choice(("\\ud800", "\\udc00", "\\ud83d\\n", "\\uD83D"))
            return text.replace('z"', f'z{half}"', 1)
        case "escape":
            wrong = chance.choice(("\\'", "\\d", "C:\\dir", "\\u12", "\\x41"))
            return text.replace('z"', f'z{wrong}"', 1)
        case "comma" if text != "{}":
            text = text.replace(": true", ": True").replace(": null", ": None")
            return text[:-1] + ",}"
        case "twice" if text != "{}":
            return text[:-1] + ', "count": 1, "count": 2}'
        case "huge":
            return text.replace("1.5e+308", chance.choice(("1e999", "9" * 5000, "-1e-999")))
        case _:
            return text


def _broken(text: str, chance: random.Random, words: _Words) -> str:
    if chance.random() < 0.5:
        return text[: chance.randrange(len(text))]
    return chance.choice(
        (f'"{words()}"', f'["{words()}"]', "7", "null", "", words(), "{" + words())
    )


def _around(form: Form, chance: random.Random, words: _Words, calls: Sequence[Called]) -> list[str]:
    """Return thinking, text, the calls and text behind them."""
    pieces: list[str] = []
    is_harmony = form.opening == "header"
    if chance.random() < 0.4:
        thought = f"{words()} {words()}"
        if is_harmony:
            pieces += [Mark("<|channel|>"), "analysis", Mark("<|message|>"), thought]
            pieces.append(Mark("<|end|>"))
        else:
            pieces += [Mark("<think>"), f"\n{thought}\n", Mark("</think>"), "\n\n"]
    says = chance.random() < 0.5 or not calls
    if says and not (form.leads and calls):
        if is_harmony:
            channel = "commentary" if calls else "final"
            pieces += [*([Mark("<|start|>"), "assistant"] if pieces else []), Mark("<|channel|>")]
            pieces += [
                channel,
                Mark("<|message|>"),
                words(),
                Mark("<|end|>" if calls else "<|return|>"),
            ]
        else:
            pieces += [f"{words()} {chance.choice(_UNICODE)}{words()}", "\n" if calls else ""]
    if not calls:
        return pieces
    written = form.write(calls)
    if is_harmony and not pieces:
        written = written[2:]
    pieces += written
    if form.ends and chance.random() < 0.2:
        pieces.append(f"\n{words()}")
    return pieces


def _mutated(pieces: Sequence[str], chance: random.Random) -> tuple[list[str], list[str]]:
    """Return pieces with one marker or two dropped or doubled, and what was done."""
    made, how = list(pieces), list[str]()
    for _ in range(chance.choice((1, 1, 2))):
        places = [place for place, one in enumerate(made) if isinstance(one, Mark) and one]
        if not places:
            break
        place = chance.choice(places)
        if chance.random() < 0.5:
            how.append(f"dropped {made[place]}")
            del made[place]
        else:
            how.append(f"doubled {made[place]}")
            made.insert(place, made[place])
    return made, how
