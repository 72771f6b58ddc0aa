# pyright: reportUnknownMemberType=false
# (the arguments of some functions of tokenizers' are untyped)
"""Both readers of tokenizer files come to the same, or the cheaper one says that it is unsure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers.models.auto import tokenization_auto

from runner.text.opening import OpenedTokenizer, TokenizerError, open_tokenizer, template_for
from runner.text.opening.alone import open_alone
from runner.text.opening.by_library import open_by_library
from runner.text.opening.rebuilt import FORCED, NAMED_SO, QWEN_2, Rebuilding
from runner.text.opening.settings import NOT_PLAIN, PLAIN, Unsure
from tests.harness.embedding_folders import write_encoder
from tests.harness.toy_tokenizer import save_toy

TINY = Path(__file__).resolve().parents[4] / "conf" / "tiny"
CORPUS = [
    'hello world, the quick brown fox {"name": "get_weather", "arguments": {"city": "Paris"}}',
    "Let me think about it. ünïcödé naïve Straße Grüße 日本語 🐟🐠 don't I'm we've 0123456789",
    "A shoal moves as one. def run(self):\n    return 42\n\n\t x = y ! , . ?",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
SPLITS = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
TEXTS = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from([*CORPUS, *SPECIAL, *MARKERS, " ", "\n"])),
    max_size=5,
).map("".join)


def sizes(**more: Any) -> dict[str, Any]:
    return {"vocab_size": 400, "special_tokens": SPECIAL, "show_progress": False, **more}


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLITS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(made, trainers.BpeTrainer(**sizes(initial_alphabet=alphabet)))


def qwen(rebuilding: Rebuilding) -> Tokenizer:
    made = byte_level()
    said = json.loads(made.to_str())
    said["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": rebuilding.splits}
    said["pre_tokenizer"]["pretokenizers"][1]["trim_offsets"] = False
    return Tokenizer.from_str(json.dumps(said))


def byte_fallback() -> Tokenizer:
    """Return one as Llama 2 and Gemma have: sentencepiece's BPE, as transformers writes it."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    trainer = trainers.BpeTrainer(**sizes(special_tokens=[*SPECIAL, *BYTES]))
    done = trained(made, trainer)
    done.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return done


def metaspace() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(unk_token="<unk>", **sizes(vocab_size=180))
    done = trained(made, trainer)
    done.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    done.enable_truncation(5)
    return done


def word_piece() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return trained(made, trainers.WordPieceTrainer(**sizes()))


def words() -> Tokenizer:
    made = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return trained(made, trainers.WordLevelTrainer(**sizes()))


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
OF_PLACES = {"trim_offsets": False, "add_prefix_space": False, "use_regex": False}
KINDS = (byte_level, byte_fallback, metaspace, word_piece, words)


def trained(made: Tokenizer, trainer: Any) -> Tokenizer:
    made.train_from_iterator(CORPUS * 3, trainer)
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return made


def saved(folder: Path, kind: Callable[[], Tokenizer], **said: Any) -> Path:
    kind().save(str(folder / "tokenizer.json"))
    tell(folder, {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", **said})
    config = {"model_type": "qwen3", "vocab_size": 512, "eos_token_id": [2, 3]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tell(folder: Path, said: Mapping[str, Any]) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **said}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def unpadded(folder: Path) -> Path:
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.no_padding()
    made.save(str(folder / "tokenizer.json"))
    return folder


def both(folder: Path) -> tuple[OpenedTokenizer, OpenedTokenizer]:
    return open_alone(folder, {}, [2, 3]), open_by_library(folder, {}, [2, 3])


def whole(opened: OpenedTokenizer) -> dict[str, Any]:
    """Return all that a tokenizer is, without how it cuts and fills up what is encoded."""
    found: dict[str, Any] = json.loads(opened.backend.to_str())
    # a decoder looks at none of its settings, and an empty prefix is none
    found["decoder"] = {**(found["decoder"] or {}), **OF_PLACES}
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        found["model"][name] = found["model"].get(name) or None
    cuts: dict[str, Any] = found["pre_tokenizer"] or {}
    for part in cuts.get("pretokenizers", []):
        part["trim_offsets"] = False
    return {**found, "truncation": None, "padding": None}


def assert_same(ours: OpenedTokenizer, theirs: OpenedTokenizer) -> None:
    for name in ("special_tokens", "end_ids", "templates", "has_template", "thinking_variable"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("think", "calls", "format"):
        assert getattr(ours.marks, name) == getattr(theirs.marks, name), name
    assert ours.own_prompt is theirs.own_prompt is None
    assert whole(ours) == whole(theirs)


def streamed(opened: OpenedTokenizer, tokens: list[int]) -> str:
    reader = opened.streaming()
    text = ""
    for token in tokens:
        reader.add_token(token)
        text += reader.last_segment
    reader.finalize()
    return text + reader.last_segment


@pytest.fixture(scope="module", params=[TINY, save_toy, write_encoder, *KINDS])
def readers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[OpenedTokenizer, OpenedTokenizer]:
    folder = tmp_path_factory.mktemp("tokenizer")
    if isinstance(request.param, Path):
        return both(request.param)
    if request.param is write_encoder:
        tell(unpadded(write_encoder(folder / "encoder")), {})
        return both(folder / "encoder")
    return both(save_toy(folder) if request.param is save_toy else saved(folder, request.param))


def test_both_readers_say_the_same_of_a_tokenizer(
    readers: tuple[OpenedTokenizer, OpenedTokenizer],
) -> None:
    assert_same(*readers)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS)
def test_both_readers_make_the_same_tokens_and_the_same_text(
    readers: tuple[OpenedTokenizer, OpenedTokenizer], text: str
) -> None:
    ours, theirs = readers
    for special in (False, True):
        tokens = theirs.encode(text, special)
        assert ours.encode(text, special) == tokens
        assert ours.decode(tokens) == theirs.decode(tokens)
    if type(theirs.streaming()) is type(ours.streaming()):
        assert streamed(ours, tokens) == streamed(theirs, tokens)


ADDED = {
    "content": "<new>", "lstrip": False, "rstrip": True, "normalized": False,
    "single_word": False, "special": True,
}  # fmt: skip
TOKENS = st.sampled_from(
    ["<s>", "</s>", "<think>", "<new>", "hello", {**ADDED, "__type": "AddedToken"}, None]
)
TEMPLATES = st.sampled_from([
    None, "{{ messages }}", "<tool_call> tool_call.name",
    [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}],
])  # fmt: skip
SETTINGS = st.fixed_dictionaries(
    {"tokenizer_class": st.sampled_from([*sorted(PLAIN), "Evil"])},
    optional={
        "bos_token": TOKENS,
        "eos_token": TOKENS,
        "pad_token": TOKENS,
        "image_token": TOKENS,
        "additional_special_tokens": st.lists(TOKENS, max_size=2),
        "extra_special_tokens": st.lists(TOKENS, max_size=2) | st.just({"eot_token": "<eot>"}),
        "added_tokens_decoder": st.dictionaries(
            st.sampled_from(["0", "1", "403", "404"]),
            st.sampled_from(["<new>", "<s>", "</s>", "<think>"]).map(
                lambda text: {**ADDED, "content": text}
            ),
            max_size=3,
        ),
        "chat_template": TEMPLATES,
        "clean_up_tokenization_spaces": st.booleans(),
        "add_bos_token": st.booleans(),
        "split_special_tokens": st.booleans(),
        "padding_side": st.sampled_from(["left", "nowhere"]),
        "tool_parser_type": st.sampled_from([None, "pythonic"]),
        "model_max_length": st.just(2048),
        "surprise": st.just(1),
    },
)


@pytest.fixture(scope="module")
def any_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("any"), byte_level)


@settings(max_examples=60)
@example(said={"tokenizer_class": "TokenizersBackend", "bos_token": "<think>"}, family="qwen3")
@given(said=SETTINGS, family=st.sampled_from(["qwen3", "llama", "qwen2", "mistral", "unheard-of"]))
def test_whatever_the_settings_say_both_readers_agree_or_one_is_unsure(
    any_folder: Path, said: dict[str, Any], family: str
) -> None:
    config = {"model_type": family, "vocab_size": 512}
    (any_folder / "config.json").write_text(json.dumps(config))
    (any_folder / "tokenizer_config.json").write_text(json.dumps(said))
    try:
        ours = open_alone(any_folder, {}, [])
    except (Unsure, TypeError):
        return
    assert_same(ours, open_by_library(any_folder, {}, []))


@pytest.mark.parametrize(
    ("said", "files"),
    [
        ({"tokenizer_class": "LlamaTokenizer"}, {}),
        ({"auto_map": {"AutoTokenizer": [None, "tokenization_evil.Evil"]}}, {}),
        ({"fast_tokenizer_files": ["tokenizer.4.0.json"]}, {}),
        ({"fix_mistral_regex": True}, {}),
        ({"chat_template_type": "deepseek_v32"}, {}),
        ({"bos_token": {"content": "<s>"}}, {}),
        ({}, {"tekken.json": "{}"}),
        ({}, {"special_tokens_map.json": "{}"}),
        ({}, {"added_tokens.json": "{}"}),
        ({}, {"config.json": '{"model_type": "qwen2"}'}),
        ({"tokenizer_class": "Qwen2Tokenizer"}, {}),
        ({}, {"config.json": '{"model_type": "mistral"}'}),
        ({}, {"config.json": '{"vocab_size": 12}'}),
        ({}, {"tokenizer_config.json": "[]"}),
    ],
)
def test_what_transformers_may_read_in_another_way_is_left_to_it(
    any_folder: Path, tmp_path: Path, said: dict[str, Any], files: dict[str, str]
) -> None:
    shutil.copytree(any_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    tell(tmp_path, said)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(Unsure):
        open_alone(tmp_path, {}, [])


def test_a_tokenizer_that_pads_is_left_to_transformers(tmp_path: Path) -> None:
    made = Tokenizer.from_file(str(saved(tmp_path, words) / "tokenizer.json"))
    made.enable_padding(pad_token="<pad>", pad_id=3)
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Unsure, match="pads short inputs"):
        open_alone(tmp_path, {}, [])
    assert open_tokenizer(tmp_path, {}, []).special_tokens["pad_token"] == "<pad>"


def test_text_that_transformers_would_tidy_up_is_left_to_it(tmp_path: Path) -> None:
    with pytest.raises(Unsure, match="spaces"):
        open_alone(saved(tmp_path, word_piece, clean_up_tokenization_spaces=True), {}, [])


def test_a_broken_file_is_refused_in_the_words_of_transformers(tmp_path: Path) -> None:
    saved(tmp_path, byte_level)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": {}}')
    with pytest.raises(TokenizerError) as ours:
        open_tokenizer(tmp_path, {}, [])
    with pytest.raises(TokenizerError) as theirs:
        open_by_library(tmp_path, {}, [])
    assert str(ours.value) == str(theirs.value)


def test_families_with_a_class_of_their_own_are_those_of_transformers() -> None:
    classes = tokenization_auto.TOKENIZER_MAPPING_NAMES
    forced = tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert {name for name in forced if classes.get(name) != "TokenizersBackend"} == NOT_PLAIN


QWEN: list[tuple[str, str, Rebuilding]] = [
    *((family, "PreTrainedTokenizerFast", one) for family, one in FORCED.items()),
    *((family, f"{one.name}Fast", one) for family, one in FORCED.items()),
    *((family, one.name, one) for family, one in NAMED_SO.items()),
]


@pytest.mark.parametrize(("family", "named", "rebuilding"), QWEN)
def test_both_readers_say_the_same_of_qwens_tokenizers(
    tmp_path: Path, family: str, named: str, rebuilding: Rebuilding
) -> None:
    folder = saved(tmp_path, lambda: qwen(rebuilding))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    extra = {"additional_special_tokens": ["<think>", "<more>"], "pad_token": "<unk>"}
    for said in (
        {},
        {"bos_token": "<s>", "unk_token": None, "tool_parser_type": "pythonic"},
        extra,
    ):
        tell(folder, {**said, "tokenizer_class": named})
        ours, theirs = both(folder)
        assert_same(ours, theirs)
        for text in (*CORPUS, "".join(SPECIAL + MARKERS), "a\u0301 \u0e01\u0e31 <more> 12 \r\n"):
            assert ours.encode(text, True) == theirs.encode(text, True)


def test_a_tokenizer_that_is_not_what_its_class_writes_is_left_to_transformers(
    tmp_path: Path,
) -> None:
    folder = saved(tmp_path, lambda: qwen(QWEN_2))
    tell(folder, {"tokenizer_class": "Qwen2Tokenizer"})
    whole = json.loads((folder / "tokenizer.json").read_text())
    only = {"403": {"content": "<think>", "special": False}}
    tell(folder, {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": only})
    with pytest.raises(Unsure, match="different added tokens"):
        open_alone(folder, {}, [])
    tell(folder, {"tokenizer_class": "Qwen2Tokenizer"})
    for change in (
        {"normalizer": None},
        {"pre_tokenizer": whole["pre_tokenizer"]["pretokenizers"][1]},
        {"decoder": {"type": "Fuse"}},
        {"model": {**whole["model"], "ignore_merges": True}},
    ):
        (folder / "tokenizer.json").write_text(json.dumps({**whole, **change}))
        with pytest.raises(Unsure):
            open_alone(folder, {}, [])


def test_transformers_takes_the_classes_that_are_told_of_it() -> None:
    classes = tokenization_auto.TOKENIZER_MAPPING_NAMES
    for family, rebuilding in {**FORCED, **NAMED_SO}.items():
        assert classes[family] == rebuilding.name
    assert FORCED.keys() <= tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert not NAMED_SO.keys() & tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS


def test_templates_are_chosen_as_transformers_does() -> None:
    assert template_for("one", tools=True) == "one"
    two = {"default": "plain", "tool_use": "tools"}
    assert template_for(two, tools=True) == "tools"
    assert template_for(two, tools=False) == "plain"
    for none in (None, {"tool_use": "tools"}):
        with pytest.raises(ValueError, match="chat template"):
            template_for(none, tools=False)
