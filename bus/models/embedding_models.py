"""Reads how an embedding model or a reranker computes: from which of its files, and in which steps.

Pure: the caller reads a file as JSON, by its name. The worker writes a model's card and the runner
loads the model by these same rules. File names are those of sentence-transformers: `modules.json`
lists a transformer, a pooling, and further steps. A BERT without these files is pooled by the mean
of its tokens, as in sentence-transformers. A reranker is an encoder with a classifier of one label;
its head is two linear steps here. If shoal would compute a model differently from what its makers
intended, the model is refused: ValueError with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from bus.models.embedding_parts import (
    Architecture,
    DenseStep,
    EmbeddingModel,
    NormaliseStep,
    PoolingMode,
    Step,
)

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
TOKENIZER = "tokenizer_config.json"
LIMITS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "albert", "xlnet")
)
"""Files of sentence-transformers that set the maximum input length. Only the first existing file is
used."""
VECTOR = "sentence_embedding"
"""sentence-transformers' name for the vector of an input."""
MOST_MODULES = 16
MOST_WIDTH = 1 << 16
MOST_TOKENS = 1 << 24
MOST_PROMPT_CHARACTERS = 1 << 16
_ENCODERS: Mapping[str, Architecture] = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
}
_CLASSIFIER = "ForSequenceClassification"
_OTHER_HEADS = (_CLASSIFIER, "ForTokenClassification", "ForQuestionAnswering")
_HEADS: Mapping[Architecture, tuple[str, str]] = {
    "bert": ("pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
}
"""The names of the two layers of a reranker's head."""
_ACTIVATIONS = {"Tanh": "tanh", "Identity": "identity", "GELU": "gelu", "ReLU": "relu"}
_POOLED: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys of a pooling module, each with its kind of pooling. If a module sets several keys, the
vectors of these kinds are joined in this order."""

ReadJson = Callable[[str], object]
"""Returns the content of the JSON file with this name in the model's folder; None if it is
missing."""


def is_encoder(family: str) -> bool:
    """Return whether models of a family are encoders, which only make vectors."""
    return family in _ENCODERS


def embedding_model(config: Mapping[str, Any], read: ReadJson) -> EmbeddingModel | None:
    """Return the embedding model in a model's folder; None if it is not one. `config` is its
    config.json. Raises ValueError if shoal can't compute it as its makers intended."""
    family = str(config.get("model_type", ""))
    modules = read(MODULES)
    if modules is None and family not in _ENCODERS:
        return None
    architecture = _ENCODERS.get(family, "decoder")
    ranks = _ranks(config, architecture)
    _check_body(config, architecture, ranks=ranks)
    hidden = _count(config, "config.json", "hidden_size", MOST_WIDTH)
    if ranks:
        return _reranker(config, architecture, hidden, read)
    pooling, steps, limits = _modules(modules, hidden, read)
    width = hidden * len(pooling)
    for step in steps:
        if isinstance(step, DenseStep):
            if step.inputs != width:
                raise ValueError(f"{step.folder} expects {step.inputs} inputs but gets {width}")
            width = step.outputs
    more = _object(read(PROMPTS), PROMPTS)
    choices, cut, any_ = _dimensions(config, more, width)
    return EmbeddingModel(
        architecture=architecture,
        family=family,
        pooling=pooling,
        steps=steps,
        width=width,
        dimensions=cut,
        max_tokens=_max_tokens(config, architecture, limits, read),
        dimension_choices=choices,
        any_dimensions=any_,
        prompt=_prompt(more),
        lower_case=limits.get("do_lower_case") is True,
    )


def _ranks(config: Mapping[str, Any], architecture: Architecture) -> bool:
    """Return whether the model is an encoder with a classifier of one label."""
    named = config.get("architectures")
    names = [str(name) for name in cast(list[object], named)] if isinstance(named, list) else []
    classifies = len(names) == 1 and names[0].endswith(_CLASSIFIER)
    return architecture in _HEADS and classifies and _labels(config) == 1


def _labels(config: Mapping[str, Any]) -> int:
    """Return the number of labels of a classifier. As in transformers, the default is 2."""
    labels, count = config.get("id2label"), config.get("num_labels")
    if isinstance(labels, dict):
        return len(cast(dict[object, object], labels))
    return count if type(count) is int else 2


def _reranker(
    config: Mapping[str, Any], architecture: Architecture, hidden: int, read: ReadJson
) -> EmbeddingModel:
    first, last = _HEADS[architecture]
    return EmbeddingModel(
        architecture=architecture,
        family=str(config.get("model_type", "")),
        pooling=("cls",),
        steps=(
            DenseStep(first, hidden, hidden, True, "tanh"),
            DenseStep(last, hidden, 1, True, "identity"),
        ),
        width=1,
        dimensions=1,
        max_tokens=_max_tokens(config, architecture, _limits("", read), read),
        ranks=True,
    )


def files_read(names: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the files and folders of a model that describe how it computes
    vectors."""
    wanted = (MODULES, PROMPTS, TOKENIZER, *LIMITS)
    return tuple(name for name in names if name in wanted or name[:1].isdigit())


def _check_body(config: Mapping[str, Any], architecture: Architecture, *, ranks: bool) -> None:
    """Raise ValueError for a transformer that shoal would compute differently from its makers."""
    if config.get("auto_map"):
        raise ValueError("the model needs its own code (auto_map), which shoal does not run")
    named = config.get("architectures")
    for name in cast(list[object], named) if isinstance(named, list) else []:
        if str(name).endswith(_OTHER_HEADS) and not ranks:
            raise ValueError(
                f"{name} is a classifier, not an embedding model; a reranker has one label"
            )
    if architecture == "decoder":
        if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
            raise ValueError(
                "the attention is bidirectional; shoal computes decoders with causal attention"
            )
        return
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ValueError("the model is a BERT decoder (is_decoder), which shoal does not run")
    kind = config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ValueError(f"position_embedding_type {kind!r} is not supported; only 'absolute' is")


def _modules(
    listing: object, hidden: int, read: ReadJson
) -> tuple[tuple[PoolingMode, ...], tuple[Step, ...], Mapping[str, Any]]:
    """Return what `modules.json` (`listing`) says: the kinds of pooling, the steps after the
    pooling, and the settings of the transformer."""
    if listing is None:
        return ("mean",), (), _limits("", read)
    if not isinstance(listing, list) or not 2 <= len(cast(list[object], listing)) <= MOST_MODULES:
        raise ValueError(f"{MODULES} must list a transformer and a pooling module")
    modules = [_module(module) for module in cast(list[object], listing)]
    (first, at), (second, pooled) = modules[:2]
    if (first, second) != ("Transformer", "Pooling"):
        raise ValueError(
            f"{MODULES} begins with {first}, {second}; only Transformer, Pooling is supported"
        )
    if at:
        raise ValueError(
            f"{MODULES} has its transformer in the folder {at}, which is not supported"
        )
    pooling = _pooling(pooled, hidden, read)
    return pooling, tuple(_step(kind, path, read) for kind, path in modules[2:]), _limits(at, read)


def _module(raw: object) -> tuple[str, str]:
    """Return the kind of a module, without its package, and its folder."""
    entry = _object(raw, MODULES)
    kind, path = entry.get("type"), entry.get("path", "")
    if not isinstance(kind, str) or not isinstance(path, str):
        raise ValueError(f"{MODULES} has a module without type or path")
    if path.startswith(".") or "/" in path or "\\" in path or "\0" in path:
        raise ValueError(f"{MODULES} names {path[:80]!r}, which is not a folder of the model")
    return kind.rpartition(".")[2], path


def _pooling(folder: str, hidden: int, read: ReadJson) -> tuple[PoolingMode, ...]:
    name = f"{folder}/config.json"
    config = _object(read(name), name)
    if not config:
        raise ValueError(f"{name} is missing")
    width = config.get("word_embedding_dimension", config.get("embedding_dimension", hidden))
    if width != hidden:
        raise ValueError(
            f"{name} pools vectors of size {width}; those of the model have size {hidden}"
        )
    if config.get("include_prompt") is False and _prompt(_object(read(PROMPTS), PROMPTS)):
        raise ValueError(
            f"{name}: include_prompt false is not supported; the prompt would be pooled"
        )
    modes = config.get("pooling_mode")
    if modes is not None:
        listed = cast(list[object], modes) if isinstance(modes, list) else [modes]
    else:
        listed = [mode for key, mode in _POOLED.items() if config.get(key)] or ["mean"]
    unknown = [mode for mode in listed if mode not in get_args(PoolingMode)]
    if unknown or not 0 < len(listed) <= len(_POOLED):
        raise ValueError(f"{name} has an unsupported pooling mode: {unknown or 'none'}")
    return tuple(cast(list[PoolingMode], listed))


def _step(kind: str, folder: str, read: ReadJson) -> Step:
    if kind == "Normalize":
        return NormaliseStep()
    if kind != "Dense":
        raise ValueError(f"{MODULES} has the unsupported module {kind} ({folder})")
    name = f"{folder}/config.json"
    config = _object(read(name), name)
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise ValueError(f"{name}: unsupported activation {activation}")
    if config.get("use_residual") or config.get("module_input_name", VECTOR) != VECTOR:
        raise ValueError(f"{name}: use_residual and module_input_name are not supported")
    return DenseStep(
        folder,
        _count(config, name, "in_features", MOST_WIDTH),
        _count(config, name, "out_features", MOST_WIDTH),
        config.get("bias", True) is not False,
        _ACTIVATIONS[activation],
    )


def _limits(folder: str, read: ReadJson) -> Mapping[str, Any]:
    for name in LIMITS:
        content = read(f"{folder}/{name}" if folder else name)
        if content is not None:
            return _object(content, name)
    return {}


def _max_tokens(
    config: Mapping[str, Any],
    architecture: Architecture,
    limits: Mapping[str, Any],
    read: ReadJson,
) -> int:
    """Return the maximum tokens of an input: the limit that sentence-transformers sets, but no more
    than the model has positions."""
    positions = _count(config, "config.json", "max_position_embeddings", MOST_TOKENS)
    if architecture == "roberta":
        positions -= padding_token(config) + 1
    if limits.get("max_seq_length") is not None:
        stated = _count(limits, "max_seq_length's file", "max_seq_length", MOST_TOKENS)
    else:
        length = _object(read(TOKENIZER), TOKENIZER).get("model_max_length")
        large = isinstance(length, int | float) and not isinstance(length, bool) and length >= 1
        stated = int(min(cast(float, length), MOST_TOKENS)) if large else positions
    if min(positions, stated) < 3:
        raise ValueError("the model's maximum input length is under 3 tokens")
    return min(positions, stated)


def padding_token(config: Mapping[str, Any]) -> int:
    """Return the id of the padding token; by default 1 for RoBERTa, else 0."""
    token = config.get("pad_token_id")
    if token is None:
        return 1 if _ENCODERS.get(str(config.get("model_type"))) == "roberta" else 0
    if type(token) is not int or not 0 <= token < MOST_TOKENS:
        raise ValueError("config.json: pad_token_id is not a token id")
    return token


def _dimensions(
    config: Mapping[str, Any], more: Mapping[str, Any], width: int
) -> tuple[tuple[int, ...], int, bool]:
    """Return the sizes of a vector that a request may choose, the default size, and whether any
    size up to `width` is allowed."""
    listed: object = config.get("matryoshka_dimensions") or more.get("matryoshka_dimensions")
    if listed is not None and not isinstance(listed, list):
        raise ValueError("matryoshka_dimensions is not a list")
    choices = set[int]()
    for size in cast(list[object], listed or []):
        if type(size) is not int or not 1 <= size <= width:
            raise ValueError(f"matryoshka_dimensions has {size!r}; the range is 1 to {width}")
        choices.add(size)
    cut = width
    if more.get("truncate_dim") is not None:
        cut = _count(more, PROMPTS, "truncate_dim", width)
        choices |= {cut, width}
    any_ = config.get("is_matryoshka") is True and not choices
    return tuple(sorted(choices)), cut, any_


def _prompt(more: Mapping[str, Any]) -> str:
    """Return the prompt before each input; "" if there is none."""
    name = more.get("default_prompt_name")
    if name is None:
        return ""
    text = _object(more.get("prompts"), f"prompts of {PROMPTS}").get(str(name))
    if not isinstance(text, str) or len(text) > MOST_PROMPT_CHARACTERS:
        raise ValueError(f"{PROMPTS} has no usable prompt {str(name)[:80]!r}")
    return text


def _object(value: object, name: str) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for None. Raises ValueError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a JSON object")
    return cast(dict[str, Any], value)


def _count(fields: Mapping[str, Any], name: str, key: str, most: int) -> int:
    value = fields.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name}: {key} is {str(value)[:80]}; the range is 1 to {most}")
    return value
