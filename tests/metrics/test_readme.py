"""The table of the page is the list of what is exported."""

from __future__ import annotations

import re

from shardq.metrics.exposition import METRICS
from tests.support.pages import page


def test_the_table_has_every_metric() -> None:
    rows = re.findall(r"^\| `(shardq_\w+)` \| (.*) \|$", page("metrics"), re.MULTILINE)
    assert rows == [
        (each.name, f"{each.kind} | {each.scope} | {', '.join(each.labels)} | {each.help}") for each in METRICS.values()
    ]
