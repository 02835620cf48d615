"""metrics: the commands that print the Grafana dashboard and the alert rules which come with the package."""

from __future__ import annotations

from importlib.resources import files

import click

from shardq.cli.options import command, reporting
from shardq.cli.output import say


@click.group(short_help="Print a Grafana dashboard, or alert rules for Prometheus.")
def metrics() -> None:
    """Print a Grafana dashboard, or alert rules, for the metrics of `shardq run --http` and `shardq work --http`."""


@command("Print the Grafana dashboard.", name="dashboard", of=metrics)
@reporting
def grafana() -> None:
    """Print a dashboard for Grafana 9 or newer, in JSON. Grafana asks you for the data source.

    example:
      shardq metrics dashboard > shardq.json        (Dashboards, New, Import)
    """
    _print("grafana.json")


@command("Print the alert rules.", of=metrics)
@reporting
def alerts() -> None:
    """Print a file of alert rules for Prometheus (rule_files).

    example:
      shardq metrics alerts > /etc/prometheus/rules/shardq.yml
    """
    _print("alerts.yml")


def _print(name: str) -> None:
    say((files("shardq.metrics") / name).read_text(encoding="utf-8").rstrip())
