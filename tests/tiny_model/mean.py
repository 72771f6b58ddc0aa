# pyright: basic, reportMissingImports=false
"""Talks to files: writes the weighted mean of exported models, which began as one.

Runs that take up the same weights again forget different things; their mean keeps more of all of
them than any has (Wortsman et al., Model soups, 2022).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def mean(models: list[tuple[Path, float]], out: Path) -> None:
    """Write the mean of `models` into the folder `out`, each as heavy as its number says."""
    total = sum(weight for _, weight in models)
    summed: dict[str, torch.Tensor] = {}
    for folder, weight in models:
        for name, tensor in load_file(folder / "model.safetensors").items():
            part = tensor.float() * (weight / total)
            summed[name] = summed[name] + part if name in summed else part
    halves = {name: tensor.to(torch.float16).contiguous() for name, tensor in summed.items()}
    save_file(halves, out / "model.safetensors", metadata={"format": "pt"})


def _weighted(text: str) -> tuple[Path, float]:
    folder, _, weight = text.rpartition(":")
    return Path(folder), float(weight)


def main() -> None:
    """Read the command line and write the mean."""
    parser = argparse.ArgumentParser(description="Average exported models.")
    parser.add_argument("models", nargs="+", type=_weighted, metavar="FOLDER:WEIGHT")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    mean(given.models, given.out)


if __name__ == "__main__":
    main()
