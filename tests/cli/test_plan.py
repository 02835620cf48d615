"""`shardq plan` as a user types it. No server runs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from shardq.cli.app import app
from shardq.core.model.quantities import rate, size
from shardq.features.planning import Load, measured, plan


def planned(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", *words])


@pytest.mark.parametrize(
    ("text", "per_s"),
    [("50000/s", 50_000), ("50k/s", 50_000), ("120/min", 2), ("250", 250), ("3.6M/h", 1_000), (" 864k / day ", 10)],
)
def test_rates(text: str, per_s: float) -> None:
    assert rate(text) == pytest.approx(per_s)


@pytest.mark.parametrize(
    ("text", "count"), [("200", 200), ("4KiB", 4_096), ("1.5 kB", 1_500), ("8G", 8_000_000_000), ("2MiB", 2 << 20)]
)
def test_sizes(text: str, count: int) -> None:
    assert size(text) == count


def test_a_plan_tells_sizes_and_reasons() -> None:
    shown = planned("--rate", "50k/s", "--delay", "30m", "--payload", "200", "--handler", "20ms")
    assert shown.exit_code == 0, shown.output
    for word in ("masters", "shards", "memory", "connections", "lateness", "why", "mind", "1,000 handlers at once"):
        assert word in shown.output
    assert measured().measured in shown.output
    assert max(map(len, shown.output.splitlines()[:-1])) <= 100


def test_json_has_what_the_arithmetic_says() -> None:
    shown = planned("--rate", "600/min", "--delay", "1h", "--payload", "4KiB", "--push", "many", "--forward", "--json")
    found = plan(Load(rate=10, delay_s=3_600, payload=4_096, single=False, forward=True), measured())
    told = json.loads(shown.output)
    assert (told["masters"], told["shards"], told["pending"]) == (found.masters, found.shards, 36_000)
    assert told["reasons"] == found.reasons


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--rate", "fast", "--delay", "1m"), "write tasks for each s, min, h or day"),
        (("--rate", "0/s", "--delay", "1m"), "is not a rate"),
        (("--rate", "5/fortnight", "--delay", "1m"), "is not a rate"),
        (("--rate", "5/s", "--delay", "later"), "is not a length of time"),
        (("--rate", "5/s", "--delay", "1m", "--payload", "big"), "is not a size"),
        (("--rate", "5/s", "--delay", "1m", "--busy", "99"), "99"),
        (("--rate", "5/s", "--delay", "1m", "--forward", "--handler", "1s"), "--forward needs no worker"),
        (("--rate", "5/s", "--delay", "1m", "--node-memory", "0"), "like 8GB"),
        (("--delay", "1m"), "--rate"),
    ],
)
def test_what_is_typed_wrong_is_answered_in_its_terms(words: tuple[str, ...], hint: str) -> None:
    shown = planned(*words)
    assert shown.exit_code == 2
    assert hint in shown.output


def test_what_no_cluster_carries_fails() -> None:
    shown = planned("--rate", "999M/s", "--delay", "1d")
    assert shown.exit_code == 1
    assert "masters do not carry that" in shown.output
