"""Judges what the engine computed: greedy tokens, sampled tokens, and reused KV.

Pure: documents of `runner.mlx.selftest` in, lines out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.cli.selftest.verdicts.agreement import (
    TokenAgreement,
    agreement,
    agreement_words,
    behind_by,
    gap_of,
)
from gateway.cli.selftest.verdicts.fit import ChiSquareFit, expected_of, fit_of
from gateway.cli.selftest.verdicts.line import Figure, SelftestLine, judged, not_applicable

REPORT = (
    "run `shoal selftest --save FILE` and report the failed check with that file, because answers "
    "on this machine may be wrong"
)
FEWER_BITS: Mapping[str, float] = {"8bit": 0.5, "4bit": 2.0}
"""Limits for KV in fewer bits, in nats. The first token chosen with such KV may be this much less
likely than the likeliest token, by the log-probabilities of KV in full precision."""


def greedy_lines(document: Mapping[str, Any]) -> Iterator[SelftestLine]:
    """Compare the engine's greedy tokens with those of plain mlx-lm, for rows that run alone and
    for rows in a batch."""
    steps, gap = document["plain"]["rows"], gap_of(document["precision"])
    for part in ("alone", "batch"):
        name = ("parity", part)
        if document[part] is None:
            yield not_applicable(name, "this model runs one row at a time")
            continue
        compared = agreement(zip(document[part], steps, strict=True), gap)
        text = f"{agreement_words(compared, gap)}; mlx-lm {document['plain']['version']}"
        figures = {**_figures(compared, gap), "precision": document["precision"]}
        yield judged(name, compared.is_good, text, REPORT, figures)


def sampling_lines(document: Mapping[str, Any]) -> Iterator[SelftestLine]:
    """Check that a seed always gives the same tokens, that different seeds give different texts,
    and that the frequencies of sampled tokens fit the model's distribution."""
    first, second = document["twice"]
    different = len({tuple(row) for row in first})
    is_good = first == second and different == len(first)
    repeated = "equal" if first == second else "DIFFERENT"
    text = f"{len(first)} seeds, each used twice: {repeated} tokens; {different} different texts"
    figures: dict[str, Figure] = {"seeds": len(first), "different": different}
    yield judged(("sampling", "seeds"), is_good, text, REPORT, figures)
    fits: dict[str, ChiSquareFit] = {}
    for entry in document["draws"]:
        sampling = entry["sampling"]
        expected = expected_of(document["next"], sampling)
        name = ", ".join(f"{field} {value:g}" for field, value in sampling.items())
        fits[name] = fit_of(expected, {int(token): count for token, count in entry["counts"]})
    for name, fit in fits.items():
        excluded = f", {fit.impossible} draws of excluded tokens" if fit.impossible else ""
        text = (
            f"{name}: chi-square {fit.chi_square:.1f} over {fit.bins} bins, "
            f"limit {fit.limit:.1f}{excluded}"
        )
        figures = {
            "draws": fit.draws,
            "bins": fit.bins,
            "chi_square": round(fit.chi_square, 2),
            "limit": round(fit.limit, 2),
            "excluded": fit.impossible,
        }
        yield judged(("sampling", "frequencies"), fit.is_good, text, REPORT, figures)


def kv_lines(document: Mapping[str, Any]) -> Iterator[SelftestLine]:
    """Check for each format of the KV cache that a reused prefix does not change the answer."""
    kinds = document["kinds"]
    for kind, measured in kinds.items():
        name = ("kv", kind)
        if kind in FEWER_BITS and measured["held"] == "full":
            yield not_applicable(name, "the model keeps its KV in full precision here")
            continue
        yield _kv_line(name, measured, kinds["full"]["fresh"])


def _kv_line(name: tuple[str, str], measured: Mapping[str, Any], full: list[Any]) -> SelftestLine:
    gap, fresh = gap_of(measured["precision"]), measured["fresh"]
    reused = measured["reused"]
    compared = agreement([(row["tokens"], fresh) for row in reused], gap)
    off = max((_largest_error(row, fresh) for row in reused), default=0.0)
    faults = [] if compared.is_good and off <= gap else ["a reused prefix changes the answer"]
    lengths = ", ".join(str(row["length"]) for row in reused)
    how = "cut to" if measured["trims"] else "used whole at"
    parts = [
        f"reused prefix {how} {lengths} tokens: {agreement_words(compared, gap)}",
        f"log-probabilities within {off:.2g} nats of a fresh prefill (limit {gap:g})",
    ]
    for other, steps in (("batch", measured["batch"]), ("plain", measured.get("plain"))):
        if steps is None:
            continue
        tokens = steps if other == "batch" else [int(step[0][0]) for step in fresh]
        against = fresh if other == "batch" else steps
        if not agreement([(tokens, against)], gap).is_good:
            who = "a batch" if other == "batch" else "plain mlx-lm"
            faults.append(f"{who} gives different tokens")
    figures: dict[str, Figure] = {
        **_figures(compared, gap),
        "held": measured["held"],
        "largest_error_nats": off,
        "bytes_per_token": measured["bytes_per_token"],
    }
    if (limit := FEWER_BITS.get(name[1])) is not None:
        changed = behind_by(int(fresh[0][0][0]), full[0])
        figures["first_token_nats"] = round(changed, 4)
        parts.append(
            f"in full precision, the first token is {changed:.2g} nats behind the likeliest one "
            f"(limit {limit:g})"
        )
        if changed > limit:
            faults.append("fewer bits change the first token too much")
    text = "; ".join([*faults, *parts])
    return judged(name, not faults, text, REPORT, figures)


def _largest_error(row: Mapping[str, Any], fresh: list[Any]) -> float:
    """Return the largest difference of a log-probability, up to the first different token."""
    errors = [0.0]
    for token, logprob, step in zip(row["tokens"], row["logprobs"], fresh, strict=False):
        if token != step[0][0]:
            break
        errors.append(abs(logprob - step[0][1]))
    return max(errors)


def _figures(compared: TokenAgreement, gap: float) -> dict[str, Figure]:
    return {
        "rows": compared.rows,
        "tokens": compared.compared,
        "equal": compared.equal,
        "near_ties": len(compared.ties),
        "wrong_rows": len(compared.wrong),
        "gap_limit_nats": gap,
    }
