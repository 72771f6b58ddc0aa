"""Compares the peak memory of a load and a long prompt with shoal's estimate (the *bill*).

Pure. The bill is the least memory for which shoal places a model: its weights with an allowance, KV
for the guaranteed context, and a fixed part. The peak must not exceed it, or a load could fail. It
must not be less than half of it either, or models that fit would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.cli.selftest.verdicts.line import SelftestLine, judged

LEAST_SHARE = 0.5
RESERVE_BYTES = 1 << 30
"""Free memory that must remain in addition to the bill; otherwise the check is not run."""
GOOD_KV = (0.8, 1.25)


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill of a model and its measured memory, in bytes. `kv_bytes` is the bill's KV for
    `context_tokens`; `device_bytes` is MLX's peak, `process_bytes` the largest seen memory of the
    process. `kv_measured_bytes` was in use for `kv_tokens` tokens; 0: the prompt was not read."""

    need_bytes: int
    weights_bytes: int
    kv_bytes: int
    context_tokens: int
    device_bytes: int
    process_bytes: int
    loaded_bytes: int
    kv_measured_bytes: int
    kv_tokens: int

    @property
    def peak_bytes(self) -> int:
        """Return the larger of both peaks. If the GPU has memory of its own, the process has little
        memory. Elsewhere the memory of the process includes MLX's memory."""
        return max(self.device_bytes, self.process_bytes)


def bill_lines(bill: Bill) -> Iterator[SelftestLine]:
    """Compare the peak with the whole bill, and the memory of weights and KV with their parts of
    the bill."""
    share = bill.peak_bytes / max(1, bill.need_bytes)
    text = (
        f"the peak was {_mb(bill.peak_bytes)} (MLX {_mb(bill.device_bytes)}, process "
        f"{_mb(bill.process_bytes)}), {share:.0%} of the estimated {_mb(bill.need_bytes)} "
        f"(rule: {LEAST_SHARE:.0%} to 100%)"
    )
    advice = (
        "run `shoal selftest --save FILE` and report the failed check with that file; keep "
        "memory free with `memory_bytes` in shoal.toml until this is fixed"
    )
    figures = {
        "peak_bytes": bill.peak_bytes,
        "device_peak_bytes": bill.device_bytes,
        "process_peak_bytes": bill.process_bytes,
        "bill_bytes": bill.need_bytes,
        "share": round(share, 4),
    }
    is_good = LEAST_SHARE <= share <= 1.0
    yield judged(("memory", "peak"), is_good, text, advice, figures)
    if not bill.kv_tokens:
        return
    ratio = bill.loaded_bytes / max(1, bill.weights_bytes)
    text = (
        f"{_mb(bill.loaded_bytes)} loaded, {_mb(bill.weights_bytes)} estimated "
        "(rule: they differ by at most 2%)"
    )
    figures = {"loaded_bytes": bill.loaded_bytes, "bill_bytes": bill.weights_bytes}
    yield judged(("memory", "weights"), abs(ratio - 1.0) <= 0.02, text, advice, figures)
    billed = bill.kv_bytes / max(1, bill.context_tokens)
    measured = bill.kv_measured_bytes / max(1, bill.kv_tokens)
    low, high = GOOD_KV
    text = (
        f"{measured:,.0f} bytes a token after {bill.kv_tokens:,} tokens, {billed:,.0f} estimated "
        f"(rule: {low:g} to {high:g} times the estimate)"
    )
    figures = {"kv_bytes_per_token": round(measured), "bill_bytes_per_token": round(billed)}
    is_good = low * billed <= measured <= high * billed
    yield judged(("memory", "KV"), is_good, text, advice, figures)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
