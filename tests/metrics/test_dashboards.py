"""The dashboard and the alert rules name metrics, labels and values that a process exports; the rules fire when they
should, and lead to the page that says what to do; the command prints both files.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import sqlalchemy as sa
import yaml

import shardq
from bench.consuming import working
from cluster.cluster import Cluster
from cluster.ports import free_port
from shardq import Batch, Delivery, Engine, Retry, Snooze, outbox
from shardq.metrics.exposition import METRICS
from shardq.outbox import OutboxRelay
from tests.metrics.scraping import got, parsed
from tests.support.waiting import wait_until
from tests.test_pages import ROOT, anchors

SCRIPT = Path(sys.executable).parent / "shardq"

OF_THE_TARGET = {"job", "instance"}
"""Labels that Prometheus adds to what it scrapes."""

_SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "gauge": ("",), "counter": ("",)}

EXPORTED = {
    f"{metric.name}{suffix}": {"engine", *metric.labels, *(("le",) if suffix == "_bucket" else ())}
    for metric in METRICS.values()
    for suffix in _SUFFIXES[metric.kind]
}

Scrape = Mapping[str, Mapping[str, set[str]]]
"""Metric → its labels → the values of each."""


def text_of(name: str) -> str:
    return (files("shardq.metrics") / name).read_text()


RULES: Sequence[dict[str, Any]] = yaml.safe_load(text_of("alerts.yml"))["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads(text_of("grafana.json"))
TARGETS: Sequence[dict[str, Any]] = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]

EXPRESSIONS = [each["expr"].replace("$__rate_interval", "5m") for each in (*TARGETS, *RULES)]


@pytest.fixture(scope="module")
def scrape(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Scrape:
    """What a process exports that does everything, of an engine whose servers have replicas."""
    folder = tmp_path_factory.mktemp("outbox")
    database = sa.create_engine(f"sqlite:///{folder}/app.db")
    outbox.create(database)
    with (
        Engine(cluster.url, name="dashboards", shards=2, far=folder / "far.db") as engine,
        shardq.metrics.serve(engine, "127.0.0.1:0") as server,
        contextlib.closing(OutboxRelay(engine, database)) as relay,
    ):
        worker = engine.worker()

        @worker.on("mail")
        def handle(delivery: Delivery) -> None:
            if delivery.attempt == 1 and delivery.payload != "done":
                raise {"again": Retry(delay=0), "later": Snooze(3600)}[delivery.payload]

        @worker.on("events", batch=10)
        def store(batch: Batch[Any]) -> None: ...

        engine.forward("hooks", to=f"http://127.0.0.1:{free_port()}/")
        engine.start()
        relay.step()
        engine.push_many(shardq.Task(payload, topic="mail") for payload in ("done", "again", "later"))
        engine.push("x", topic="hooks")
        engine.push("x", topic="events")
        engine.push("done", topic="mail", key="k")

        def whole() -> dict[str, dict[str, set[str]]]:
            samples = parsed(got(f"{server.url}/metrics")[1])
            found: dict[str, dict[str, set[str]]] = {}
            for name, labels in samples:
                for label, value in labels:
                    found.setdefault(name, {}).setdefault(label, set()).add(value)
            outcomes = found.get("shardq_handled_total", {}).get("outcome", set())
            return found if set(EXPORTED) <= set(found) and {"done", "retried", "snoozed"} <= outcomes else {}

        with working(worker):
            found = wait_until(whole, "each metric has samples")
    database.dispose()
    return found


def test_there_are_expressions() -> None:
    assert len(TARGETS) > 12
    assert len(RULES) == 10


def test_a_process_exports_the_labels_that_the_page_names(scrape: Scrape) -> None:
    assert {name: set(labels) for name, labels in scrape.items() if name in EXPORTED} == EXPORTED


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_what_is_exported(expression: str, scrape: Scrape) -> None:
    selected = selectors(promql_parser.parse(expression))
    assert selected
    for each in selected:
        labels = labels_of(each, scrape)
        for matcher in each.matchers.matchers:
            assert matcher.name in labels
            if not matcher.value.startswith("$"):
                assert set(matcher.value.split("|")) <= scrape[str(each.name)][matcher.name]
    for names, below in groupings(promql_parser.parse(expression)):
        assert names <= set().union(*(labels_of(each, scrape) for each in selectors(below)))


def test_the_dashboard_lists_engines_by_a_label_that_is_exported(scrape: Scrape) -> None:
    (query,) = (each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["name"] == "engine")
    (found,) = re.findall(r"label_values\((\w+), (\w+)\)", query)
    assert scrape[found[0]][found[1]] == {"dashboards"}


def selectors(expression: promql_parser.Expr) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(expression, visit)
    return found


def labels_of(selector: promql_parser.VectorSelector, scrape: Scrape) -> set[str]:
    """The labels of a metric. ``up`` is Prometheus' own: 1 if a process could be scraped."""
    return OF_THE_TARGET if selector.name == "up" else OF_THE_TARGET | set(scrape[str(selector.name)])


def groupings(expression: promql_parser.Expr) -> list[tuple[set[str], promql_parser.Expr]]:
    """The labels by which is grouped or joined, and the expression that has to have them."""
    found: list[tuple[set[str], promql_parser.Expr]] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            found.append((set(node.modifier.labels), node.expr))
        if isinstance(node, promql_parser.BinaryExpr) and node.modifier and node.modifier.matching:
            found.extend((set(node.modifier.matching.labels), side) for side in (node.lhs, node.rhs))

    promql_parser.walk(expression, visit)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_tells_the_engine_is_not_added_up_over_processes(expression: str) -> None:
    engine_wide = {metric.name for metric in METRICS.values() if metric.scope == "engine"}
    for name in set(re.findall(r"\bshardq_\w+", expression)) & engine_wide:
        assert re.search(rf"max(?: by \([^)]*\) )?\s*\({name}", expression)


@pytest.mark.parametrize("expression", [rule["expr"] for rule in RULES])
def test_no_rule_compares_what_is_drawn_with_what_was_drawn(expression: str) -> None:
    """Two draws differ while nothing happens."""
    assert not ("shardq_tasks" in expression and re.search(r"offset|delta|deriv|rate|increase", expression))


@pytest.mark.parametrize("each", [*RULES, *TARGETS], ids=lambda each: each.get("alert", each.get("expr")))
def test_a_text_names_labels_that_are_left(each: dict[str, Any]) -> None:
    text = each.get("legendFormat") or each["annotations"]["summary"]
    named = set(re.findall(r"\{\{(\w+)\}\}|\$labels\.(\w+)", text))
    kept = [names for names, _ in groupings(promql_parser.parse(each["expr"].replace("$__rate_interval", "5m")))]
    assert {"".join(names) for names in named} <= set().union(*kept)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    path, _, anchor = rule["annotations"]["runbook_url"].partition("/blob/main/")[2].partition("#")
    assert anchor in anchors(ROOT / path)


@pytest.fixture(scope="module")
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("there is no promtool on the PATH; on Debian and Ubuntu: apt-get install prometheus")
    return path


def test_the_rules_are_valid(promtool: str) -> None:
    ran(promtool, "check", "rules", ROOT / "shardq/metrics/alerts.yml")


UP = 'up{job="run", instance="a"}'
SHOP = 'shardq_up{engine="shop", job="run", instance="a"}'
MAIL = 'shardq_up{engine="mail", job="run", instance="b"}'
STUCK = 'shardq_outbox_stuck{engine="shop", table="orders", job="relay", instance="r"}'
OVERDUE = 'shardq_finding{engine="shop", name="overdue", severity="red", job="run", instance="a"}'
ASIDE = OVERDUE.replace("overdue", "outbox_put_aside")
A_TABLE = {"engine": "shop", "table": "orders"}
FIRING: Mapping[str, tuple[Mapping[str, str], Mapping[str, Sequence[Mapping[str, str]]]]] = {
    "every process is gone": (
        {SHOP: "1x10 stale"},
        {"ShardqGone": [{"engine": "shop"}], "ShardqProcessDown": [], "ShardqUnreachable": []},
    ),
    "every process of one engine is gone": (
        {SHOP: "1x10 stale", MAIL: "1x60"},
        {"ShardqGone": [{"engine": "shop"}]},
    ),
    "none was ever there": ({}, {"ShardqGone": [{}]}),
    "a target does not answer, and another does": (
        {SHOP: "1x10 stale", UP: "1x10 0x50", SHOP.replace('"a"', '"c"'): "1x60"},
        {"ShardqGone": [], "ShardqProcessDown": [{"engine": "shop", "job": "run", "instance": "a"}]},
    ),
    "a target of another program does not answer": (
        {SHOP: "1x60", UP.replace('"a"', '"z"'): "0x60"},
        {"ShardqProcessDown": []},
    ),
    "all is well": (
        {SHOP: "1x60", UP: "1x60", STUCK: "0x60", ASIDE: "0x60", OVERDUE: "0x60"},
        {str(rule["alert"]): [] for rule in RULES},
    ),
    "a server is away": ({SHOP: "0x60"}, {"ShardqUnreachable": [{"engine": "shop"}], "ShardqGone": []}),
    "a relay can't move rows": ({STUCK: "0x10 1x50"}, {"ShardqOutboxStuck": [A_TABLE]}),
    "a relay is gone": ({STUCK: "0x10 stale"}, {"ShardqOutboxStuck": [A_TABLE]}),
    "a row is put aside": (
        {ASIDE: "0x10 1x50", STUCK: "0x60"},
        {
            "ShardqNotHealthy": [{"engine": "shop", "name": "outbox_put_aside"}],
            "ShardqStandsStill": [],
            "ShardqOutboxStuck": [],
        },
    ),
    "tasks are overdue": (
        {OVERDUE: "0x10 1x50", OVERDUE.replace('"a"', '"b"'): "0x60"},
        {"ShardqStandsStill": [{"engine": "shop", "name": "overdue"}], "ShardqNotHealthy": []},
    ),
    "a warning": ({OVERDUE.replace("red", "warning"): "1x60"}, {"ShardqStandsStill": [], "ShardqNotHealthy": []}),
}
"""What happened → the series in which it shows, a value each minute; and the labels of each alert that fires."""


@pytest.mark.parametrize("case", FIRING)
def test_an_alert_fires_when_it_should(case: str, promtool: str, tmp_path: Path) -> None:
    series, firing = FIRING[case]
    # without their texts, as promtool would compare those, too
    rules = {rule["alert"]: {key: value for key, value in rule.items() if key != "annotations"} for rule in RULES}
    expected = [
        {
            "eval_time": "40m",
            "alertname": name,
            "exp_alerts": [{"exp_labels": {**labels, **rules[name]["labels"]}} for labels in found],
        }
        for name, found in firing.items()
    ]
    given = [{"series": name, "values": values} for name, values in series.items()]
    group = {"name": "shardq", "rules": list(rules.values())}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}))
    tests = [{"interval": "1m", "input_series": given, "alert_rule_test": expected}]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    ran(promtool, "test", "rules", tmp_path / "tests.yml")


def ran(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("command", "file"), [("dashboard", "grafana.json"), ("alerts", "alerts.yml")])
def test_the_command_prints_them(command: str, file: str) -> None:
    done = subprocess.run([SCRIPT, "metrics", command], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == text_of(file)
