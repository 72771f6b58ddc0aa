"""The lines to copy after a start work as printed: for the addresses and keys of that node."""

from __future__ import annotations

import shlex
from pathlib import Path

from conf.settings import load_settings
from gateway.cli.output.next_steps import next_steps


def test_over_https_the_line_for_curl_trusts_the_nodes_certificate(tmp_path: Path) -> None:
    flags = {f"http_tls_{one}": str(tmp_path / f"my {one}.pem") for one in ("cert", "key")}
    _, asked, _ = next_steps("shoal", load_settings(home=tmp_path, flags=flags), home=tmp_path)
    words = shlex.split(asked)
    assert words[:3] == ["curl", "--cacert", flags["http_tls_cert"]]
    assert words[3].startswith("https://127.0.0.1:")


def test_over_plain_http_it_has_no_certificate(tmp_path: Path) -> None:
    _, asked, _ = next_steps("shoal", load_settings(home=tmp_path), home=tmp_path)
    assert shlex.split(asked)[1].startswith("http://127.0.0.1:")
