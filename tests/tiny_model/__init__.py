"""How the bundled model is made: text, tokenizer, training, evaluation. Run by hand."""

from pathlib import Path

BUNDLED = Path(__file__).resolve().parents[2] / "conf" / "tiny"
"""The folder of the bundled model's files."""
