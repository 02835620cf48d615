"""What was done to servers and programs explains what it can explain, for the ids that it concerns."""

from __future__ import annotations

from tests.judge.history import Call
from tests.judge.judge import Setback
from tests.judge.model import Op
from tests.judge.verdict import Facts, Loss, Split, verdict_on

S = 1_000_000


def call(id: str, kind: str, begin: float, end: float, outcome: str, **more: object) -> Call:
    more = {"number": 1, "token": "t", "lease_us": 5 * S, **more}
    op = Op(kind, begin * S, end * S, outcome, who="p", **more)  # type: ignore[arg-type]
    return Call("p", kind, begin * S, end * S, ops=[(id, op)])


LOST = [call("a", "push", 0, 1, "pushed"), call("a", "get", 20, 21, "gone")]
TWO_SERVERS = [
    call("a", "push", 10, 11, "pushed"),
    call("a", "get", 12, 13, "gone"),
    call("a", "cancel", 14, 15, "cancelled"),
]


def test_a_split_explains_what_either_server_answered() -> None:
    split = Split(9.5 * S, 16 * S, 9 * S, None)
    assert verdict_on(TWO_SERVERS, Facts(), {}, 90 * S).violations
    assert not verdict_on(TWO_SERVERS, Facts(splits=[split]), {}, 90 * S).violations


def test_a_split_explains_nothing_from_before_it() -> None:
    split = Split(9.5 * S, 16 * S, 9 * S, None)
    assert verdict_on(LOST, Facts(splits=[split]), {}, 90 * S).violations


def test_what_was_committed_is_there_once_whatever_answers_were_lost() -> None:
    facts = Facts(losses=[Loss(0, 50 * S)], spool_drained_us=60 * S)
    twice = [
        call("a", "claim", 2, 3, "given"),
        call("a", "ack", 3.1, 4, "done"),
        call("a", "claim", 12, 13, "given", token="u"),
        call("a", "ack", 13.1, 14, "done", token="u"),
    ]
    for word, is_wrong in (("committed", True), ("spooled", False)):
        calls = [call("a", "push", 0, 1, word), *twice]
        assert bool(verdict_on(calls, facts, {}, 90 * S).violations) == is_wrong


def test_what_was_committed_and_never_came_is_lost() -> None:
    facts = Facts(spool_drained_us=60 * S)
    assert verdict_on([call("a", "push", 0, 1, "committed")], facts, {}, 90 * S).violations
    assert not verdict_on([call("a", "push", 0, 1, "committed")], facts, {"a": ("scheduled", 1)}, 90 * S).violations


def test_a_claim_of_a_process_that_stood_still_may_have_had_leases_that_it_hands_to_nobody() -> None:
    calls = [
        call("a", "push", 0, 1, "pushed"),
        Call("p", "claim", 2 * S, 20 * S),
        call("a", "claim", 30, 31, "given", token="u", lapses=1),
        call("a", "ack", 31.1, 32, "done", token="u"),
    ]
    assert verdict_on(calls, Facts(), {}, 90 * S).violations
    assert not verdict_on(calls, Facts(frozen=[Loss(3 * S, 19 * S, "p")]), {}, 90 * S).violations
def test_what_a_setback_took_is_counted_as_lost() -> None:
    facts = Facts(setbacks=[(Setback(10 * S, 0.5 * S), None)])
    handled = [*LOST[:1], call("a", "claim", 2, 3, "given"), call("a", "ack", 3.1, 4, "done")]
    for calls, count in ((LOST[:1], 1), (handled, 0)):
        verdict = verdict_on(calls, facts, {}, 90 * S)
        assert not verdict.violations
        assert verdict.lost.total() == count


def test_a_command_on_many_tasks_that_was_over_before_a_task_was_pushed_did_not_meet_it() -> None:
    early = Op("bulk", 0.1 * S, 0.5 * S, "applied", mode="cancel", who="p")
    purge = Call("p", "bulk", 0.1 * S, 0.5 * S, ops=[("", early)])
    pushed = call("a", "push", 1, 2, "pushed")
    assert verdict_on([purge, pushed], Facts(), {}, 90 * S).violations
    purge.end_us = early.end_us = 1.5 * S
    assert not verdict_on([purge, pushed], Facts(), {}, 90 * S).violations
