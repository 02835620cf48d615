"""The costs in the package are those of the report."""

from __future__ import annotations

from bench.reporting import inputs
from bench.reporting.__main__ import FOLDER
from bench.reporting.costs import costs_of
from shardq.features.planning import measured


def test_plans_go_by_the_figures_of_the_report() -> None:
    found = inputs.read(FOLDER)
    assert found.results
    assert found.nodes
    assert measured() == costs_of(found.results, found.nodes), "run `make report`: the figures were measured anew"
