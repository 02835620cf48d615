"""metrics: the commands that print the dashboard and the alert rules which come with the package."""

from __future__ import annotations

from importlib.resources import files

import click

from shardq.cli.options import reporting
from shardq.cli.output import say


@click.group(short_help="Print a Grafana dashboard, or alert rules for Prometheus.")
def metrics() -> None:
    """Print what goes with the metrics of `shardq run --http` and `shardq work --http`."""


@metrics.command(
    short_help="Print the Grafana dashboard.",
    epilog="""\b
example:
  shardq metrics dashboard > shardq.json        (Dashboards, New, Import)""",
)
@reporting
def dashboard() -> None:
    """Print a dashboard for Grafana 9 or newer, in JSON; it asks for the data source."""
    _print("grafana.json")


@metrics.command(
    short_help="Print the alert rules.",
    epilog="""\b
example:
  shardq metrics alerts > /etc/prometheus/rules/shardq.yml""",
)
@reporting
def alerts() -> None:
    """Print a file of rules for Prometheus (rule_files)."""
    _print("alerts.yml")


def _print(name: str) -> None:
    say((files("shardq.metrics") / name).read_text(encoding="utf-8").rstrip())
