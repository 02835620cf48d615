"""What was safe before a server forgot, or came after it, stays owed; the rest may be lost, and it is told."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from tests.chaos.forgotten import Forgotten, tell
from tests.judge.history import Call
from tests.judge.judge import Setback
from tests.judge.model import Op
from tests.judge.verdict import FORGOTTEN, Facts, Verdict, concerns, verdict_on

S = 1e6

ID = "x"

COUNTS = {2, 3}

(SHARD,) = (shard for shard in range(2) if concerns(frozenset([shard]), ID, [2]))


def call(kind: str, from_s: float, to_s: float, outcome: str, **more: object) -> Call:
    op = Op(kind, from_s * S, to_s * S, outcome, 7, **more)  # type: ignore[arg-type]
    return Call("p", kind, op.begin_us, op.end_us, ops=[(ID, op)])


def pushed(at_s: float, **more: object) -> Call:
    return call("push", at_s, at_s + 0.1, "pushed", **more)


def handled(at_s: float, token: str = "t") -> list[Call]:
    return [
        call("claim", at_s, at_s + 0.1, "given", token=token, lease_us=30 * S),
        call("ack", at_s + 0.2, at_s + 0.3, "done", token=token),
    ]


def judged(
    calls: list[Call], *, shards: frozenset[int] | None = None, had: Collection[str] | None = None, wiped: bool = False
) -> Verdict:
    """From 10 s to 12 s is what a server forgets, or all until then."""
    facts = Facts(shard_counts=COUNTS)
    facts.setbacks.append((Setback(12 * S, 0.0 if wiped else 10 * S, is_failover=not wiped), shards))
    tell(facts, calls, [Forgotten(10 * S, 12 * S, shards, had)])
    return verdict_on(calls, facts, {}, 90 * S)


@pytest.mark.parametrize("at_s", [5, 13], ids=["safe", "afterwards"])
def test_what_is_owed_and_gone_is_found(at_s: float) -> None:
    assert judged([pushed(at_s)]).violations


@pytest.mark.parametrize("at_s", [5, 13], ids=["safe", "afterwards"])
def test_what_is_owed_and_handled_is_right(at_s: float) -> None:
    assert judged([pushed(at_s), *handled(14)]).violations == []


def test_what_was_on_its_way_to_the_disk_may_be_lost() -> None:
    verdict = judged([pushed(11)])
    assert verdict.violations == []
    assert verdict.lost[FORGOTTEN] == 1


def test_what_was_pushed_durably_is_owed() -> None:
    assert judged([pushed(11, durable=True)]).violations


def test_what_was_done_with_meanwhile_may_run_again() -> None:
    assert judged([pushed(5), *handled(11), *handled(14, "u")]).violations == []


def test_what_was_done_with_before_may_not() -> None:
    assert judged([pushed(5), *handled(6), *handled(14, "u")]).violations


def test_what_runs_again_is_never_early() -> None:
    assert judged([pushed(5, delay_us=20 * S), *handled(14)]).violations


def test_a_cancel_that_was_safe_holds() -> None:
    cancel = call("cancel", 6, 6.1, "cancelled")
    assert judged([pushed(5), cancel]).violations == []
    assert judged([pushed(5), cancel, *handled(14)]).violations


def test_what_a_wiped_server_had_is_not_owed_and_what_it_got_since_is() -> None:
    assert judged([pushed(5)], wiped=True, had=()).violations == []
    assert judged([pushed(13)], wiped=True, had=()).violations


def test_of_a_node_that_goes_back_alone_what_it_came_back_with_is_owed() -> None:
    here = frozenset([SHARD])
    assert judged([pushed(5)], shards=here, had={ID}).violations
    assert judged([pushed(5)], shards=here, had=()).violations == []
    elsewhere = frozenset(range(3)) - {shard for shard in range(3) if concerns(frozenset([shard]), ID, COUNTS)}
    assert judged([pushed(5)], shards=elsewhere, had=()).violations


def test_an_id_that_nobody_was_told_counts_from_its_push() -> None:
    unheard = Call("p", "push", 9 * S, math.inf, ops=[("", Op("push", 9 * S, number=7))])
    facts = Facts(shard_counts=COUNTS)
    tell(facts, [unheard, *handled(14)], [Forgotten(10 * S, 12 * S, None)])
    assert facts.unguarded == {ID}
