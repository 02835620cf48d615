"""Every acknowledged push and cancel, through kills of masters whose replicas were cut off. ``bench.failovers`` is the
same with a hundred of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import failovers


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_by_failovers_under_load(server_binary: Path) -> None:
    ledger = failovers.measured(server_binary, failovers=2, pushes=0, per_s=1000, replay=10, say=print)
    assert ledger.lost == []
    assert ledger.cancelled & ledger.pending == set()
    assert ledger.replayed > 0
    assert len(ledger.acknowledged) > len(ledger.cancelled) > 0
