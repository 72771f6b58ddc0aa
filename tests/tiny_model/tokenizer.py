# pyright: basic, reportMissingImports=false
"""Talks to files: learns the vocabulary from the training text and writes the tokenizer.

A byte-level BPE whose words stand without the space before them, except a short list
of function words: a word is then the same tokens after a space, after a quote and at
the start of an answer, which is what lets a small model copy. Digits stand alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.tiny_model.dice import Dice
from tests.tiny_model.render import text
from tests.tiny_model.text import training
from tests.tiny_model.words import any_word, listed

SIZE = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]
JOINED = listed("""
the a an is are was were of to and in on at it you for with that this my do does can what how me
your be have has not or as from by he she they we there said went I if when who which will would
please about into no yes one more all had did so but then them his her up down
""")
PATTERN = (
    rf" (?:{'|'.join(JOINED)})(?!\p{{L}})"
    r"|\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
)


def lessons(seed: int, count: int) -> Iterator[str]:
    """Training text without the markers, and loose words so that rare ones have pieces."""
    dice = Dice(seed)
    for sample in islice(training(seed), count):
        shown = text(sample)
        for marker in SPECIAL + MARKERS:
            shown = shown.replace(marker, "\n")
        yield shown
        yield " ".join(any_word(dice) for _ in range(4))


def made(seed: int = 11, count: int = 30_000) -> Tokenizer:
    """The trained tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL + MARKERS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,
    )
    tokenizer.train_from_iterator(lessons(seed, count), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    return tokenizer


def settings() -> dict[str, object]:
    """`tokenizer_config.json`; the chat template lies beside it in its own file."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }


def main() -> None:
    """Write tokenizer.json and tokenizer_config.json into a folder."""
    parser = argparse.ArgumentParser(description="Make the tokenizer of the tiny model.")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parents[2] / "conf" / "tiny"
    )
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    made().save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps(settings(), indent=2) + "\n")


if __name__ == "__main__":
    main()
