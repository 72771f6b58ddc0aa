"""The document of a self-test has no personal data, whatever the messages said."""

from __future__ import annotations

import json

import pytest

from gateway.cli.selftest.report import document, is_passed, scrubbed
from gateway.cli.selftest.verdicts import SelftestLine

SECRETS = {
    "annes-macbook.local": "<host>",
    "annes-macbook": "<host>",
    "anne": "<user>",
    "/Users/anne": "<path>",
}
PERSONAL = (
    "annes-macbook", "anne", "/Users", "192.168.1.7", "fe80::1", "a4:83:e7:00:11:22", "C02ZX1",
    "someone@example.org", "n0123456789", "inst-0123abcd", "GPU-1234", "/models/secret", "8080",
)  # fmt: skip
MESSAGES = (
    "cannot open /Users/anne/Library/shoal/models/secret/model.safetensors: no such file",
    "node annes-macbook.local (n0123456789) at http://192.168.1.7:8080/state does not answer",
    "ANNE at fe80::1%en0, a4:83:e7:00:11:22, 192.168.1.7",
    "GPU-12345678-1234-1234-1234-123456789abc of inst-0123abcd failed",
    "Serial Number: C02ZX1ABCD, someone@example.org",
    "~/models/secret and '/private/var/folders/x/shoal-selftest-a/node-1' are not folders",
)


@pytest.mark.parametrize("message", MESSAGES)
def test_no_message_brings_personal_data_into_the_document(message: str) -> None:
    line = SelftestLine("node", "run", "failed", message, {"text": message, "n": 5}, message)
    text = json.dumps(document([line], 3.21, SECRETS))
    for secret in PERSONAL:
        assert secret.casefold() not in text.casefold(), text


def test_figures_versions_and_names_of_hardware_stay() -> None:
    text = "Darwin 26.2 arm64, python 3.13.1, mlx 0.32.4 on gpu Apple M3 Ultra; 12.5 of 24.0 GB"
    assert scrubbed(text, SECRETS) == text
    rule = "8 rows, 191 of 192 tokens equal (rule: equal, or within 0.02 nats); 10:41 and 1/2"
    assert scrubbed(rule, SECRETS) == rule


def test_a_secret_inside_another_word_is_no_secret() -> None:
    assert scrubbed("channel and annex of anne", SECRETS) == "channel and annex of <user>"


def test_only_failed_lines_make_the_result_red() -> None:
    passed = SelftestLine("kv", "full", "passed", "")
    skipped = SelftestLine("kv", "4bit", "not applicable", "")
    failed = SelftestLine("kv", "8bit", "failed", "", {}, "report it")
    assert is_passed([passed, skipped]) and not is_passed([passed, failed])
    found = document([passed, failed], 1.0, {})
    assert found["passed"] is False and [row["part"] for row in found["lines"]] == ["full", "8bit"]
