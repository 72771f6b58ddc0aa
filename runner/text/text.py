"""The text side of a runner: it turns requests into token ids, and makes readers of the output.

Pure, given the model's tokenizer. Nothing in a request raises here: an error is a `Refusal` that
names the field. `prepare` and `read` belong to one thread. The readers of choices belong to one
thread, which may be a different one: they share no mutable state with `prepare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.wire.errors import BadRequest, ContextOverflow, Refusal
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    InputsPrompt,
    OutputFormat,
    PromptQuestion,
    TextPart,
    TextPrompt,
    ToolSpec,
)
from runner.engine import GrammarSpec
from runner.text.checks import (
    Unsupported,
    begun_once,
    behind_history,
    check_bias,
    check_length,
    check_scoring,
    check_stops,
    refusal_of,
    unheld,
)
from runner.text.choice import ChoiceText, LaterStops
from runner.text.conversation import Conversations
from runner.text.detokenise import Detokeniser, SentText
from runner.text.echo import EveryToken, PromptEcho
from runner.text.families import thinking_limit
from runner.text.grammar import Calls, Grammars, RowMatcher, ThinkFirst
from runner.text.markup import Span
from runner.text.prepared import (
    PreparedChoice,
    PreparedRequest,
    ReadPrompt,
    SpanState,
    choice_seed,
    predicted_tokens,
)
from runner.text.shapes import tool_objects
from runner.text.stops import automaton
from runner.text.template import (
    StoppedTemplate,
    fill_in_tokens,
)
from runner.text.tokenizer import ModelTokenizer, TokenizerError

DEFAULT_MAX_TOKENS = 4096
NO_GO_TEMPLATES = "shoal runs no Go templates; leave the template out"
LISTED_TOKENS = 1 << 20
TOLD_CHARACTERS = 8 << 20
"""The most characters of a prompt that is returned to a client. This many fit into one frame of the
data plane."""

_FIRST = GenerationRequest(
    request_id=RequestId("first"),
    model=ModelId("first"),
    prompt=ChatPrompt(messages=(ChatMessage(role="user", parts=(TextPart(text="Hello"),)),)),
    output=OutputFormat(kind="json_object"),
)


COUNT = PromptQuestion(wants="count")


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A tokenised prompt and how to read the output after it. `text`: the rendered
    conversation, or empty. `unshown`: the paths of the request's fields that the prompt lacks."""

    tokens: list[int]
    opening: SpanState = "text"
    thinking: bool = False
    tools: tuple[ToolSpec, ...] = ()
    text: str = ""
    unshown: tuple[str, ...] = ()


class Text:
    """Prepares requests and reads output for one model: implements
    `runner.text.prepared.TextWorks`."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        thinking_by_default: bool = False,
        constrain_tools: bool = False,
    ) -> None:
        """Prepare everything that is slow on first use (the template, llguidance's trie), so that
        no request waits for that. `thinking_by_default` is for requests that do not say whether the
        model thinks. `constrain_tools`: calls follow their schemas even if no tool is strict, if
        the model's tool call format allows it. Raises TokenizerError if the template exceeds its
        limits already for "Hello"."""
        self._tokenizer = tokenizer
        self._family = tokenizer.family
        self._conversations = Conversations(tokenizer, thinking_by_default=thinking_by_default)
        self._constrain_tools = constrain_tools
        self._grammars: Grammars | None = None
        self._facts: dict[str, str] = {}
        self._lacks_grammars = False
        try:
            self._prepare(_FIRST, context_tokens=1024)
        except StoppedTemplate as problem:
            raise TokenizerError(problem.message) from problem
        except (BadRequest, ContextOverflow) as problem:
            # what the model cannot do is said to who asks for it
            if self._lacks_grammars:
                self._facts["grammars"] = str(problem)

    @property
    def facts(self) -> Mapping[str, str]:
        """Return facts about the model's files as text, keyed by subject."""
        return {**self._tokenizer.facts, **self._conversations.facts, **self._facts}

    def prepare(self, request: GenerationRequest, context_tokens: int) -> PreparedRequest | Refusal:
        """Return the request as token ids, or the refusal. A `max_tokens` that exceeds the context
        is reduced."""
        try:
            return self._prepare(request, context_tokens)
        except (BadRequest, ContextOverflow) as problem:
            return refusal_of(problem)

    def read(self, request: GenerationRequest, context_tokens: int) -> ReadPrompt | Refusal:
        """Return the answer to the request's question about its prompt, or the refusal."""
        try:
            return self._read(request, request.question or COUNT, context_tokens)
        except (BadRequest, ContextOverflow) as problem:
            return refusal_of(problem)

    @property
    def markers(self) -> frozenset[str]:
        """Return the marks, such as `<think>`, that readers of choices must see in the text."""
        return self._family.markers

    def sent_choice(self, prepared: PreparedRequest, choice: int) -> tuple[ChoiceText, SentText]:
        """Return the reader of a choice whose text the engine makes, and the place for that
        text."""
        prompt = prepared.request.prompt
        begins = isinstance(prompt, ChatPrompt) and not prompt.continue_final
        sent = SentText(strips=begins and self._tokenizer.strips_space)
        return self._choice(prepared, choice, detokeniser=sent), sent

    def matcher(self, prepared: PreparedRequest) -> RowMatcher | None:
        """Return a new matcher of the request's grammar; None if it has none. Raises BadGrammar."""
        grammar, grammars = prepared.grammar, self._grammars
        return None if grammar is None or grammars is None else grammars.matchers.start(grammar)

    def choice(self, prepared: PreparedRequest, choice: int) -> ChoiceText | EveryToken:
        request, token_text = prepared.request, self._tokenizer.token_text
        if request.top_logprobs is None:
            return self._choice(prepared, choice)
        if request.prompt_logprobs is not None:
            return EveryToken(self._choice(prepared, choice), token_text)
        return self._choice(prepared, choice, token_text)

    def prompt(self, prepared: PreparedRequest) -> PromptEcho:
        """Return a reader of the prompt's scores."""
        tokenizer = self._tokenizer
        detokeniser = tokenizer.detokeniser(begins=True)
        return PromptEcho(prepared.tokens, detokeniser, tokenizer.token_text)

    def _choice(
        self,
        prepared: PreparedRequest,
        choice: int,
        token_text: Callable[[int], str] | None = None,
        detokeniser: Detokeniser | None = None,
    ) -> ChoiceText:
        tokenizer, request = self._tokenizer, prepared.request
        prompt = request.prompt
        chat = isinstance(prompt, ChatPrompt)
        tools = tool_objects(prompt.tools) if chat and prompt.tools else []
        later = 0 if request.min_tokens is None or not prepared.stops else request.min_tokens
        return ChoiceText(
            request_id=request.request_id,
            choice=choice,
            detokeniser=detokeniser
            or tokenizer.detokeniser(begins=chat and not prompt.continue_final),
            reader=tokenizer.family.reader(
                tools,
                reads_thinking=prepared.reads_thinking,
                reads_tools=prepared.reads_tools,
                opening=prepared.opening,
                stops=automaton(() if later else prepared.stops),
            ),
            stop_token_ids=prepared.stop_token_ids,
            one_call=prepared.reads_tools and not request.parallel_tool_calls,
            token_text=token_text,
            later_stops=LaterStops(later, automaton(prepared.stops)) if later else None,
        )

    def _read(
        self, request: GenerationRequest, question: PromptQuestion, context_tokens: int
    ) -> ReadPrompt:
        prompt = self._prompt(request, context_tokens, special=question.special)
        count = len(prompt.tokens)
        match question.wants:
            case "count" | "kv":
                return ReadPrompt(count, context_tokens)
            case "tokens" | "cost":
                if count > LISTED_TOKENS:
                    text = f"too many tokens to list: {count}; the limit is {LISTED_TOKENS}"
                    raise BadRequest(text, field="prompt")
                return ReadPrompt(count, context_tokens, tokens=tuple(prompt.tokens))
            case "text":
                text = prompt.text or self._tokenizer.decode(prompt.tokens)
                if len(text) > TOLD_CHARACTERS:
                    why = (
                        f"too many characters to return: {len(text)}; the limit is "
                        f"{TOLD_CHARACTERS}"
                    )
                    raise BadRequest(why, field="prompt")
                return ReadPrompt(count, context_tokens, text=text)

    def _prepare(self, request: GenerationRequest, context_tokens: int) -> PreparedRequest:
        if request.stop:
            check_stops(request.stop)
        if request.sampling.logit_bias:
            check_bias(request.sampling.logit_bias, self._tokenizer.vocabulary)
        if request.prompt_logprobs is not None or request.max_tokens == 0:
            check_scoring(request)
        prompt = self._prompt(request, context_tokens)
        if request.history is not None:
            prompt = replace(prompt, tokens=behind_history(request, prompt.tokens, self._tokenizer))
        if not prompt.tokens:
            raise BadRequest("the prompt is empty", field="prompt")
        wanted = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        if (request.min_tokens or 0) > wanted:
            raise BadRequest(f"must be at most max_tokens ({wanted})", field="min_tokens")
        room, least = context_tokens - len(prompt.tokens), min(wanted, 1)
        if room < least:
            limit = context_tokens - least
            raise ContextOverflow(prompt_tokens=len(prompt.tokens), limit_tokens=limit)
        grammar = self._grammar(request, prompt)
        if grammar is not None and request.min_tokens is not None:
            text = (
                "cannot be combined with a response format, which decides where the "
                "answer ends; remove one of them"
            )
            raise BadRequest(text, field="min_tokens")
        endless = request.ignore_eos and grammar is None
        reads_thinking = self._reads_thinking(request, prompt, grammar)
        budget = request.thinking_budget if reads_thinking else None
        tools = tool_objects(prompt.tools) if budget is not None else []
        seed = request.sampling.seed
        return PreparedRequest(
            request=request,
            tokens=tuple(TokenId(token) for token in prompt.tokens),
            max_tokens=min(wanted, room),
            stop_token_ids=frozenset() if endless else self._tokenizer.eos_token_ids,
            choices=tuple(
                PreparedChoice(choice, None if seed is None else choice_seed(seed, choice))
                for choice in range(request.n)
            ),
            grammar=grammar,
            stops=request.stop,
            opening=prompt.opening,
            reads_thinking=reads_thinking,
            reads_tools=bool(prompt.tools),
            prediction_tokens=predicted_tokens(self._tokenizer, request, min(wanted, room)),
            unheeded=(*unheld(prompt.tools, grammar), *prompt.unshown)
            if prompt.tools
            else prompt.unshown,
            limit=None
            if budget is None
            else thinking_limit(self._tokenizer, budget, tools=tools, opening=prompt.opening),
        )

    def _reads_thinking(
        self, request: GenerationRequest, prompt: _Prompt, grammar: GrammarSpec | None
    ) -> bool:
        """Return whether thinking in the output is parsed. It is not if a grammar allows no
        thinking block."""
        if not isinstance(request.prompt, ChatPrompt) or self._family.think is None:
            return False
        return grammar is None or prompt.thinking or prompt.opening != "text"

    def _prompt(
        self, request: GenerationRequest, context_tokens: int, *, special: bool = True
    ) -> _Prompt:
        """Return the prompt as token ids. `special`: the tokenizer's special tokens are put around
        a raw prompt."""
        if request.template is not None:
            raise Unsupported(NO_GO_TEMPLATES, field="template")
        prompt, longest = request.prompt, self._tokenizer.longest_token
        if isinstance(prompt, ChatPrompt):
            rendered = self._conversations.rendered(request, prompt)
            check_length(rendered.text, context_tokens, longest)
            tokens = self._encode(rendered.text, field="messages", spelled=rendered.spelled)
            return _Prompt(
                tokens,
                rendered.opening,
                rendered.thinking,
                rendered.tools,
                rendered.text,
                rendered.unshown,
            )
        if request.tool_choice.mode in ("required", "named"):
            raise BadRequest("tools need messages, not a raw prompt", field="tool_choice")
        if request.thinking:
            raise BadRequest("thinking needs messages, not a raw prompt", field="thinking")
        if isinstance(prompt, TextPrompt):
            check_length(prompt.text + (prompt.suffix or ""), context_tokens, longest)
            return _Prompt(self._raw(prompt, special=special))
        if isinstance(prompt, InputsPrompt):
            text = f"'{request.model}' is a text model; it cannot make embeddings"
            raise Unsupported(text, field="model")
        width = self._tokenizer.vocabulary
        ids = prompt.token_ids
        if ids and not 0 <= min(ids) <= max(ids) < width:
            field = "prompt" if request.question is None else "tokens"
            raise BadRequest(f"token ids must be in 0..{width - 1}", field=field)
        return _Prompt(list(ids))

    def _raw(self, prompt: TextPrompt, *, special: bool) -> list[int]:
        if prompt.suffix is None:
            return self._encode(prompt.text, field="prompt", special=special)
        around = fill_in_tokens(self._tokenizer.token_id)
        if around is None:
            text = "its format cannot fill in between a prompt and a suffix"
            raise Unsupported(f"this model does not support insert: {text}", field="suffix")
        find = self._tokenizer.markup.all.find
        prefix = self._encode(prompt.text, field="prompt", spelled=find(prompt.text))
        suffix = self._encode(prompt.suffix, field="suffix", spelled=find(prompt.suffix))
        return [around[0], *prefix, around[1], *suffix, around[2]]

    def _encode(
        self,
        text: str,
        *,
        field: str,
        special: bool = False,
        spelled: Sequence[Span] = (),
    ) -> list[int]:
        try:
            tokens = self._tokenizer.encode(text, special=special, spelled=spelled)
            return begun_once(tokens, self._tokenizer.bos_token_id) if special else tokens
        except Exception as problem:  # such as lone surrogates, which are not text
            raise BadRequest(f"this text cannot be tokenised: {problem}", field=field) from problem

    def _grammar(self, request: GenerationRequest, prompt: _Prompt) -> GrammarSpec | None:
        must = request.tool_choice.mode in ("required", "named")
        held = any(self._constrain_tools or tool.strict for tool in prompt.tools)
        if request.output.kind == "text" and not must and not held:
            return None
        grammars = self._open_grammars(request.output.field)
        think = None
        opening = prompt.opening
        if self._family.think is not None and (prompt.thinking or opening == "reasoning"):
            think = ThinkFirst(self._family.think, opening)
        calls = self._calls(request, prompt, must=must)
        return grammars.output(request.output, think=think, calls=calls)

    def _open_grammars(self, field: str) -> Grammars:
        if self._grammars is None:
            try:
                guide = self._tokenizer.guide
            except TokenizerError as problem:
                self._lacks_grammars = True
                raise Unsupported(str(problem), field=field) from problem
            self._grammars = Grammars(guide, self._tokenizer.added_ids)
        return self._grammars

    def _calls(self, request: GenerationRequest, prompt: _Prompt, *, must: bool) -> Calls | None:
        form, tools = self._family.form, prompt.tools
        if self._family.calls is None or not tools:
            return None
        is_within = form is not None and form.turns is not None and prompt.opening == "text"
        if form is None or is_within:
            if not must and request.output.kind == "text":
                return None
            raise Unsupported(
                f"tool calls in this model's format ({self._family.format}) can be neither "
                "required nor combined with a response format"
                + (" where an answer is continued" if is_within else ""),
                field="tool_choice" if must else request.output.field,
            )
        return Calls(
            form,
            tools,
            only=request.tool_choice.name if request.tool_choice.mode == "named" else None,
            parallel=request.parallel_tool_calls,
            need="must" if must else "may",
            held=self._constrain_tools,
        )
