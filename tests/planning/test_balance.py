"""The share of the fullest master, by the layout alone."""

from __future__ import annotations

import pytest

from shardq.features.planning import imbalance


def test_the_fullest_master_has_what_the_layout_gives_it() -> None:
    assert imbalance(1, 48) == 1
    assert imbalance(16, 48) == pytest.approx(1, abs=0.01)  # three shards on each
    assert imbalance(6, 48) == pytest.approx(9 / 8, abs=0.01)  # nine on one
    assert imbalance(64, 48) == pytest.approx(64 / 48, abs=0.01)  # one or none on each
    assert imbalance(64, 256) == 1
    assert all(imbalance(masters, shards) >= 1 for masters in (1, 3, 24, 64) for shards in (48, 256))
