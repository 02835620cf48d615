"""The dashboard and the alert rules name metrics and labels that are exported; the command prints both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from shardq.metrics.exposition import METRICS

SCRIPT = Path(sys.executable).parent / "shardq"

_SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "gauge": ("",), "counter": ("",)}

EXPORTED = {
    f"{metric.name}{suffix}": {"engine", *metric.labels, *(("le",) if suffix == "_bucket" else ())}
    for metric in METRICS.values()
    for suffix in _SUFFIXES[metric.kind]
}


def text_of(name: str) -> str:
    return (files("shardq.metrics") / name).read_text()


def of_the_dashboard() -> Iterator[str]:
    dashboard: dict[str, Any] = json.loads(text_of("grafana.json"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def of_the_alerts() -> Iterator[str]:
    """Without a reader of YAML: an expression stands on its line, or on those that are indented below."""
    found = re.findall(r"^        expr: (?:>-\n((?:          .*\n)+)|(.*)\n)", text_of("alerts.yml"), re.MULTILINE)
    yield from ("".join(each).strip() for each in found)


EXPRESSIONS = [*of_the_dashboard(), *of_the_alerts()]


def test_there_are_expressions() -> None:
    assert len(list(of_the_dashboard())) > 12
    assert len(list(of_the_alerts())) == text_of("alerts.yml").count("- alert:") > 6


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_what_is_exported(expression: str) -> None:
    names = re.findall(r"\bshardq_\w+", expression)
    assert names
    labels: set[str] = set()
    for name in names:
        assert name in EXPORTED
        labels |= EXPORTED[name]
    for selected in re.findall(r"\{([^}]*)\}", expression):
        assert {label for label, _ in re.findall(r'(\w+)(=|!=|=~)"', selected)} <= labels
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_tells_the_engine_is_not_added_up_over_processes(expression: str) -> None:
    engine_wide = {metric.name for metric in METRICS.values() if metric.scope == "engine"}
    for name in set(re.findall(r"\bshardq_\w+", expression)) & engine_wide:
        assert re.search(rf"max(?: by \([^)]*\) )?\s*\({name}", expression)


@pytest.mark.parametrize("expression", list(of_the_alerts()))
def test_no_rule_compares_what_is_drawn_with_what_was_drawn(expression: str) -> None:
    """Two draws differ while nothing happens."""
    assert not ("shardq_tasks" in expression and re.search(r"offset|delta|deriv|rate|increase", expression))


@pytest.mark.parametrize(("command", "file"), [("dashboard", "grafana.json"), ("alerts", "alerts.yml")])
def test_the_command_prints_them(command: str, file: str) -> None:
    done = subprocess.run([SCRIPT, "metrics", command], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == text_of(file)
