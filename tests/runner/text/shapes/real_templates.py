"""Real chat templates, of packages that ship them as their makers published them.

They are read where the packages are fetched to (`tests.harness.wheels`); none is copied here, and
no code of a package runs. `python -m tests.runner.text.shapes.real_templates` prints what becomes
of each part of a conversation with each of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from bus.wire.errors import BadRequest
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ImagePart,
    TextPart,
    ToolCall,
    ToolSpec,
)
from runner.text.conversation import Conversations
from runner.text.families import Family, effort_levels, family_of
from runner.text.families.harmony import MARKERS
from runner.text.markup import AddedText, find_markup
from runner.text.opening.alone import library_marks
from runner.text.rendering.sandbox import environment
from runner.text.shapes import TemplateShape
from runner.text.template import Rendered, marked, up_to_mark
from tests.harness.wheels import Wheel

TRL = Wheel("trl==1.16.0", "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396")
AXOLOTL = Wheel(
    "axolotl==0.19.0", "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc"
)
FOLDERS = {TRL: "trl/chat_templates", AXOLOTL: "axolotl/utils/chat_templates/templates"}


class Real(NamedTuple):
    """A chat template: file `name` of a package. `differs` are the fields of its shape in which it
    differs from most, `refuses` the parts of a conversation that it does not show, but for images,
    which none does."""

    wheel: Wheel
    name: str
    differs: Mapping[str, str] = MappingProxyType({})
    refuses: tuple[str, ...] = ()


TOOLS, CALLS = ("tools",), ("parallel calls", "results")
FAMILIES: Mapping[str, Real] = {
    "Aya Expanse": Real(
        TRL, "cohere", {"system": "first", "turns": "alternating"}, (*TOOLS, *CALLS)
    ),
    "Command A": Real(AXOLOTL, "command_a_tool_use", {"beside": "apart"}),
    "Tiny Aya": Real(TRL, "cohere2", {"turns": "alternating"}, (*TOOLS, *CALLS)),
    "DeepSeek R1 Distill": Real(
        TRL,
        "deepseek_r1_distill",
        {
            "system": "first",
            "empty": "null",
            "arguments": "text",
            "beside": "apart",
            "tools": "unseen",
        },
        TOOLS,
    ),
    "DeepSeek V3": Real(TRL, "deepseekv3", {"arguments": "text", "tools": "unseen"}, TOOLS),
    "EXAONE 4": Real(AXOLOTL, "exaone4"),
    "Falcon H1": Real(
        AXOLOTL, "falcon_h1", {"system": "first", "calls": "unseen", "beside": "unseen"}, CALLS
    ),
    "Gemma 2": Real(TRL, "gemma", {"system": "none", "turns": "alternating"}, (*TOOLS, *CALLS)),
    "Gemma 3": Real(TRL, "gemma3", {"system": "first", "turns": "alternating"}, (*TOOLS, *CALLS)),
    "Gemma 4": Real(TRL, "gemma4_v5"),
    "GLM 4.5": Real(TRL, "glm4moe"),
    "gpt-oss": Real(TRL, "gptoss", {"system": "first", "calls": "single"}),
    "Jamba": Real(AXOLOTL, "jamba", refuses=TOOLS),
    "LFM2": Real(TRL, "lfm2_v2"),
    "LFM2.5": Real(TRL, "lfm2_2_5_v2"),
    "Llama 3": Real(TRL, "llama3", refuses=(*TOOLS, *CALLS)),
    "Llama 3.1": Real(TRL, "llama3_1", {"calls": "single", "beside": "apart"}),
    "Llama 3.2": Real(TRL, "llama3_2", {"calls": "single", "beside": "apart"}),
    "Llama 4": Real(AXOLOTL, "llama4"),
    "Mistral 7B v0.3": Real(
        AXOLOTL,
        "mistral_v2v3",
        {"system": "first", "turns": "alternating", "ids": "nine", "beside": "unseen"},
    ),
    "Mistral Nemo": Real(
        AXOLOTL,
        "mistral_v3_tekken",
        {"system": "first", "turns": "alternating", "ids": "nine", "beside": "unseen"},
    ),
    "Mistral Small 3": Real(AXOLOTL, "mistral_v7_tekken", refuses=(*TOOLS, *CALLS)),
    "Muse Glimmer": Real(TRL, "muse_glimmer", {"beside": "apart"}),
    "Nemotron 3 Nano": Real(TRL, "nemotron_3_nano"),
    "Nemotron 3 Super": Real(TRL, "nemotron_3_super"),
    "Phi 3": Real(TRL, "phi3", refuses=(*TOOLS, *CALLS)),
    "Phi 3.5": Real(TRL, "phi3_5", refuses=(*TOOLS, *CALLS)),
    "Phi 4": Real(AXOLOTL, "phi_4", {"system": "first"}, (*TOOLS, *CALLS)),
    "Qwen 2.5": Real(TRL, "qwen2_5"),
    "Qwen 3": Real(TRL, "qwen3"),
    "Qwen 3 2507": Real(TRL, "qwen3_instruct_2507"),
    "Qwen 3.5": Real(TRL, "qwen3_5_think", {"system": "first"}),
    "Qwen 3.6": Real(TRL, "qwen3_6", {"system": "first"}),
    "Qwen 3.8": Real(TRL, "qwen3_8", {"system": "first"}),
}
"""By the names of their makers' models."""
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_SPELLED = re.compile(r"</?[^<>\s{}'\"%]+>|\[/?[A-Z_]+\]")


_TAG = re.compile(r"</?[a-z_]+>")


def template_text(family: str) -> str:
    """Return a family's chat template. Raises NotFetched."""
    real = FAMILIES[family]
    folder = real.wheel.folder() / FOLDERS[real.wheel]
    return (folder / f"{real.name}.jinja").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Known:
    """The part of a tokenizer that mlx-lm's functions look at."""

    chat_template: str
    tokens: Mapping[str, None]

    def get_vocab(self) -> dict[str, int]:
        """Return the tokens that the template spells."""
        return {token: number for number, token in enumerate(self.tokens)}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return one token, whatever the text is."""
        return [self.get_vocab().get(text, len(self.tokens))]


class RealTemplate:
    """A chat template as the runner has it, rendered by Jinja as the sandbox does. What it spells
    between brackets are its tokens."""

    def __init__(self, text: str) -> None:
        tokens = dict.fromkeys(_SPELLED.findall(text))
        if "<|channel|>" in text:
            tokens |= dict.fromkeys(MARKERS)
        self.family: Family = family_of(text, tokens, library_marks(Known(text, tokens), None))
        marks = self.family.think, self.family.calls
        own = [one for pair in marks if pair for one in (pair.start, pair.end)]
        added = [AddedText(one, not _TAG.fullmatch(one)) for one in tokens]
        self.markup = find_markup(added, text, own)
        self.efforts = effort_levels(text)
        self.has_template = True
        self._template = environment().from_string(text)
        self.renders = 0

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking: bool,
        continue_final: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the prompt's text."""
        self.renders += 1
        shown = marked(messages) if continue_final else messages
        text = self._template.render(
            **variables,
            **TOKENS,
            messages=self.family.messages(shown),
            tools=list(tools) or None,
            enable_thinking=thinking,
            add_generation_prompt=not continue_final,
        )
        return up_to_mark(text, messages[-1]) if continue_final else text


TOOL = ToolSpec(
    name="look_there",
    description="Looks.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}},
)


def said(role: str, text: str = "", **fields: Any) -> ChatMessage:
    """Return a message of one text."""
    parts = (TextPart(text=text),) if text else ()
    return ChatMessage.model_validate({"role": role, "parts": parts, **fields})


def called(number: int, at: str) -> ToolCall:
    """Return a call of the tool."""
    arguments = json.dumps({"at": at})
    return ToolCall(call_id=f"call_{number}", name=TOOL.name, arguments=arguments)


def _answered(*places: str, **fields: Any) -> tuple[ChatMessage, ...]:
    """Return calls made at once, and a result of each."""
    calls = tuple(called(number, at) for number, at in enumerate(places))
    results = (
        said("tool", f"found {at}", tool_call_id=call.call_id)
        for call, at in zip(calls, places, strict=True)
    )
    return said("assistant", tool_calls=calls, **fields), *results


class Told:
    """What becomes of each part of a conversation, by one template."""

    def __init__(self, text: str) -> None:
        self._template = RealTemplate(text)
        self._conversations = Conversations(self._template, thinking_by_default=False)
        self.shape: TemplateShape = self._conversations.shape
        self.renders = self._template.renders
        has_calls = self._template.family.calls is not None
        self._tools = (TOOL,) if has_calls and self.shape.tools != "unseen" else ()

    def spelled(self) -> str:
        """Return what becomes of a user's text that spells every token of the template."""
        text = " ".join(sorted(self._template.markup.control))
        found = self.rendered(said("user", text))
        count = len(self._template.markup.control)
        is_whole = text in found.text and len(found.spelled) == count
        return "text" if is_whole else f"LOST: {len(found.spelled)} of {count} are text"

    def rendered(
        self,
        *messages: ChatMessage,
        tools: tuple[ToolSpec, ...] | None = None,
        continues: bool = False,
    ) -> Rendered:
        """Return a conversation's prompt, with a tool where none are named and the runner offers
        them to the model. Raises BadRequest."""
        offered = self._tools if tools is None else tools
        prompt = ChatPrompt(messages=messages, tools=offered, continue_final=continues)
        asked = GenerationRequest(
            request_id=RequestId("r"), model=ModelId("m"), prompt=prompt, thinking=None
        )
        return self._conversations.rendered(asked, prompt)

    @property
    def shows_calls(self) -> bool:
        """Return whether earlier calls are shown."""
        return bool(self._tools) and self.shape.calls != "unseen"

    def cell(self, find: Callable[[], str]) -> str:
        """Return what a part becomes, or why it is refused."""
        try:
            return find()
        except BadRequest as refused:
            return f"refused: {refused.message} [{refused.field}]"

    def row(self) -> dict[str, str]:
        """Return what becomes of each part."""
        return {name: self.cell(lambda find=find: find(self)) for name, find in PARTS.items()}


def _shown(text: str, *parts: str) -> str:
    lost = [part for part in parts if part not in text]
    return f"LOST: {', '.join(lost)}" if lost else "shown"


def _system(told: Told) -> str:
    text = told.rendered(
        said("system", "qrule one"), said("user", "qask"), said("assistant", "qsay"),
        said("system", "qrule two"), said("user", "qmore"),
    ).text  # fmt: skip
    where = {"anywhere": "shown", "first": "shown, later as user", "none": "as user"}
    found = _shown(text, "qrule one", "qask", "qsay", "qrule two", "qmore")
    return where[told.shape.system] if found == "shown" else found


def _tools(told: Told) -> str:
    return _shown(told.rendered(said("user", "qask"), tools=(TOOL,)).text, TOOL.name, "qask")


def _called(told: Told, *places: str) -> str:
    messages = said("user", "qask"), *_answered(*places), said("assistant", "qend")
    text = told.rendered(*messages, said("user", "qmore")).text
    return _shown(text, "qask", *(f"found {at}" for at in places), "qend", "qmore", *places)


def _parallel(told: Told) -> str:
    found = _called(told, "qhere", "qthere")
    return "shown one by one" if found == "shown" and told.shape.calls == "single" else found


def _reasoning(told: Told) -> str:
    now = said("user", "qask"), *_answered("qhere", reasoning="qthought")
    if not told.shows_calls:
        now = said("user", "qask"), said("assistant", "qsay", reasoning="qthought")
    later = *now, said("assistant", "qend"), said("user", "qmore")
    texts = [told.rendered(*messages).text for messages in (now, later)]
    kept = [name for name, text in zip(("in its turn", "later"), texts, strict=True)
            if "qthought" in text]  # fmt: skip
    return "shown " + " and ".join(kept) if kept else "dropped by the template"


def _names(told: Told) -> str:
    text = told.rendered(said("user", "qask", name="qann")).text
    return "shown" if "qann" in text else "not shown"


def _images(told: Told) -> str:
    image = ImagePart(url="data:image/png;base64,")
    told.rendered(ChatMessage(role="user", parts=(TextPart(text="qask"), image)))
    return "TAKEN"


def _continued(told: Told) -> str:
    text = told.rendered(said("user", "qask"), said("assistant", "qso far"), continues=True).text
    return "goes on" if text.endswith("qso far") else f"LOST: ends in {text[-20:]!r}"


PARTS: Mapping[str, Callable[[Told], str]] = {
    "system": _system,
    "tools": _tools,
    "parallel calls": _parallel,
    "results": lambda told: _called(told, "qhere"),
    "reasoning": _reasoning,
    "names": _names,
    "images": _images,
    "continued answer": _continued,
    "special tokens": Told.spelled,
}


def table() -> Iterator[tuple[str, Told, dict[str, str]]]:
    """Yield each family with what becomes of each part. Raises NotFetched."""
    for family in FAMILIES:
        told = Told(template_text(family))
        yield family, told, told.row()


def main() -> int:
    """Print the table, with the words of each refusal behind it."""
    refusals: dict[str, list[str]] = {}
    print(f"{'':20} " + " ".join(f"{name:27}" for name in PARTS))
    for family, _, row in table():
        print(f"{family:20} " + " ".join(f"{cell.split(':')[0]:27}" for cell in row.values()))
        for name, cell in row.items():
            if ":" in cell:
                refusals.setdefault(f"{name}: {cell}", []).append(family)
    for words, families in refusals.items():
        print(f"{words}\n    {', '.join(families)}")
    for wheel in FOLDERS:
        count = sum(one.wheel is wheel for one in FAMILIES.values())
        print(f"{count} of {wheel.package}, sha256 {wheel.sha256}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
