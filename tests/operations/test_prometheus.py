"""The dashboard and the alert rules: each expression on what a real node exported, and each alert
on figures that are just too high, and just not.

`scrape.prom` was recorded by `tests/operations/record.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.harness.missing import missing
from tests.harness.nodes import ROOT
from tests.harness.promtool import NoPromtool, promtool

PAGES = ROOT / "docs" / "operations"
RULES = PAGES / "alerts.yml"
DASHBOARD = cast(dict[str, Any], json.loads((PAGES / "grafana.json").read_text()))
TEXT = Path(__file__).with_name("scrape.prom").read_text()
SAMPLE = re.compile(r"^(shoal_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NAME = re.compile(r"\bshoal_\w+")
OWN_LABELS = {"instance", "job"}
"""Those that Prometheus gives to what it scrapes."""
SCRAPED = {"instance": "reef:52415", "job": "shoal"}
STEPS = 80
"""So many quarters of a minute each series lasts: 20 minutes."""


@dataclass(frozen=True)
class Sample:
    """One line of a scrape."""

    name: str
    labels: Mapping[str, str]
    value: float

    def series(self, values: str = "") -> dict[str, str]:
        """Return it as `promtool` takes a series: as if it had grown by its value each minute
        quarter where it counts, and else had stayed."""
        told = ",".join(f'{key}="{value}"' for key, value in {**self.labels, **SCRAPED}.items())
        step = f"{self.value:f}" if COUNTS.search(self.name) else "0"
        grown = f"{self.value:f}+{step}x{STEPS}"
        return {"series": f"{self.name}{{{told}}}", "values": values or grown}


COUNTS = re.compile(r"_(total|bucket|sum|count)$")
SAMPLES = [
    Sample(name, dict(LABEL.findall(labels or "")), float(value))
    for name, labels, value in SAMPLE.findall(TEXT)
]
LABELS: dict[str, set[str]] = {}
for _one in SAMPLES:
    LABELS.setdefault(_one.name, set()).update(_one.labels)


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alert rules by name."""
    read = yaml.safe_load(RULES.read_text())
    return {rule["alert"]: rule for group in read["groups"] for rule in group["rules"]}


def shown() -> list[tuple[str, str]]:
    """Return each panel's title and expression, with Grafana's variables as they are by default."""
    return [
        (
            panel["title"],
            target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*"),
        )
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


EXPRESSIONS = [*shown(), *((name, rule["expr"]) for name, rule in alerts().items())]


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_a_node_exports(
    name: str, expression: str
) -> None:
    names = set(NAME.findall(expression))
    assert names <= LABELS.keys(), f"{name}: no node exports {names - LABELS.keys()}"
    there = OWN_LABELS.union({"le"}, *(LABELS[one] for one in names))
    grouped = re.findall(r"\b(?:by|on|without|ignoring) \(([\w, ]+)\)", expression)
    used = {label.strip() for group in grouped for label in group.split(",")}
    used |= set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', expression))
    assert used <= there, f"{name}: {used - there} are no labels of {names}"


def test_an_alerts_words_name_labels_that_it_keeps() -> None:
    for name, rule in alerts().items():
        metrics = NAME.findall(rule["expr"])
        kept = re.search(r"\bby \(([\w, ]+)\)", rule["expr"])
        there = OWN_LABELS.union(*(LABELS[one] for one in metrics))
        if kept:
            there = {label.strip() for label in kept[1].split(",")}
        words = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", words)) <= there, name


def test_the_dashboard_can_be_imported() -> None:
    panels = DASHBOARD["panels"]
    assert DASHBOARD["uid"] == "shoal" and "id" not in DASHBOARD
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels), "panels lie upon each other"
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
    assert used <= variables | {"__rate_interval"}, used
    for panel in panels:
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_page_lists_every_metric_and_the_scrape_is_of_the_present_code() -> None:
    kinds = dict(re.findall(r"^# TYPE (shoal_\w+) (\w+)$", TEXT, re.MULTILINE))
    pages = json.loads((ROOT / "tests/recorded/data/pages.json").read_text())["/metrics"]
    now = dict(line.split()[2:] for line in pages["samples"] if line.startswith("# TYPE shoal_"))
    assert kinds == now, "record anew: python -m tests.operations.record"
    rows = re.findall(
        r"^\| `(shoal_\w+)` \| (\w+) \| (.*?) \|",
        (PAGES / "monitoring.md").read_text(),
        re.MULTILINE,
    )
    assert {name: kind for name, kind, _ in rows} == kinds
    for name, kind, labels in rows:
        own = LABELS.get(name + "_count" if kind == "histogram" else name)
        if own is not None:
            assert set(re.findall(r"`(\w+)`", labels)) == own, name


# --- by Prometheus's own checker ---------------------------------------------------------------


@pytest.fixture(scope="module")
def checker() -> Path:
    try:
        return promtool()
    except NoPromtool as why:
        missing(why)


def run(checker: Path, *words: str | Path) -> None:
    done = subprocess.run(
        [checker, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


def test_prometheus_takes_the_rules(checker: Path) -> None:
    run(checker, "check", "rules", RULES)


def test_prometheus_takes_the_settings_that_the_page_prints(checker: Path, tmp_path: Path) -> None:
    page = (PAGES / "monitoring.md").read_text()
    printed = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(printed) == 1
    (tmp_path / "prometheus.yml").write_text(printed[0])
    (tmp_path / RULES.name).write_text(RULES.read_text())
    run(checker, "check", "config", tmp_path / "prometheus.yml")


def test_each_expression_gives_a_number_on_what_a_node_exported(
    checker: Path, tmp_path: Path
) -> None:
    tests = {
        "rule_files": [],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [one.series() for one in SAMPLES],
                "promql_expr_test": [
                    {
                        "expr": f"count(({expr}) > -Inf) > bool 0",
                        "eval_time": "15m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                    for _, expr in shown()
                ],
            }
        ],
    }
    file = tmp_path / "expressions.yml"
    file.write_text(json.dumps(tests))
    run(checker, "test", "rules", file)


def up(value: int) -> dict[str, str]:
    told = ",".join(f'{key}="{value}"' for key, value in SCRAPED.items())
    return {"series": f"up{{{told}}}", "values": f"{value}+0x{STEPS}"}


def of(name: str, values: str, **labels: str) -> dict[str, str]:
    """Return a series of this name that a node exported, with other values."""
    found = next(one for one in SAMPLES if one.name == name)
    return Sample(name, {**found.labels, **labels}, 0.0).series(values)


def first_token(slow: int) -> list[dict[str, str]]:
    """Return a histogram of which `slow` in 1,000 are over 20 s."""
    name = "shoal_time_to_first_token_seconds_bucket"
    bounds = [one.labels["le"] for one in SAMPLES if one.name == name]
    return [
        of(name, f"0+{1000 - slow if float(le) <= 20.0 else 1000}x{STEPS}", le=le) for le in bounds
    ]


def outcomes(failed: int) -> list[dict[str, str]]:
    """Return requests of which `failed` in 1,000 fail, and many a client left."""
    rates = {"finished": 500 - failed, "client_closed": 500, "runner_lost": failed}
    return [
        of("shoal_requests_total", f"0+{rate}x{STEPS}", outcome=outcome)
        for outcome, rate in rates.items()
    ]


LIMIT = "shoal_runner_memory_limit_bytes"
MEMORY = "shoal_runner_memory_bytes"
STAYS = f"+0x{STEPS}"
CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "ShoalNodeDown": ([up(0)], [up(1)]),
    "ShoalRequestsFail": (outcomes(60), outcomes(40)),
    "ShoalServerErrors": (
        [of("shoal_http_errors_total", f"0+2x{STEPS}", status="503")],
        [of("shoal_http_errors_total", f"0+1x{STEPS}", status="503"),
         of("shoal_http_errors_total", f"0+90x{STEPS}", status="404")],
    ),
    "ShoalFirstTokenSlow": (first_token(20), first_token(5)),
    "ShoalQueueGrows": (
        [of("shoal_num_requests_waiting", f"0+1x{STEPS}")],
        [of("shoal_num_requests_waiting", f"40{STAYS}")],
    ),
    "ShoalKvNearlyFull": (
        [of("shoal_kv_cache_usage_ratio", f"0.96{STAYS}")],
        [of("shoal_kv_cache_usage_ratio", f"0.94{STAYS}")],
    ),
    "ShoalMemoryNearPromise": (
        [of(MEMORY, f"98{STAYS}"), of(LIMIT, f"100{STAYS}")],
        [of(MEMORY, f"96{STAYS}"), of(LIMIT, f"100{STAYS}")],
    ),
    "ShoalAnswersCut": (
        [of("shoal_num_memory_ends_total", "0x50 1x30")],
        [of("shoal_num_memory_ends_total", f"7{STAYS}")],
    ),
    "ShoalLoopStandsStill": (
        [of("shoal_loop_stall_seconds_sum", f"0+3.3x{STEPS}")],
        [of("shoal_loop_stall_seconds_sum", f"0+2.7x{STEPS}")],
    ),
    "ShoalAcceleratorHot": (
        [of("shoal_accelerator_temperature_celsius", f"91{STAYS}")],
        [of("shoal_accelerator_temperature_celsius", f"89{STAYS}")],
    ),
}  # fmt: skip


def alert_test(name: str, series: list[dict[str, str]], fires: bool) -> dict[str, Any]:
    return {
        "interval": "15s",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": "17m",
                "exp_samples": [{"labels": "{}", "value": int(fires)}],
            }
        ],
    }


def test_every_alert_has_its_figures() -> None:
    assert CASES.keys() == alerts().keys()


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_above_its_threshold_and_not_below(
    checker: Path, tmp_path: Path, name: str
) -> None:
    too_high, just_not = CASES[name]
    file = tmp_path / "alert.yml"
    told = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "15s",
        "tests": [alert_test(name, too_high, True), alert_test(name, just_not, False)],
    }
    file.write_text(json.dumps(told))
    run(checker, "test", "rules", file)
