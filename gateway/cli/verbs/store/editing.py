"""Talks to an editor and the disk: edits a model card until it is valid.

The user's text stays in a file of its own until the card is written.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import typer

from bus.models.cards import BadCard, read_card
from gateway.cli.output.errors import USAGE, CliError
from gateway.cli.output.own_editor import asker, open_editor
from gateway.cli.output.terminal import Output

STDIN = "-"


def read_text(source: str, remedy: str = "") -> str:
    """Return the text of a file, or of standard input for `-`. Raises CliError."""
    try:
        data = sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
        return data.decode()
    except UnicodeDecodeError as error:
        raise CliError(f"{source} is not UTF-8 text: {error}", code=USAGE) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise CliError(f"cannot read {source}: {why}", remedy=remedy, code=USAGE) from error


@contextlib.contextmanager
def edit_card(
    text: str, model: str, output: Output, again: Callable[[str], bool] | None = None
) -> Generator[str]:
    """Yield the model card after the user has edited it. If the block fails, the text stays in its
    file, which the error names. `again` asks the user whether to edit a rejected card again. Raises
    CliError."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-card-"))
    file = folder / f"{model.replace('/', '--')}.toml"
    asks = again or asker(output)
    try:
        file.write_text(text)
        yield _until_valid(file, asks)
    except (KeyboardInterrupt, typer.Abort):
        output.warn(f"nothing was written; your text is in {file}")
        raise
    except CliError as problem:
        if file.read_text(errors="replace") == text:
            shutil.rmtree(folder)
            raise
        where = (
            f"your text is in {file}; write it with `shoal card add {model} --from {file} "
            "--replace`"
        )
        remedy = f"{problem.remedy}; {where}" if problem.remedy else where
        raise CliError(
            problem.message, remedy=remedy, details=problem.details, code=problem.code
        ) from problem
    shutil.rmtree(folder)


def _until_valid(file: Path, again: Callable[[str], bool]) -> str:
    while True:
        open_editor(file, "shoal card edit MODEL")
        data = file.read_bytes()
        try:
            read_card(data)
        except BadCard as error:
            text = f"invalid card: {error}"
            if not again(text):
                raise CliError(text, remedy="nothing was written", code=USAGE) from error
        else:
            return data.decode()
