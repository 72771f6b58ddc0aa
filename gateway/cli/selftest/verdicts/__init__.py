"""Judges the measurements of `shoal selftest`.

Pure: documents and readings in, lines out. Each rule states its tolerance in the line's text.
"""

from gateway.cli.selftest.verdicts.agreement import (
    TokenAgreement,
    agreement,
    agreement_words,
    gap_of,
)
from gateway.cli.selftest.verdicts.bill import RESERVE_BYTES, Bill, bill_lines
from gateway.cli.selftest.verdicts.engine import REPORT, greedy_lines, kv_lines, sampling_lines
from gateway.cli.selftest.verdicts.fit import ChiSquareFit, expected_of, fit_of
from gateway.cli.selftest.verdicts.line import Figure, Outcome, SelftestLine, judged, not_applicable
from gateway.cli.selftest.verdicts.sensors import SensorFacts, sensor_lines

__all__ = [
    "REPORT",
    "RESERVE_BYTES",
    "Bill",
    "ChiSquareFit",
    "Figure",
    "Outcome",
    "SelftestLine",
    "SensorFacts",
    "TokenAgreement",
    "agreement",
    "agreement_words",
    "bill_lines",
    "expected_of",
    "fit_of",
    "gap_of",
    "greedy_lines",
    "judged",
    "kv_lines",
    "not_applicable",
    "sampling_lines",
    "sensor_lines",
]
