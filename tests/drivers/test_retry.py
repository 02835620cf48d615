"""The decisions about one call, without I/O, with a clock that the tests set."""

from __future__ import annotations

import errno

import pytest

from shardq.core.drivers.faults import OVERDUE, Fault, of_exception, of_reply, of_shortage, unconnected
from shardq.core.drivers.retry import (
    ASKING,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    REDIRECTS_AT_ONCE,
    RetryingCall,
    RetryStep,
    backoff_s,
)
from shardq.errors import (
    AccessDenied,
    OutOfMemory,
    ReadOnly,
    ServerFault,
    ShardqError,
    TooManyOpenFiles,
    Unanswered,
    Unavailable,
)
from tests.drivers.calls import script_call

REFUSED = of_exception(ConnectionRefusedError("refused"), sent=False)
LOST = of_exception(ConnectionResetError("reset"), sent=True)
NOSCRIPT = of_reply("NOSCRIPT No matching script.", asked="a:1")
SHORTAGE = of_shortage(OSError(errno.EMFILE, "Too many open files"))
ASK = of_reply("ASK 7 b:2", asked="a:1")
MOVED = of_reply("MOVED 7 b:2", asked="a:1")


def fault(text: str) -> Fault:
    return of_reply(text, asked="a:1")


def retrying(*, timeout: float = 30.0) -> RetryingCall[object]:
    again = script_call("return 2", "k")
    return RetryingCall(script_call("return 1", "k", resend=again), timeout=timeout, deadline=100.0 + timeout)


def failed_with(under_way: RetryingCall[object], what: Fault, now: float = 100.0) -> RetryStep:
    return under_way.failed_with(what, now=now, node="a:1", chance=0.5)


def test_sent_by_its_digest_first() -> None:
    under_way = retrying()
    assert under_way.packed() == under_way.call.packed()
    assert under_way.answers == 1


def test_noscript_sends_the_text_at_once() -> None:
    under_way = retrying()
    assert failed_with(under_way, NOSCRIPT) == RetryStep()
    assert under_way.packed() == under_way.call.packed_in_full()


def test_noscript_for_the_full_text_is_an_error() -> None:
    under_way = retrying()
    failed_with(under_way, NOSCRIPT)
    with pytest.raises(ServerFault, match="NOSCRIPT"):
        failed_with(under_way, NOSCRIPT)


def test_noscript_when_the_time_is_over() -> None:
    under_way = retrying(timeout=1.0)
    with pytest.raises(Unavailable, match="not done within 1 s: NOSCRIPT") as caught:
        failed_with(under_way, NOSCRIPT, now=101.0)
    assert (caught.value.node, caught.value.tried_s) == ("a:1", 1.0)


def test_a_fault_of_our_own_is_waited_out_and_nothing_is_learnt() -> None:
    step = failed_with(retrying(), SHORTAGE)
    assert step.backoff_s > 0
    assert not step.refresh
    assert not step.doubted


@pytest.mark.parametrize(("timeout", "last"), [(30.0, 129.0), (1.0, 100.5)])
def test_a_fault_of_our_own_leaves_time_for_the_last_try(timeout: float, last: float) -> None:
    under_way = retrying(timeout=timeout)
    assert failed_with(under_way, SHORTAGE, now=last - 0.2).backoff_s > 0
    with pytest.raises(TooManyOpenFiles, match=r"a:1: .* was not done within .*no file descriptor left.*; raise that"):
        failed_with(under_way, SHORTAGE, now=last)


def test_ask_is_for_one_try() -> None:
    under_way = retrying()
    assert failed_with(under_way, ASK) == RetryStep()
    assert under_way.address == "b:2"
    assert under_way.packed() == ASKING + under_way.call.packed()
    assert under_way.answers == 2
    assert failed_with(under_way, fault("TRYAGAIN wait")).refresh
    assert under_way.answers == 1
    assert under_way.packed() == under_way.call.packed()


def test_ask_and_noscript_together() -> None:
    under_way = retrying()
    failed_with(under_way, ASK)
    assert failed_with(under_way, NOSCRIPT) == RetryStep()
    assert under_way.address == "b:2"
    assert under_way.packed() == ASKING + under_way.call.packed_in_full()


def test_moved_is_followed_at_once_and_noted() -> None:
    under_way = retrying()
    assert failed_with(under_way, MOVED) == RetryStep(0.0, refresh=True, moved=(7, "b:2"), doubted="a:1")
    assert under_way.request is under_way.call


def test_nodes_that_point_at_each_other_are_asked_slowly() -> None:
    under_way = retrying()
    for _ in range(REDIRECTS_AT_ONCE):
        assert failed_with(under_way, MOVED).backoff_s == 0.0
    assert failed_with(under_way, MOVED).backoff_s > 0.0


@pytest.mark.parametrize(
    "what", [REFUSED, fault("TRYAGAIN x"), fault("LOADING x"), fault("READONLY x"), fault("CLUSTERDOWN x")]
)
def test_what_was_not_executed_is_sent_again_as_it_was(what: Fault) -> None:
    under_way = retrying()
    step = failed_with(under_way, what)
    assert step.refresh
    assert step.backoff_s == pytest.approx(FIRST_PAUSE_S * 0.75)
    assert under_way.packed() == under_way.call.packed()
    assert not under_way.call.in_doubt


def test_a_lost_answer_changes_what_is_sent_for_good() -> None:
    under_way = retrying()
    failed_with(under_way, NOSCRIPT)
    failed_with(under_way, LOST)
    again = script_call("return 2", "k")
    assert under_way.packed() == again.packed()
    failed_with(under_way, REFUSED)
    assert under_way.packed() == again.packed()
    failed_with(under_way, NOSCRIPT)
    assert under_way.packed() == again.packed_in_full()


def test_a_resend_that_goes_elsewhere_never_says_that_nothing_was_done() -> None:
    under_way = RetryingCall(retrying().call.after_loss(), timeout=30.0, deadline=130.0)
    with pytest.raises(Unanswered, match="may or may not have happened"):
        failed_with(under_way, REFUSED, now=130.0)


def test_pauses_double_up_to_a_bound() -> None:
    assert [backoff_s(tries, 1.0) for tries in (0, 1, 2, 3)] == [0.0, 0.005, 0.01, 0.02]
    assert backoff_s(1000, 1.0) == LONGEST_PAUSE_S
    assert backoff_s(1, 0.0) == FIRST_PAUSE_S / 2


@pytest.mark.parametrize(
    ("what", "error", "part"),
    [
        (REFUSED, Unavailable, "a:1: store was not done within 30 s: refused; check that the server runs"),
        (fault("LOADING x"), Unavailable, "loading its data: try again later"),
        (fault("CLUSTERDOWN x"), Unavailable, "CLUSTERDOWN"),
        (fault("READONLY x"), ReadOnly, "READONLY"),
        (fault("MISCONF x"), ReadOnly, "MISCONF"),
        (LOST, Unanswered, "may or may not have happened"),
        (MOVED, Unavailable, "MOVED"),
        (OVERDUE, Unavailable, "its time was over before it could be sent; what came before it took all of the time"),
    ],
)
def test_the_deadline_ends_it(what: Fault, error: type[ShardqError], part: str) -> None:
    under_way = retrying()
    failed_with(under_way, what, now=129.9)
    with pytest.raises(error, match=part) as caught:
        failed_with(under_way, what, now=130.0)
    assert type(caught.value) is error
    assert caught.value.__cause__ is what.cause


@pytest.mark.parametrize("last", [OVERDUE, unconnected(0.0005)])
def test_a_last_try_that_had_no_time_hides_nothing(last: Fault) -> None:
    under_way = retrying()
    failed_with(under_way, REFUSED)
    with pytest.raises(Unavailable, match="refused"):
        failed_with(under_way, last, now=130.0)


def test_no_try_begins_past_the_deadline() -> None:
    under_way = retrying(timeout=0.001)
    with pytest.raises(Unavailable):
        failed_with(under_way, REFUSED)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (fault("OOM x"), OutOfMemory),
        (fault("NOPERM x"), AccessDenied),
        (fault("WRONGTYPE x"), ServerFault),
    ],
)
def test_some_errors_end_it_at_once(what: Fault, error: type[ShardqError]) -> None:
    with pytest.raises(error) as caught:
        failed_with(retrying(), what)
    assert type(caught.value) is error


@pytest.mark.parametrize("what", [fault("OOM x"), fault("NOPERM x"), REFUSED])
def test_after_a_loss_no_error_says_that_nothing_happened(what: Fault) -> None:
    under_way = retrying()
    failed_with(under_way, LOST)
    with pytest.raises(Unanswered, match="may or may not"):
        failed_with(under_way, what, now=130.0)
