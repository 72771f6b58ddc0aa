from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from runner.text.families.spans import Marks
from runner.text.tokenizer import ModelTokenizer, TokenizerError
from tests.harness.toy_tokenizer import VOCABULARY, save_toy, toy_tokenizer


def test_a_model_directory_tells_its_markers_ends_and_width() -> None:
    tokenizer = toy_tokenizer()
    assert tokenizer.family.think == Marks("<think>", "</think>")
    assert tokenizer.family.calls == Marks("<tool_call>", "</tool_call>")
    assert tokenizer.family.format == "json_tools"
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.vocabulary == tokenizer.guide.vocab_size == VOCABULARY
    assert set(tokenizer.guide.eos_tokens) == {0, 2}
    assert tokenizer.has_template
    assert not toy_tokenizer(None).has_template


def test_markup_of_added_tokens_is_one_token() -> None:
    tokenizer = toy_tokenizer()
    ids = tokenizer.encode("<|im_start|><think>")
    assert ids == [tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<think>")]
    assert tokenizer.token_id("hello") is None


def test_a_token_alone_goes_by_its_text_or_its_name() -> None:
    tokenizer = toy_tokenizer()
    (word,) = tokenizer.encode(" quick")
    assert tokenizer.token_text(word) == " quick"
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_text(VOCABULARY - 1) == ""


def test_the_ends_of_all_files_count(tmp_path: Path) -> None:
    save_toy(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 9999]}))
    assert ModelTokenizer(tmp_path).eos_token_ids == {0, 1, 2}


def test_the_width_may_be_stated_by_who_has_seen_the_logits(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(save_toy(tmp_path), vocabulary=640)
    assert tokenizer.vocabulary == tokenizer.guide.vocab_size == 640


def test_a_directory_without_a_usable_tokenizer_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="not a directory"):
        ModelTokenizer(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match="cannot open the tokenizer"):
        ModelTokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TokenizerError, match="not JSON"):
        ModelTokenizer(tmp_path)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    save_toy(tmp_path)
    trap = tmp_path / "ran"
    (tmp_path / "tokenization_evil.py").write_text(f"open({str(trap)!r}, 'w').close()\n")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": [None, "tokenization_evil.Evil"]}
    settings["tokenizer_class"] = "Evil"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with contextlib.suppress(TokenizerError):
        ModelTokenizer(tmp_path)
    assert not trap.exists()
