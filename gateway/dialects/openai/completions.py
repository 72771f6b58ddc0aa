"""OpenAI's completions: plain prompts in, their continuations out.

Pure. Several prompts make several requests, answered as one. `max_tokens` left out means
16, as OpenAI says. `echo` puts the prompt before its continuation, with `logprobs` also the
log-probabilities of its tokens; `max_tokens` 0 then asks for the prompt alone. `best_of` must equal
`n`, for nothing is ranked here; `suffix` asks for the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from bus.wire.messages.requests import GenerationRequest, Prompt, TextPrompt, TokensPrompt
from gateway.dialects import sse
from gateway.dialects.body import bad_field, read_body
from gateway.dialects.collect import Collected
from gateway.dialects.dialect import Extras, Limits, ParseContext, Parsed
from gateway.dialects.openai import fields
from gateway.dialects.openai.bodies import CompletionsBody
from gateway.dialects.openai.completions_render import CompletionsStream, render_completions
from gateway.dialects.openai.formats import output_of
from gateway.dialects.shared_fields import stops_of

DEFAULT_MAX_TOKENS = 16


class OpenAICompletions:
    """`POST /v1/completions`."""

    name = "openai_completions"
    stream_content_type = sse.CONTENT_TYPE

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request per prompt, each of `n` choices."""
        asked, extras = read_body(CompletionsBody, body, context.limits)
        fields.check_offered(asked)
        _check_combination(asked)
        prompts = _prompts_of(asked, context.limits)
        requests = tuple(_request_of(asked, prompt, extras, context) for prompt in prompts)
        return Parsed(
            requests=requests,
            model=asked.model,
            stream=bool(asked.stream),
            answer_id=f"cmpl-{requests[0].request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            include_usage=fields.includes_usage(asked),
            extras=extras,
            said_back=fields.said_back_of(asked),
            affinity=asked.prompt_cache_key or "",
            echoes=_echoes_of(asked, prompts),
        )

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> CompletionsStream:
        """Return a renderer of chunks of `text_completion`; loading is told in comments only."""
        return CompletionsStream(parsed)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return one `text_completion`."""
        return render_completions(parsed, collected)


def _check_combination(asked: CompletionsBody) -> None:
    if asked.store:
        raise bad_field("store", "only chat completions and responses are stored; omit it")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise bad_field("best_of", "must equal n; answers are not ranked")
    if asked.max_tokens == 0 and not asked.echo:
        raise bad_field("max_tokens", "must be at least 1, unless echo is true")


def _reads_prompt(asked: CompletionsBody, prompt: Prompt) -> bool:
    """Return whether the runner has to tell of the prompt's tokens: their log-probabilities, their
    text, or nothing but them."""
    if not asked.echo:
        return False
    told = asked.logprobs is not None or isinstance(prompt, TokensPrompt) or asked.max_tokens == 0
    if told and (asked.n or 1) > 1:
        text = "must be 1 with echo and any of logprobs, a prompt of token ids and max_tokens 0"
        raise bad_field("n", text)
    if told and asked.suffix:
        text = "echo does not work with suffix; omit one of them"
        raise bad_field("suffix", text)
    return told


def _prompts_of(asked: CompletionsBody, limits: Limits) -> tuple[Prompt, ...]:
    match asked.prompt:
        case str(text):
            return (_text_of(text, "prompt", asked),)
        case [str(), *_] as texts:
            _check_count(len(texts), limits)
            return tuple(
                _text_of(text, f"prompt[{index}]", asked) for index, text in enumerate(texts)
            )
        case [list(), *_] as many:
            _check_count(len(many), limits)
            _check_no_suffix(asked)
            return tuple(TokensPrompt(token_ids=tuple(one)) for one in many)
        case _:
            _check_no_suffix(asked)
            return (TokensPrompt(token_ids=tuple(cast(list[int], asked.prompt))),)


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.prompts:
        raise bad_field("prompt", f"at most {limits.prompts} prompts")


def _check_no_suffix(asked: CompletionsBody) -> None:
    if asked.suffix:
        raise bad_field("suffix", "needs the prompt as text")


def _text_of(text: str, field: str, asked: CompletionsBody) -> TextPrompt:
    if not text and not asked.suffix:
        raise bad_field(field, "must not be empty")
    return TextPrompt(text=text, suffix=asked.suffix or None)


def _echoes_of(asked: CompletionsBody, prompts: Sequence[Prompt]) -> tuple[str | None, ...]:
    if not asked.echo:
        return ()
    return tuple(prompt.text if isinstance(prompt, TextPrompt) else None for prompt in prompts)


def _max_tokens_of(asked: CompletionsBody) -> int | None:
    if asked.max_tokens is None:
        return DEFAULT_MAX_TOKENS
    return None if asked.max_tokens == fields.AS_MANY_AS_FIT else asked.max_tokens


def _request_of(
    asked: CompletionsBody, prompt: Prompt, extras: Extras, context: ParseContext
) -> GenerationRequest:
    return GenerationRequest(
        request_id=next(context.ids),
        model=fields.model_of(asked),
        prompt=prompt,
        n=asked.n or 1,
        max_tokens=_max_tokens_of(asked),
        stop=stops_of("stop", asked.stop, context.limits),
        sampling=fields.sampling_of(asked),
        output=output_of(asked, context.limits),
        top_logprobs=asked.logprobs,
        prompt_logprobs=(asked.logprobs or 0) if _reads_prompt(asked, prompt) else None,
        ignore_eos=bool(asked.ignore_eos),
        min_tokens=asked.min_tokens or None,
        priority=fields.priority_of(asked.service_tier, extras),
        client_id=fields.client_of(asked, extras),
    )
