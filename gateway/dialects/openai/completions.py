"""OpenAI's completions: takes plain prompts, returns their continuations.

Pure. Several prompts make several requests, which are answered together. As in OpenAI's API,
`max_tokens` defaults to 16. `echo` puts the prompt before its continuation; with `logprobs` the
prompt's tokens have log-probabilities too. If `max_tokens` is 0, `echo` returns only the prompt.
`best_of` must equal `n`, since answers are not ranked. `suffix` is the text after the gap that the
model fills.
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
from gateway.dialects.shared_fields import named_model, stops_of

DEFAULT_MAX_TOKENS = 16


class OpenAICompletions:
    """The endpoint `POST /v1/completions`."""

    name = "openai_completions"
    stream_content_type = sse.CONTENT_TYPE

    def parse(self, body: bytes, context: ParseContext) -> Parsed:
        """Return one request per prompt, each with `n` choices."""
        parsed_body, extras = read_body(CompletionsBody, body, context.limits)
        fields.check_offered(parsed_body)
        _check_combination(parsed_body)
        prompts = _prompts_of(parsed_body, context.limits)
        requests = tuple(_request_of(parsed_body, prompt, extras, context) for prompt in prompts)
        return Parsed(
            requests=requests,
            model=parsed_body.model,
            stream=bool(parsed_body.stream),
            answer_id=f"cmpl-{requests[0].request_id}",
            created_at_s=context.now_s,
            fingerprint=context.fingerprint,
            include_usage=fields.includes_usage(parsed_body),
            extras=extras,
            echoed_fields=fields.echoed_fields_of(parsed_body),
            affinity=parsed_body.prompt_cache_key or "",
            echoes=_echoes_of(parsed_body, prompts),
        )

    def stream(self, parsed: Parsed, *, load_s: float = 0.0) -> CompletionsStream:
        """Return a renderer of `text_completion` chunks. While the model loads, the renderer sends
        only comments."""
        return CompletionsStream(parsed)

    def render_whole(
        self, parsed: Parsed, collected: Sequence[Collected], *, load_s: float = 0.0
    ) -> bytes:
        """Return a `text_completion` object."""
        return render_completions(parsed, collected)


def _check_combination(body: CompletionsBody) -> None:
    if body.store:
        raise bad_field("store", "only chat completions and responses are stored; omit it")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_field("best_of", "must equal n; answers are not ranked")
    if body.max_tokens == 0 and not body.echo:
        raise bad_field("max_tokens", "must be at least 1, unless echo is true")


def _reads_prompt(body: CompletionsBody, prompt: Prompt) -> bool:
    """Return whether the runner must report the prompt's tokens. It must if the client wants their
    log-probabilities, their text, or no continuation at all."""
    if not body.echo:
        return False
    reads = body.logprobs is not None or isinstance(prompt, TokensPrompt) or body.max_tokens == 0
    if reads and (body.n or 1) > 1:
        text = "must be 1 if echo is used with logprobs, token ids as prompt, or max_tokens 0"
        raise bad_field("n", text)
    if reads and body.suffix:
        text = "echo does not work with suffix; omit one of them"
        raise bad_field("suffix", text)
    return reads


def _prompts_of(body: CompletionsBody, limits: Limits) -> tuple[Prompt, ...]:
    match body.prompt:
        case str(text):
            return (_text_of(text, "prompt", body),)
        case [str(), *_] as texts:
            _check_count(len(texts), limits)
            return tuple(
                _text_of(text, f"prompt[{index}]", body) for index, text in enumerate(texts)
            )
        case [list(), *_] as many:
            _check_count(len(many), limits)
            _check_no_suffix(body)
            return tuple(TokensPrompt(token_ids=tuple(tokens)) for tokens in many)
        case _:
            _check_no_suffix(body)
            return (TokensPrompt(token_ids=tuple(cast(list[int], body.prompt))),)


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.prompts:
        raise bad_field("prompt", f"too many prompts; the limit is {limits.prompts}")


def _check_no_suffix(body: CompletionsBody) -> None:
    if body.suffix:
        raise bad_field("suffix", "needs the prompt as text")


def _text_of(text: str, field: str, body: CompletionsBody) -> TextPrompt:
    if not text and not body.suffix:
        raise bad_field(field, "must not be empty")
    return TextPrompt(text=text, suffix=body.suffix or None)


def _echoes_of(body: CompletionsBody, prompts: Sequence[Prompt]) -> tuple[str | None, ...]:
    if not body.echo:
        return ()
    return tuple(prompt.text if isinstance(prompt, TextPrompt) else None for prompt in prompts)


def _max_tokens_of(body: CompletionsBody) -> int | None:
    if body.max_tokens is None:
        return DEFAULT_MAX_TOKENS
    return None if body.max_tokens == fields.AS_MANY_AS_FIT else body.max_tokens


def _request_of(
    body: CompletionsBody, prompt: Prompt, extras: Extras, context: ParseContext
) -> GenerationRequest:
    return GenerationRequest(
        request_id=next(context.ids),
        model=named_model(body.model),
        prompt=prompt,
        n=body.n or 1,
        max_tokens=_max_tokens_of(body),
        stop=stops_of("stop", body.stop, context.limits),
        sampling=fields.sampling_of(body),
        output=output_of(body, context.limits),
        top_logprobs=body.logprobs,
        prompt_logprobs=(body.logprobs or 0) if _reads_prompt(body, prompt) else None,
        ignore_eos=bool(body.ignore_eos),
        min_tokens=body.min_tokens or None,
        priority=fields.priority_of(body.service_tier, extras),
        client_id=fields.client_of(body, extras),
        speculate=extras.speculate,
    )
