"""The registry of waiters in a process: each wake-up message reaches one waiter, and none is lost."""

from __future__ import annotations

import random

import pytest

from shardq.core.consumer.waiter_registry import (
    LONGEST_RECHECK_S,
    RECHECK_S,
    STAGGER,
    ReadyList,
    Waiter,
    WaiterRegistry,
)


class Sleeper:
    """A waiter that counts its wake-ups."""

    def __init__(self, waiters: WaiterRegistry, *topics: str) -> None:
        self.wakes = 0
        self.waiter = Waiter(topics or ("",), self._woken)
        waiters.enter(self.waiter)

    def _woken(self) -> None:
        self.wakes += 1


A: ReadyList = (0, "")
B: ReadyList = (1, "")
MAIL: ReadyList = (0, "mail")


def name(waiters: WaiterRegistry, *entries: ReadyList, crowd: int = 1) -> None:
    """As a claim does that leaves our name in these lists."""
    waiters.registered(waiters.wakeup_counts(sorted({s for s, _ in entries}), {t for _, t in entries}), entries, crowd)


def test_a_list_is_asked_until_it_knows_us() -> None:
    waiters = WaiterRegistry()
    assert waiters.unregistered(range(2), ("", "mail")) == [0, 1]
    name(waiters, A, B)
    assert waiters.unregistered(range(2), ("",)) == []
    assert waiters.unregistered(range(2), ("", "mail")) == [0, 1]
    name(waiters, MAIL)
    assert waiters.unregistered(range(2), ("", "mail")) == [1]


def test_a_message_takes_one_waiter_and_the_name() -> None:
    waiters = WaiterRegistry()
    one, other = Sleeper(waiters), Sleeper(waiters)
    name(waiters, A, B)
    assert waiters.wakeup_received(A)
    assert (one.wakes, other.wakes) == (1, 0)
    assert one.waiter.woken_for == {A}
    assert waiters.unregistered(range(2), ("",)) == [0]
    # the first has something to look at: the next message is for another
    assert waiters.wakeup_received(B)
    assert (one.wakes, other.wakes) == (1, 1)


def test_one_waiter_has_the_alarm_of_a_denial_and_passes_it_on() -> None:
    waiters, woken = WaiterRegistry(), list[int]()
    first, second, third = each = [Waiter([""], lambda n=n: woken.append(n)) for n in range(3)]  # type: ignore[misc]
    for waiter in each:
        waiters.enter(waiter)
    assert [list(waiters.sleeps_denied(waiter, [""])) for waiter in each] == [[""], [], []]
    waiters.leave(first)
    assert woken == [1], "who leaves hands it over"
    waiters.pass_alarm("", second, wake=True)
    assert woken == [1, 2], "after a grant the next one asks"
    assert list(waiters.sleeps_denied(third, [""])) == [""]
    waiters.sleeps_denied(third, [])
    assert list(waiters.sleeps_denied(second, [""])) == [""], "who is not denied needs none"


def test_what_nobody_takes_is_open_until_somebody_comes_or_it_is_passed_on() -> None:
    waiters = WaiterRegistry()
    assert not waiters.wakeup_received(A)
    assert waiters.take_back(A)
    assert not waiters.take_back(A)
    assert not waiters.wakeup_received(A)
    comer = Sleeper(waiters)
    assert comer.waiter.woken_for == {A}
    assert not waiters.take_back(A)


def test_only_who_waits_for_that_topic_takes_it() -> None:
    waiters = WaiterRegistry()
    sleeper = Sleeper(waiters, "mail")
    assert not waiters.wakeup_received(A)
    assert waiters.wakeup_received(MAIL)
    assert (sleeper.wakes, sleeper.waiter.woken_for) == (1, {MAIL})
    assert Sleeper(waiters, "sms").waiter.woken_for == set()
    assert waiters.take_back(A)


def test_who_leaves_without_asking_hands_on() -> None:
    waiters = WaiterRegistry()
    one, other = Sleeper(waiters), Sleeper(waiters)
    waiters.wakeup_received(A)
    assert waiters.leave(one.waiter) == []
    assert (other.wakes, other.waiter.woken_for) == (1, {A})
    # and when nobody is left, the list is to be passed on
    assert waiters.leave(other.waiter) == [A]
    assert waiters.take_back(A)


def test_who_was_woken_and_took_from_another_list_hands_on() -> None:
    waiters = WaiterRegistry()
    one, other = Sleeper(waiters), Sleeper(waiters, "mail")
    waiters.wakeup_received(A)
    waiters.wakeup_received(MAIL)
    waiters.ask(one.waiter)
    waiters.ask(other.waiter)
    # it found something in A and had no consumer free for it; in B, too, but for B other names were drawn
    assert waiters.leave(one.waiter, [A, B]) == [A]
    assert waiters.take_back(A)
    assert not waiters.take_back(B)
    # what it emptied is done
    assert waiters.leave(other.waiter, []) == []


def test_a_name_drawn_while_its_claim_was_on_its_way_does_not_stand() -> None:
    waiters = WaiterRegistry()
    before = waiters.wakeup_counts([0, 1], ("",))
    waiters.wakeup_received(A)  # before the answer of the claim that left the name is here
    waiters.registered(before, [A, B], 1)
    assert waiters.unregistered(range(2), ("",)) == [0]


def test_a_shard_that_may_have_been_missed_is_asked_again() -> None:
    waiters = WaiterRegistry()
    one, other = Sleeper(waiters), Sleeper(waiters)
    name(waiters, A, B, MAIL)
    before = waiters.wakeup_counts([0], ("",))
    waiters.messages_missed(0)
    assert (one.wakes, other.wakes) == (1, 1)
    assert waiters.unregistered(range(2), ("",)) == [0]
    waiters.registered(before, [A], 1)
    assert waiters.unregistered(range(2), ("",)) == [0]


def test_more_than_one_takes_rouses_another_of_ours_and_opens_nothing() -> None:
    waiters = WaiterRegistry()
    sleeper = Sleeper(waiters)
    waiters.wake_for([A, B])
    assert (sleeper.wakes, sleeper.waiter.woken_for) == (1, {A})
    assert not waiters.take_back(B)


def test_lists_with_something_wake_a_waiter_each_and_those_that_are_awake_are_asked_nothing() -> None:
    waiters = WaiterRegistry()
    awake = [Sleeper(waiters) for _ in range(2)]
    waiters.wake_for([A, B])
    mail, one, other = Sleeper(waiters, "mail"), Sleeper(waiters), Sleeper(waiters)
    waiters.wake_for([A, B, MAIL, A])
    assert [sleeper.wakes for sleeper in (*awake, mail, one, other)] == [1] * 5
    assert [sleeper.waiter.woken_for for sleeper in (mail, one, other)] == [{MAIL}, {A}, {B}]


def test_rousing_all() -> None:
    waiters = WaiterRegistry()
    sleepers = [Sleeper(waiters), Sleeper(waiters, "mail")]
    name(waiters, A, MAIL)
    waiters.forget_all()
    waiters.wake_all()
    assert [sleeper.wakes for sleeper in sleepers] == [1, 1]
    assert waiters.unregistered([0], ("", "mail")) == [0]


@pytest.mark.parametrize(
    ("crowd", "mean"), [(0, RECHECK_S), (1, RECHECK_S), (3, 3 * RECHECK_S), (10**6, LONGEST_RECHECK_S)]
)
def test_the_larger_the_crowd_the_longer_the_sleep(crowd: int, mean: float) -> None:
    sleeps = []
    for _ in range(300):
        waiters = WaiterRegistry()
        name(waiters, A, crowd=crowd)
        sleeps.append(waiters.sleep_s([""], 0.0))
    assert min(sleeps) >= 0.8 * mean
    assert max(sleeps) <= (1.2 + STAGGER) * mean
    assert max(sleeps) - min(sleeps) > 0.2 * mean


def test_one_doubts_for_all() -> None:
    waiters = WaiterRegistry()
    name(waiters, A, B, MAIL)
    assert waiters.sleep_s([""], 0.0) <= (1.2 + STAGGER) * RECHECK_S
    assert not waiters.recheck_due(["", "mail"], 0.5 * RECHECK_S)
    assert waiters.recheck_due(["", "mail"], 2 * RECHECK_S)
    # the others trust the names until the answer is here
    assert not waiters.recheck_due([""], 2 * RECHECK_S)
    assert waiters.unregistered(range(2), ("",)) == []
    # nobody has slept on the other topic
    assert not waiters.recheck_due(["mail"], 2 * RECHECK_S)


def test_a_recheck_asks_for_all_topics_of_a_waiter_and_counts_for_all() -> None:
    waiters = WaiterRegistry()
    waiters.sleep_s([""], 0.0)
    waiters.sleep_s(["mail"], RECHECK_S / 2)
    assert waiters.recheck_due(["", "mail"], 1.2 * RECHECK_S)
    assert not waiters.recheck_due(["", "mail"], 1.8 * RECHECK_S)


def test_a_list_that_was_asked_and_not_empty_does_not_know_us() -> None:
    waiters = WaiterRegistry()
    name(waiters, A, B, MAIL)
    waiters.registered(waiters.wakeup_counts([0, 1], ("",)), [B], 1)
    assert waiters.unregistered(range(2), ("",)) == [0]
    assert waiters.unregistered([0], ("mail",)) == []


def test_no_message_is_ever_lost() -> None:
    """Whatever the order of comings, goings and messages: each list heard of is somebody's, or open."""
    chance = random.Random(7)
    for _ in range(300):
        waiters, sleepers, unasked = WaiterRegistry(), list[Sleeper](), set[ReadyList]()
        for _ in range(30):
            match chance.randrange(4):
                case 0:
                    sleepers.append(Sleeper(waiters, *chance.sample(("", "mail"), chance.randint(1, 2))))
                case 1 if sleepers:
                    sleeper = sleepers.pop(chance.randrange(len(sleepers)))
                    if chance.random() < 0.5:
                        unasked -= sleeper.waiter.woken_for
                        sleeper.waiter.woken_for.clear()
                    waiters.leave(sleeper.waiter)
                case _:
                    entry = (chance.randrange(3), chance.choice(("", "mail")))
                    waiters.wakeup_received(entry)
                    unasked.add(entry)
        held = {entry for sleeper in sleepers for entry in sleeper.waiter.woken_for}
        assert unasked <= held | {entry for entry in unasked if waiters.take_back(entry)}
