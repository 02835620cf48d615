"""What was done to servers and programs explains what it can explain, for the ids that it concerns."""

from __future__ import annotations

import itertools
import random
from copy import copy

from tests.judge.history import Call
from tests.judge.judge import Setback, Violated, judged
from tests.judge.model import Op
from tests.judge.verdict import Facts, Loss, Split, is_plain, verdict_on

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


def test_what_is_plain_is_explained() -> None:
    plain = 0
    for seed in range(2000):
        draw = random.Random(seed)
        push = Op("push", 0, S, draw.choice(("pushed", "pushed", "applied", "", "seen")), number=1)
        push.delay_us = draw.choice((0.0, 0.0, 2.0, 4.0)) * S
        some = [push]
        number = draw.choice((1, 1, 1, 2))
        if draw.random() < 0.3:
            some.append(Op("arrive", 0, draw.choice((1, 3)) * S, "arrived", number, relayed=draw.random() < 0.5))
        else:
            lapses = draw.choice((0, 0, 0, 1))
            some.append(Op("claim", 2 * S, 3 * S, "given", number, token="t", lapses=lapses, lease_us=5 * S))
        if draw.random() < 0.8:
            begin_us = draw.choice((3.5, 3.5, 20)) * S
            token = draw.choice(("t", "t", "u"))
            some.append(Op("ack", begin_us, begin_us + S, draw.choice(("done", "done", "", "lost")), token=token))
        if is_plain(some):
            plain += 1
            assert judged([*some, Op("get", 90 * S, 91 * S, "gone")]) is None, some
    assert plain > 100


def test_a_payload_that_arrives_twice_is_not_plain() -> None:
    push = Op("push", 0, S, "pushed", number=1)
    arrivals = [Op("arrive", 0, end * S, "arrived", number=1) for end in (2, 3)]
    assert is_plain([push, *arrivals[:1]])
    assert not is_plain([push, *arrivals])


def bulk(begin: float, end: float, mode: str = "cancel") -> Call:
    op = Op("bulk", begin * S, end * S, "applied", mode=mode, who="p")
    return Call("p", "bulk", op.begin_us, op.end_us, ops=[("", op)])


def test_the_last_command_on_many_tasks_explains_what_any_of_many_does() -> None:
    many = [bulk(begin, begin + 0.5, mode) for begin in range(3, 60) for mode in ("cancel", "requeue")]
    pushed = call("a", "push", 1, 2, "pushed")
    split = Facts(splits=[Split(0.5 * S, 70 * S, 0.1 * S, None)])
    for facts in (Facts(), split):
        assert not verdict_on([pushed, *many], facts, {}, 90 * S).violations
        assert not verdict_on([pushed, *many], facts, {"a": ("scheduled", 1)}, 90 * S).violations
        assert not verdict_on([pushed, *many], facts, {}, 90 * S).undecided
    assert verdict_on(
        [pushed, *[each for each in many if each.ops[0][1].mode == "requeue"]], Facts(), {}, 90 * S
    ).violations


def test_what_two_servers_answered_at_a_time_is_decided() -> None:
    split = Split(0.5 * S, 40 * S, 0.1 * S, None)
    calls = [call("a", "push", 1, 2, "pushed"), call("a", "claim", 3, 4, "given"), call("a", "ack", 5, 6, "done")]
    calls += [
        call("a", "get", at, at + 1, word) for at, word in ((7, "gone"), (9, "leased"), (11, "gone"), (13, "ready"))
    ]
    calls += [call("a", "cancel", at, at + 1, word) for at, word in ((15, "gone"), (17, "cancelled"), (19, "gone"))]
    verdict = verdict_on([*calls, *(bulk(at, at + 0.5) for at in range(3, 21))], Facts(splits=[split]), {}, 90 * S)
    assert not verdict.violations
    assert not verdict.undecided


def test_what_is_taken_back_at_a_look_is_so_in_detail() -> None:
    pushed = Op("push", 1 * S, 2 * S, "pushed", number=1)
    for at, since in itertools.product((0.5, 1.5, 1.9, 5), (0.2, 1.2, 1.8, 3)):
        if since > at:
            continue
        for durable in (False, True):
            push = copy(pushed)
            push.durable = durable
            facts = Facts(setbacks=[(Setback(at * S, since * S), None)])
            verdict = verdict_on([Call("p", "push", S, 2 * S, ops=[("a", push)])], facts, {}, 90 * S)
            bare = judged([push, Op("get", 90 * S, 91 * S, "gone")], setbacks=[Setback(at * S, since * S)])
            assert bool(verdict.violations) == isinstance(bare, Violated), (at, since, durable)


def test_of_what_was_moved_in_a_setback_it_is_owed_what_was_safe() -> None:
    for end_s, ended, is_wrong in ((1, "gone", True), (1, "scheduled", True), (1, "dead", False), (6, "gone", False)):
        push = Op("push", end_s * S - 1, end_s * S, "pushed", number=7)
        facts = Facts(setbacks=[(Setback(10 * S, 5 * S), None)], unguarded={"a"}, owing=True)
        final = {"a": (ended, 7)} if ended != "gone" else {}
        call = Call("w", "push", push.begin_us, push.end_us, ops=[("a", push)])
        assert bool(verdict_on([call], facts, final, 90 * S).violations) == is_wrong
