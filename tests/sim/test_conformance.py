"""The model does what real servers do: sampled calls of every script, side by side. ``make sim`` runs more of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.server import Server
from cluster.servers import found
from tests.lua.contract import NAMES
from tests.sim.conformance.comparing import Comparison
from tests.sim.conformance.sides import OPTIONS, Real
from tests.sim.model.commands import COMMANDS, Reply, zrem
from tests.sim.model.keyspace import Keyspace

RUNS = 80


@pytest.fixture(scope="module")
def comparison(server_binary: Path) -> Iterator[Comparison]:
    (kind,) = (kind for kind, path in found().items() if path == server_binary)
    with Server(server_binary, options=OPTIONS) as server, Real(server) as real:
        yield Comparison(kind, real)


def test_sampled_calls_are_answered_alike(comparison: Comparison) -> None:
    for seed in range(RUNS):
        difference = comparison.run(seed)
        assert difference is None, str(difference)
    assert set(comparison.tally.calls) == set(NAMES)


@pytest.mark.slow
def test_calls_of_simulated_runs_are_answered_alike(comparison: Comparison) -> None:
    for seed in range(6):
        difference = comparison.replay(seed)
        assert difference is None, str(difference)


def test_on_the_clock_of_the_server(comparison: Comparison) -> None:
    for seed in range(5):
        difference = comparison.run_on_server_clock(seed)
        assert difference is None, str(difference)


def test_a_fault_of_the_model_is_found_and_shrunk(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, equal answers could mean that nothing is compared."""

    def forgetful(space: Keyspace, key: bytes, *members: bytes) -> Reply:
        return zrem(space, key, *members[:1])

    monkeypatch.setitem(COMMANDS, b"ZREM", replace(COMMANDS[b"ZREM"], run=forgetful))
    broken = comparison.again()
    differences = filter(None, (broken.run(seed) for seed in range(RUNS)))
    difference = next(differences)
    assert 1 < len(difference.steps) < 10
    assert "of the server" in str(difference)
