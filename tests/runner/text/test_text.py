from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ImagePart,
    OutputFormat,
    PromptQuestion,
    Sampling,
    TextPart,
    TextPrompt,
    TokensPrompt,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from runner.engine import RowId, SampledToken
from runner.text.checks import begun_once, behind
from runner.text.grammar import open_matcher
from runner.text.prepared import (
    CallPiece,
    ChoiceFinish,
    ChoiceReader,
    Piece,
    PreparedRequest,
    ReadPrompt,
    TextPiece,
    TextWorks,
    choice_seed,
)
from runner.text.rendering import Renderer, RenderLimits
from runner.text.text import LISTED_TOKENS, TOLD_CHARACTERS, Text
from runner.text.tokenizer import TokenizerError
from tests.harness.toy_tokenizer import FILL_IN, MARKERS, TEMPLATE, VOCABULARY, toy_tokenizer

TOKENIZER = toy_tokenizer()
TEXT: TextWorks = Text(TOKENIZER)
EOS = 2
TOOL = ToolSpec(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def chat(*texts: str, tools: tuple[ToolSpec, ...] = (), **fields: Any) -> ChatPrompt:
    roles = ("user", "assistant")
    messages = tuple(
        ChatMessage(role=roles[place % 2], parts=(TextPart(text=text),))  # type: ignore[arg-type]
        for place, text in enumerate(texts)
    )
    return ChatPrompt(messages=messages, tools=tools, **fields)


def request(prompt: Any = None, **fields: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=RequestId("req-1"),
        model=ModelId("toy"),
        prompt=prompt if prompt is not None else chat("hello"),
        **fields,
    )


def ready(asked: GenerationRequest, context: int = 4096) -> PreparedRequest:
    prepared = TEXT.prepare(asked, context)
    assert isinstance(prepared, PreparedRequest), prepared
    return prepared


def refused(asked: GenerationRequest, context: int = 4096) -> Refusal:
    refusal = TEXT.prepare(asked, context)
    assert isinstance(refusal, Refusal)
    return refusal


def prompt_text(prepared: PreparedRequest) -> str:
    return TOKENIZER._backend.decode(list(prepared.tokens), skip_special_tokens=False)


def token(index: int) -> SampledToken:
    return SampledToken(RowId(1), TokenId(index), -0.5, ((TokenId(index), -0.5),))


def push(reader: ChoiceReader, tokens: list[int]) -> tuple[list[Piece], bool]:
    pieces: list[Piece] = []
    for index in tokens:
        output = reader.push(token(index))
        pieces += output.pieces
        if output.ended:
            return pieces, True
    return pieces, False


def read(
    said: str, reason: Any = "stop", **fields: Any
) -> tuple[list[tuple[str, ...]], ChoiceFinish]:
    """What a client would put together from the pieces, and the end."""
    reader = TEXT.choice(ready(request(**fields)), 0)
    pieces, ended = push(reader, TOKENIZER.encode(said))
    finish = reader.finish("stop" if ended else reason)
    joined: list[tuple[str, ...]] = []
    for piece in [*pieces, *finish.pieces]:
        if isinstance(piece, CallPiece) and piece.name is None:
            joined[-1] = (*joined[-1][:2], joined[-1][2] + piece.arguments)
        elif isinstance(piece, CallPiece):
            joined.append(("call", piece.name or "", piece.arguments))
        elif joined and joined[-1][0] == piece.channel:
            joined[-1] = (piece.channel, joined[-1][1] + piece.text)
        else:
            joined.append((piece.channel, piece.text))
    return joined, finish


# --- prompts ----------------------------------------------------------------------------


def test_a_chat_becomes_the_templates_text_with_thinking_off_by_default() -> None:
    assert prompt_text(ready(request(chat("hi")))) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    thinking = prompt_text(ready(request(chat("hi"), thinking=True)))
    assert thinking.endswith("<|im_start|>assistant\n")
    assert prompt_text_of_card(True).endswith("assistant\n")


def prompt_text_of_card(thinks: bool) -> str:
    prepared = Text(TOKENIZER, thinking_by_default=thinks).prepare(request(), 4096)
    assert isinstance(prepared, PreparedRequest)
    return prompt_text(prepared)


def test_a_whole_conversation_with_tools_reaches_the_template() -> None:
    turns = (
        ChatMessage(role="system", parts=(TextPart(text="Be kind."),)),
        ChatMessage(role="user", parts=(TextPart(text="Go"),)),
        ChatMessage(
            role="assistant",
            reasoning="hm",
            tool_calls=(ToolCall(call_id="c", name="f", arguments='{"a":1}'),),
        ),
        ChatMessage(role="tool", parts=(TextPart(text="42"),), tool_call_id="c"),
    )
    text = prompt_text(ready(request(ChatPrompt(messages=turns, tools=(TOOL,)))))
    assert text.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n")
    assert "<think>\nhm\n</think>\n\n" + f"\n{CALL}<|im_end|>" in text
    assert "<tool_response>\n42\n</tool_response>" in text


def test_no_tool_may_be_called_where_the_choice_is_none() -> None:
    prepared = ready(request(chat("hi", tools=(TOOL,)), tool_choice=ToolChoice(mode="none")))
    assert "# Tools" not in prompt_text(prepared)
    assert not prepared.reads_tools


def test_the_last_turn_can_be_continued() -> None:
    prepared = ready(request(chat("count", "1, 2,", continue_final=True)))
    assert prompt_text(prepared).endswith("<|im_start|>assistant\n1, 2,")


def test_a_template_that_raises_refuses_the_request_in_its_own_words() -> None:
    guard = "{% if messages[-1].content == 'no' %}{{ raise_exception('not that') }}{% endif %}"
    refusal = Text(toy_tokenizer(guard + TEMPLATE)).prepare(request(chat("no")), 4096)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == ("bad_request", "messages")
    assert "not that" in refusal.message


SHOWS_NO_CALLS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{# <tool_call> tool_call.name #}"
)


def test_a_model_tells_what_its_template_wants_and_refuses_tools_that_it_does_not_show() -> None:
    assert TEXT.facts["template"].startswith("system text only at the beginning")
    other = Text(toy_tokenizer(SHOWS_NO_CALLS))
    assert "the template omits tools" in other.facts["template"]
    refusal = other.prepare(request(chat("hi", tools=(TOOL,))), 4096)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == ("unsupported", "tools")


def test_a_call_that_a_template_does_not_show_is_refused_by_name() -> None:
    other = Text(toy_tokenizer(SHOWS_NO_CALLS))
    call = ChatMessage(
        role="assistant", tool_calls=(ToolCall(call_id="c", name="f", arguments="{}"),)
    )
    refusal = other.prepare(request(ChatPrompt(messages=(*chat("hi").messages, call))), 4096)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == ("unsupported", "messages[1].tool_calls[0]")


def test_a_result_without_its_call_is_refused_by_name_where_the_template_stops_at_it() -> None:
    stops = "{% if m.role == 'tool' %}{{ raise_exception('no such role') }}{% endif %}"
    shows = SHOWS_NO_CALLS.replace("{{ m.content }}", stops + "{{ m.content }}")
    result = ChatMessage(role="tool", parts=(TextPart(text="42"),), tool_call_id="c")
    prompt = ChatPrompt(messages=(*chat("hi").messages, result))
    refusal = Text(toy_tokenizer(shows)).prepare(request(prompt), 4096)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == ("unsupported", "messages[1].content")


@pytest.fixture
def stopped_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template has a fifth of its usual time."""
    limits = RenderLimits(processor_s=0.4)
    monkeypatch.setattr("runner.text.tokenizer.Renderer", lambda: Renderer(limits))


@pytest.mark.usefixtures("stopped_soon")
def test_a_template_that_is_stopped_by_a_marked_message_is_taken_as_most_are() -> None:
    template = "{% if messages[0].content == 'qvxonex' %}" + ENDLESS + "{% endif %}"
    text = Text(toy_tokenizer(template + TEMPLATE))
    assert "unknown" in text.facts["template"]
    assert isinstance(text.prepare(request(), 4096), PreparedRequest)


def test_raw_prompts_are_tokenised_or_taken_as_they_are() -> None:
    assert prompt_text(ready(request(TextPrompt(text="A shoal")))) == "A shoal"
    assert ready(request(TokensPrompt(token_ids=(5, 9)))).tokens == (5, 9)
    for outside in (VOCABULARY, -1):
        refusal = refused(request(TokensPrompt(token_ids=(5, outside))))
        assert (refusal.reason, refusal.field) == ("bad_request", "prompt")


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"prompt": TextPrompt(text="")}, "bad_request", "prompt"),
        ({"prompt": TextPrompt(text="\ud800")}, "bad_request", "prompt"),
        ({"prompt": chat("\ud800")}, "bad_request", "messages"),
        ({"prompt": ChatPrompt(messages=())}, "bad_request", "messages"),
        ({"prompt": TextPrompt(text="a", suffix="b")}, "unsupported", "suffix"),
        ({"prompt": TextPrompt(text="a"), "thinking": True}, "bad_request", "thinking"),
        ({"tool_choice": ToolChoice(mode="required")}, "bad_request", "tool_choice"),
        ({"tool_choice": ToolChoice(mode="named", name="g")}, "bad_request", "tool_choice"),
        ({"stop": ("",)}, "bad_request", "stop[0]"),
        ({"stop": ("a", "b" * 1025)}, "bad_request", "stop[1]"),
        ({"stop": tuple("abcdefghijklmnopq")}, "bad_request", "stop"),
        ({"sampling": Sampling(logit_bias={VOCABULARY: 1.0})}, "bad_request", "logit_bias.704"),
        ({"sampling": Sampling(logit_bias={3: float("nan")})}, "bad_request", "logit_bias.3"),
        (
            {"output": OutputFormat(kind="json_schema", json_schema={"type": "banana"})},
            "bad_request",
            "response_format",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_naming_the_field(
    fields: dict[str, Any], reason: str, field: str
) -> None:
    refusal = refused(request(**fields))
    assert (refusal.reason, refusal.field) == (reason, field)


def test_a_conversation_without_messages_is_refused_in_our_words_and_not_the_templates() -> None:
    assert refused(request(ChatPrompt(messages=()))).message == "messages must not be empty"


def test_models_without_template_thinking_or_tools_say_so() -> None:
    raw = Text(toy_tokenizer(None))
    refusal = raw.prepare(request(), 4096)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == ("unsupported", "messages")
    plain = toy_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    refusal = Text(plain).prepare(request(chat("hi", tools=(TOOL,))), 4096)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == ("unsupported", "tools")


def test_a_suffix_is_filled_in_before_where_the_tokenizer_has_the_tokens() -> None:
    filler = toy_tokenizer(None, (*MARKERS, *FILL_IN))
    prepared = Text(filler).prepare(request(TextPrompt(text="def run", suffix="return 42")), 4096)
    assert isinstance(prepared, PreparedRequest)
    assert filler._backend.decode(list(prepared.tokens), skip_special_tokens=False) == (
        "<|fim_prefix|>def run<|fim_suffix|>return 42<|fim_middle|>"
    )


def test_a_hopelessly_long_prompt_is_refused_before_it_is_tokenised() -> None:
    for prompt in (TextPrompt(text="a" * 1_000_000), chat("a" * 1_000_000)):
        refusal = refused(request(prompt), 100)
        assert refusal.reason == "context_length"
        assert 100 < refusal.facts["prompt_tokens"] <= 1_000_000


OPENING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt and enable_thinking %}<think>\n{% endif %}"
)


def test_a_prompt_that_opens_thinking_makes_the_output_begin_in_it() -> None:
    text = Text(toy_tokenizer(OPENING))
    json_wanted = OutputFormat(kind="json_object")
    prepared = text.prepare(request(chat("hi"), thinking=True, output=json_wanted), 4096)
    assert isinstance(prepared, PreparedRequest)
    assert (prepared.opening, prepared.reads_thinking) == ("reasoning", True)
    reader = text.choice(prepared, 0)
    pieces, _ = push(reader, TOKENIZER.encode("hm\n</think>\n\n{}"))
    said = {"reasoning": "", "text": ""}
    for piece in pieces:
        assert isinstance(piece, TextPiece)
        said[piece.channel] += piece.text
    assert said == {"reasoning": "hm", "text": "{}"}


ANYTHING = st.text(max_size=12) | st.sampled_from(["\ud800", "{{ x }}", "<think>", "</tool_call>"])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | ANYTHING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANYTHING, inner, max_size=3),
    max_leaves=6,
)
KEYWORDS = st.sampled_from(["type", "properties", "enum", "$ref", "items", "pattern", "minimum"])
SCHEMAS = st.dictionaries(KEYWORDS | ANYTHING, JSON | st.sampled_from(["object", "#"]), max_size=4)
MESSAGES = st.builds(
    ChatMessage,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=st.lists(
        st.builds(TextPart, text=ANYTHING) | st.builds(ImagePart, url=ANYTHING), max_size=2
    ).map(tuple),
    reasoning=st.none() | ANYTHING,
    tool_calls=st.lists(
        st.builds(ToolCall, call_id=ANYTHING, name=ANYTHING, arguments=ANYTHING), max_size=1
    ).map(tuple),
    tool_call_id=st.none() | ANYTHING,
    name=st.none() | ANYTHING,
)
TOOLS = st.builds(ToolSpec, name=ANYTHING, parameters=SCHEMAS, strict=st.booleans())
STRANGE: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.builds(
        ChatPrompt,
        messages=st.lists(MESSAGES, max_size=3).map(tuple),
        tools=st.lists(TOOLS, max_size=2).map(tuple),
        continue_final=st.booleans(),
    )
    | st.builds(TextPrompt, text=ANYTHING, suffix=st.none() | ANYTHING)
    | st.builds(TokensPrompt, token_ids=st.lists(st.integers(), max_size=3).map(tuple)),
    "n": st.integers(1, 3),
    "max_tokens": st.none() | st.integers(1, 2**70),
    "stop": st.lists(ANYTHING, max_size=3).map(tuple),
    "output": st.builds(
        OutputFormat,
        kind=st.sampled_from(["text", "json_object", "json_schema"]),
        json_schema=st.none() | SCHEMAS,
    ),
    "tool_choice": st.builds(
        ToolChoice,
        mode=st.sampled_from(["none", "auto", "required", "named"]),
        name=st.none() | ANYTHING,
    ),
    "parallel_tool_calls": st.booleans(),
    "thinking": st.none() | st.booleans(),
}
"""What a field of a request may be."""


ODD = st.sets(st.sampled_from(sorted(STRANGE)), max_size=1).flatmap(
    lambda names: st.builds(request, **{name: STRANGE[name] for name in names})
)
REQUESTS = ODD | st.integers(0, 2).flatmap(
    lambda one: ODD if one else st.builds(request, **STRANGE)
)
"""Strange in one field at most, or in every one."""


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    REQUESTS,
    st.integers(60, 400) | st.integers(1, 200),
    st.lists(st.integers(0, VOCABULARY + 9), max_size=20),
)
def test_no_request_whatever_it_contains_raises(
    asked: GenerationRequest, context: int, tokens: list[int]
) -> None:
    prepared = TEXT.prepare(asked, context)
    if isinstance(prepared, Refusal):
        assert prepared.model_dump_json()  # it can be sent
        return
    assert 0 < len(prepared.tokens) < len(prepared.tokens) + prepared.max_tokens <= context
    reader = TEXT.choice(prepared, 0)
    push(reader, tokens)
    reader.finish("length")


# --- histories ------------------------------------------------------------------------------


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=20))
def test_a_conversation_comes_behind_its_history(history: list[int]) -> None:
    plain = TEXT.prepare(request(chat("hi")), 4096)
    later = TEXT.prepare(request(chat("hi"), history=tuple(history)), 4096)
    assert isinstance(plain, PreparedRequest) and isinstance(later, PreparedRequest)
    assert later.tokens == (*history, *plain.tokens)


def test_a_mark_of_the_beginning_stands_once_unless_it_begins_each_turn() -> None:
    assert behind([1, 5], [1, 6], 1) == [1, 5, 6]
    assert behind([1, 5], [1, 6, 1, 7], 1) == [1, 5, 1, 6, 1, 7]
    assert behind([], [1, 6], 1) == [1, 6]
    assert behind([5], [6], None) == [5, 6]


@pytest.mark.parametrize(
    "asked",
    [
        request(chat("hi"), history=(VOCABULARY,)),
        request(chat("hi"), history=(-1,)),
        request(chat("hi"), history=(1,), n=2),
        request(TextPrompt(text="hi"), history=(1,)),
    ],
)
def test_a_history_that_cannot_be_is_refused(asked: GenerationRequest) -> None:
    refused = TEXT.prepare(asked, 4096)
    assert isinstance(refused, Refusal) and refused.field == "history"


def test_a_history_that_leaves_no_room_is_told_with_its_length() -> None:
    refused = TEXT.prepare(request(chat("hi"), history=(1,) * 100), 64)
    assert isinstance(refused, Refusal) and refused.reason == "context_length"


# --- questions about prompts ---------------------------------------------------------------


def told(asked: GenerationRequest, wants: Any, *, context: int = 4096, **fields: Any) -> Any:
    question = PromptQuestion(wants=wants, **fields)
    return TEXT.read(asked.model_copy(update={"question": question}), context)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(REQUESTS)
def test_a_count_is_what_the_same_request_would_be_given_to_read(asked: GenerationRequest) -> None:
    prepared = TEXT.prepare(asked, 1 << 20)
    counted, listed = told(asked, "count", context=1 << 20), told(asked, "tokens", context=1 << 20)
    if isinstance(prepared, PreparedRequest):
        assert counted == ReadPrompt(len(prepared.tokens), 1 << 20)
        assert listed == ReadPrompt(len(prepared.tokens), 1 << 20, tokens=prepared.tokens)
    for read in (counted, listed):
        assert isinstance(read, ReadPrompt) or read.model_dump_json()


def test_tools_and_thinking_count_as_the_template_shows_them() -> None:
    plain = told(request(chat("hi")), "count").count
    assert told(request(chat("hi", tools=(TOOL,))), "count").count > plain
    hidden = request(chat("hi", tools=(TOOL,)), tool_choice=ToolChoice(mode="none"))
    assert told(hidden, "count").count == plain
    assert told(request(chat("hi"), thinking=True), "count").count != plain


def test_a_prompt_beyond_the_context_is_counted_unless_it_is_hopeless() -> None:
    assert told(request(TokensPrompt(token_ids=(5,) * 100)), "count", context=50).count == 100
    long = request(TextPrompt(text="hello " * 5000))
    assert told(long, "count", context=2000).count > 2000
    refusal = told(long, "count", context=2)
    assert isinstance(refusal, Refusal) and refusal.reason == "context_length"


def test_the_text_of_a_prompt_is_the_templates_or_that_of_token_ids() -> None:
    read = told(request(chat("hi")), "text")
    assert read.text == prompt_text(ready(request(chat("hi")))) and "<|im_start|>user" in read.text
    tokens = TOKENIZER.encode("Grüße 🐟<|im_end|>")
    read = told(request(TokensPrompt(token_ids=tuple(tokens))), "text")
    assert read == ReadPrompt(len(tokens), 4096, text="Grüße 🐟<|im_end|>")
    outside = told(request(TokensPrompt(token_ids=(VOCABULARY,))), "text")
    assert isinstance(outside, Refusal) and outside.field == "tokens"


def test_nothing_that_does_not_fit_a_frame_is_told() -> None:
    prompt = request(TokensPrompt(token_ids=(EOS,) * (LISTED_TOKENS + 1)))
    for wants, most in (("tokens", LISTED_TOKENS), ("text", TOLD_CHARACTERS)):
        refusal = told(prompt, wants)
        assert isinstance(refusal, Refusal) and f"the limit is {most}" in refusal.message
    assert told(prompt, "count").count == LISTED_TOKENS + 1


# --- room and endings -------------------------------------------------------------------


def test_max_tokens_is_what_fits_and_a_prompt_that_leaves_no_room_is_refused() -> None:
    prompt = TokensPrompt(token_ids=(5,) * 100)
    assert ready(request(prompt), 10_000).max_tokens == 4096
    assert ready(request(prompt), 130).max_tokens == 30
    assert ready(request(prompt, max_tokens=7), 130).max_tokens == 7
    assert ready(request(prompt, max_tokens=700), 130).max_tokens == 30
    refusal = refused(request(prompt), 100)
    assert refusal.reason == "context_length"
    assert refusal.facts == {"prompt_tokens": 100, "limit": 99}
    assert refusal.message == "prompt is too long: 100 tokens > 99 maximum"


def test_end_tokens_are_those_of_the_model_unless_they_are_to_be_ignored() -> None:
    assert ready(request()).stop_token_ids == {0, 2}
    assert ready(request(ignore_eos=True)).stop_token_ids == frozenset()
    held = ready(request(ignore_eos=True, output=OutputFormat(kind="json_object")))
    assert held.grammar is not None
    assert held.stop_token_ids == {0, 2}


def test_every_choice_has_a_seed_of_its_own_and_the_first_has_the_requests() -> None:
    seeded = ready(request(n=5, sampling=Sampling(seed=-3))).choices
    assert len({choice.seed for choice in seeded}) == 5
    assert seeded[0].seed == choice_seed(-3, 0) == 2**64 - 3
    assert [choice.seed for choice in ready(request(n=2)).choices] == [None, None]


# --- output -----------------------------------------------------------------------------


def test_text_comes_out_as_it_is_sampled_and_ends_without_the_end_token() -> None:
    said, finish = read("hello world<|im_end|>")
    assert said == [("text", "hello world")]
    assert (finish.finish_reason, finish.stop) == ("stop", None)


def test_thinking_is_reasoning_with_its_tokens_counted() -> None:
    text = "<think>\nLet me think.\n</think>\n\nhello"
    said, finish = read(text, thinking=True)
    assert said == [("reasoning", "Let me think."), ("text", "hello")]
    inside = "<think>\nLet me think.\n</think>"
    assert finish.reasoning_tokens == len(TOKENIZER.encode(inside))


def test_a_stop_string_ends_the_visible_text_and_not_the_thinking() -> None:
    text = "<think>one two</think>\n\nthree two four"
    said, finish = read(text, thinking=True, stop=("two",))
    assert said == [("reasoning", "one two"), ("text", "three ")]
    assert (finish.finish_reason, finish.stop) == ("stop", "two")


def test_the_beginning_of_a_stop_string_comes_out_when_the_choice_ends() -> None:
    said, finish = read("a st", reason="length", stop=("stop",))
    assert said == [("text", "a st")]
    assert (finish.finish_reason, finish.stop) == ("length", None)


def test_after_the_end_nothing_is_read() -> None:
    reader = TEXT.choice(ready(request(stop=("two",))), 0)
    _, ended = push(reader, TOKENIZER.encode("one two"))
    assert ended
    assert push(reader, TOKENIZER.encode(" three")) == ([], False)


def test_tool_calls_are_read_and_give_the_reason() -> None:
    said, finish = read(f"See.\n{CALL}\n{CALL}<|im_end|>", prompt=chat("x", tools=(TOOL,)))
    assert said == [("text", "See."), ("call", "f", '{"a": 1}'), ("call", "f", '{"a": 1}')]
    assert finish.finish_reason == "tool_calls"
    _, cut = read(f"{CALL} and then", reason="length", prompt=chat("x", tools=(TOOL,)))
    assert cut.finish_reason == "length"


def test_one_call_ends_the_choice_where_calls_may_not_be_parallel() -> None:
    said, finish = read(
        f"{CALL}\n{CALL}", prompt=chat("x", tools=(TOOL,)), parallel_tool_calls=False
    )
    assert said == [("call", "f", '{"a": 1}')]
    assert finish.finish_reason == "tool_calls"


def test_call_markup_is_plain_text_where_there_are_no_tools() -> None:
    said, finish = read(CALL)
    assert said == [("text", CALL)]
    assert finish.finish_reason == "stop"
    raw, _ = read(f"<think>a</think>{CALL}", prompt=TextPrompt(text="x"))
    assert raw == [("text", f"<think>a</think>{CALL}")]


def test_call_ids_depend_on_request_choice_and_place_alone() -> None:
    prepared = ready(request(chat("x", tools=(TOOL,)), n=2))

    def ids(choice: int) -> list[str | None]:
        pieces, _ = push(TEXT.choice(prepared, choice), TOKENIZER.encode(CALL + CALL))
        return [piece.call_id for piece in pieces if isinstance(piece, CallPiece) and piece.name]

    assert ids(0) == ids(0)
    assert len({*ids(0), *ids(1)}) == 4


def test_required_calls_come_with_a_grammar_and_so_does_json() -> None:
    tools = chat("x", tools=(TOOL,))
    assert ready(request(tools)).grammar is None
    strict = TOOL.model_copy(update={"strict": True})
    assert ready(request(chat("x", tools=(strict,)))).grammar is not None
    assert ready(request(tools, tool_choice=ToolChoice(mode="required"))).grammar is not None
    held = ready(request(output=OutputFormat(kind="json_object")))
    assert held.grammar is not None
    assert not held.reads_thinking


def test_calls_in_json_that_are_known_by_their_marks_alone_are_held_too() -> None:
    template = TEMPLATE.replace("tool_call.name", "tool_call['name']")
    other = Text(toy_tokenizer(template=template))
    strict = TOOL.model_copy(update={"strict": True})
    prepared = other.prepare(request(chat("x", tools=(strict,))), 4096)
    assert isinstance(prepared, PreparedRequest) and prepared.grammar is not None, prepared
    assert prepared.unheeded == ()
    for arguments, fits in (('{"a": 1}', True), ('{"a": "one"}', False)):
        matcher = open_matcher(TOKENIZER.guide, prepared.grammar)
        call = f'<tool_call>\n{{"name": "{TOOL.name}", "arguments": {arguments}}}\n</tool_call>'
        tokens = TOKENIZER.encode(call)
        assert (matcher.validate_tokens(tokens) == len(tokens)) is fits
    pieces, _ = push(other.choice(prepared, 0), TOKENIZER.encode(CALL))
    assert any(isinstance(piece, CallPiece) and piece.name == "f" for piece in pieces)


def test_strict_tools_that_a_models_form_of_calls_cannot_be_held_to_are_told() -> None:
    strict = TOOL.model_copy(update={"strict": True})
    assert ready(request(chat("x", tools=(strict,)))).unheeded == ()
    template = TEMPLATE.replace("<tool_call>", "<function=").replace("</tool_call>", "</function>")
    other = Text(
        toy_tokenizer(template=template + '{# "parameters": dictionary of argument name #}')
    )

    def unheeded(**fields: Any) -> tuple[str, ...]:
        prepared = other.prepare(request(**fields), 4096)
        assert isinstance(prepared, PreparedRequest), prepared
        return prepared.unheeded

    assert unheeded(prompt=chat("x", tools=(strict,))) == ("tools.strict",)
    assert unheeded(prompt=chat("x", tools=(TOOL,))) == ()
    none = ToolChoice(mode="none")
    assert unheeded(prompt=chat("x", tools=(strict,)), tool_choice=none) == ()


def test_calls_keep_to_schemas_that_are_not_strict_where_the_operator_says_so() -> None:
    """A schema that cannot be enforced is refused of a strict tool alone."""
    held = Text(TOKENIZER, constrain_tools=True)
    loose = TOOL.model_copy(update={"name": "loose", "parameters": {"type": "banana"}})
    for tools in ((TOOL,), (TOOL, loose)):
        prepared = held.prepare(request(chat("x", tools=tools)), 4096)
        assert isinstance(prepared, PreparedRequest) and prepared.grammar is not None, prepared
        matcher = open_matcher(TOKENIZER.guide, prepared.grammar)
        for arguments, fits in (('{"a": 1}', True), ('{"a": "one"}', False)):
            call = f'<tool_call>\n{{"name": "{TOOL.name}", "arguments": {arguments}}}\n</tool_call>'
            tokens = TOKENIZER.encode(f"Let me look. {call} So it is.")
            assert (matcher.validate_tokens(tokens) == len(tokens)) is fits
    free = held.prepare(request(chat("x")), 4096)
    assert isinstance(free, PreparedRequest) and free.grammar is None


@given(st.text(alphabet="ab 🐟\n<", max_size=30), st.sampled_from(["b", "🐟a", "\n\n", "<t"]))
def test_logprobs_and_token_counts_cover_the_text_exactly(text: str, stop: str) -> None:
    reader = TEXT.choice(ready(request(top_logprobs=1, stop=(stop,))), 0)
    tokens = TOKENIZER.encode(text)
    pieces, ended = push(reader, tokens)
    finish = reader.finish("stop" if ended else "length")
    texts = [piece for piece in [*pieces, *finish.pieces] if isinstance(piece, TextPiece)]
    said = "".join(piece.text for piece in texts)
    assert said == text.split(stop)[0]
    logprobs = [each for piece in texts for each in piece.logprobs]
    ids = [each.token_id for each in logprobs]
    assert ids == tokens[: len(ids)]
    assert TOKENIZER._backend.decode(ids).startswith(said)
    assert not ids or not TOKENIZER._backend.decode(ids[:-1]).startswith(said) or not said
    assert all(each.top == ((each.token_id, each.text, -0.5),) for each in logprobs)
    if not ended:
        assert sum(piece.tokens for piece in texts) == len(tokens)


def test_markup_has_no_logprobs() -> None:
    text = "<think>\nhm\n</think>\n\nhello"
    reader = TEXT.choice(ready(request(top_logprobs=0, thinking=True)), 0)
    pieces, _ = push(reader, [*TOKENIZER.encode(text), EOS])
    finish = reader.finish("stop")
    texts = {"reasoning": "", "text": ""}
    for piece in [*pieces, *finish.pieces]:
        assert isinstance(piece, TextPiece)
        texts[piece.channel] += "".join(each.text for each in piece.logprobs)
    assert texts == {"reasoning": "hm", "text": "hello"}


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.usefixtures("stopped_soon")
def test_a_template_that_is_stopped_at_a_first_hello_fails_the_load() -> None:
    with pytest.raises(
        TokenizerError, match="chat template was stopped: the template took more than"
    ):
        Text(toy_tokenizer(ENDLESS))


@pytest.mark.usefixtures("stopped_soon")
def test_a_template_that_is_stopped_for_one_request_refuses_that_request_alone() -> None:
    template = "{{ messages[0].content }}{% if messages[0].content == 'x' %}" + ENDLESS
    text = Text(toy_tokenizer(template + "{% endif %}"))
    refused = text.prepare(request(chat("x")), 100)
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.field) == ("bad_request", "messages")
    assert "chat template was stopped: the template took more than" in refused.message
    assert isinstance(text.prepare(request(chat("y")), 100), PreparedRequest)


def test_a_go_template_of_an_earlier_gateway_is_refused_by_name() -> None:
    wanted = request(chat("Hello")).model_copy(update={"template": "{{ .Prompt }}"})
    refusal = TEXT.prepare(wanted, 4096)
    assert isinstance(refusal, Refusal) and refusal.field == "template"
    assert "shoal runs no Go templates" in refusal.message


def test_a_model_without_a_template_holds_no_conversation() -> None:
    text = Text(toy_tokenizer(None))
    refusal = text.prepare(request(chat("Hello")), 4096)
    assert isinstance(refusal, Refusal) and "no chat template" in refusal.message
    assert "grammars" not in text.facts, "it can follow a grammar all the same"


def test_one_mark_of_the_beginning_stands_before_a_prompt() -> None:
    assert begun_once([7, 7, 1], 7) == [7, 1]
    assert begun_once([7, 1, 7], 7) == [7, 1, 7]
    assert begun_once([1, 1], 7) == [1, 1]
    assert begun_once([1, 1], None) == [1, 1]
