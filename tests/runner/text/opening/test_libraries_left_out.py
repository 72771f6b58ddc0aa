"""A runner of a plain model imports neither transformers nor huggingface_hub; who needs them has
them, and mlx-lm with them."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from runner.library import own_limit

ROOT = Path(__file__).resolve().parents[4]
BEFORE_ITS_SPEC = """
import sys
import runner.__main__
taken = {"mlx", "mlx.core", "mlx_lm", "transformers", "tokenizers"} & set(sys.modules)
assert not taken, taken
"""
SERVED = """
import sys
from pathlib import Path

import pytest

from runner.library import own_limit
import runner.__main__
from runner.mlx.engine import load_engine
from runner.text import ModelTokenizer, Text, import_libraries
import_libraries()
folder = Path("conf/tiny")
engine = load_engine(folder, memory_limit_bytes=1 << 30)
text = Text(ModelTokenizer(folder))
words = [{"role": "user", "content": "Hello"}]
prompt = text._tokenizer.render(words, [], thinking=False, continue_final=False)
assert text._tokenizer.encode(prompt)
taken = {"transformers", "huggingface_hub", "httpx", "torch", "sentencepiece"} & set(sys.modules)
assert not taken, taken
"""
NEEDED = """
import sys
import runner.library
assert "transformers" not in sys.modules, "mlx-lm takes other names than runner.library.STAND_INS"
import mlx_lm
from mlx_lm import tokenizer_utils
stood_in = tokenizer_utils.TokenizerWrapper
tokenizer = mlx_lm.utils.load_tokenizer("conf/tiny")
import huggingface_hub, transformers
program = sys.modules["mlx_lm.generate"]
assert tokenizer_utils.AutoTokenizer is transformers.AutoTokenizer
assert type(tokenizer) is program.TokenizerWrapper is tokenizer_utils.TokenizerWrapper
assert program.TokenizerWrapper is not stood_in
assert program.PreTrainedTokenizer is transformers.PreTrainedTokenizer
assert issubclass(tokenizer_utils.NewlineTokenizer, transformers.PreTrainedTokenizerFast)
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name
assert tokenizer_class_from_name("NewlineTokenizer") is tokenizer_utils.NewlineTokenizer
try:
    sys.modules["mlx_lm.utils"].snapshot_download("no such/name of a model")
except huggingface_hub.errors.HFValidationError:
    sys.exit(0)
"""


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_runner_imports_neither_mlx_nor_tokenizers_before_it_has_a_spec() -> None:
    run(BEFORE_ITS_SPEC)


def test_a_runner_of_the_bundled_model_has_neither_library() -> None:
    run(SERVED)


def test_a_name_that_was_stood_in_for_is_the_librarys_own_when_it_is_needed() -> None:
    run(NEEDED)


def test_a_low_limit_on_open_files_does_not_prevent_the_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_to: list[tuple[int, int]] = []

    def refuse_more(_which: int, limits: tuple[int, int]) -> None:
        if limits[1] > 1024:
            raise ValueError("not allowed to raise maximum limit")
        set_to.append(limits)

    monkeypatch.setattr(resource, "setrlimit", refuse_more)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, 1024))
    with own_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 4096))
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
    assert set_to == [(1024, 1024), (512, 1024)]
    assert resource.setrlimit is refuse_more
