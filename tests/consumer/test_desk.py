"""Who waits in a process and which lists know it: messages find one waiter each, and none is lost."""

from __future__ import annotations

import random

import pytest

from shardq.consumer.desk import LONGEST_SAFETY_S, SAFETY_S, STAGGER, Desk, List, Waiter


class Sleeper:
    """A waiter that counts its wake-ups."""

    def __init__(self, desk: Desk, *topics: str) -> None:
        self.wakes = 0
        self.waiter = Waiter(topics or ("",), self._woken)
        desk.enter(self.waiter)

    def _woken(self) -> None:
        self.wakes += 1


A: List = (0, "")
B: List = (1, "")
MAIL: List = (0, "mail")


def name(desk: Desk, *entries: List, crowd: int = 1) -> None:
    """As a claim does that leaves our name in these lists."""
    desk.named(desk.turns(sorted({s for s, _ in entries}), {t for _, t in entries}), entries, crowd)


def test_a_list_is_asked_until_it_knows_us() -> None:
    desk = Desk()
    assert desk.unnamed(range(2), ("", "mail")) == [0, 1]
    name(desk, A, B)
    assert desk.unnamed(range(2), ("",)) == []
    assert desk.unnamed(range(2), ("", "mail")) == [0, 1]
    name(desk, MAIL)
    assert desk.unnamed(range(2), ("", "mail")) == [1]


def test_a_message_takes_one_waiter_and_the_name() -> None:
    desk = Desk()
    one, other = Sleeper(desk), Sleeper(desk)
    name(desk, A, B)
    assert desk.heard(A)
    assert (one.wakes, other.wakes) == (1, 0)
    assert one.waiter.lists == {A}
    assert desk.unnamed(range(2), ("",)) == [0]
    # the first has something to look at: the next message is for another
    assert desk.heard(B)
    assert (one.wakes, other.wakes) == (1, 1)


def test_what_nobody_takes_is_open_until_somebody_comes_or_it_is_passed_on() -> None:
    desk = Desk()
    assert not desk.heard(A)
    assert desk.unanswered(A)
    assert not desk.unanswered(A)
    assert not desk.heard(A)
    comer = Sleeper(desk)
    assert comer.waiter.lists == {A}
    assert not desk.unanswered(A)


def test_only_who_waits_for_that_topic_takes_it() -> None:
    desk = Desk()
    sleeper = Sleeper(desk, "mail")
    assert not desk.heard(A)
    assert desk.heard(MAIL)
    assert (sleeper.wakes, sleeper.waiter.lists) == (1, {MAIL})
    assert Sleeper(desk, "sms").waiter.lists == set()
    assert desk.unanswered(A)


def test_who_leaves_without_asking_hands_on() -> None:
    desk = Desk()
    one, other = Sleeper(desk), Sleeper(desk)
    desk.heard(A)
    assert desk.leave(one.waiter) == []
    assert (other.wakes, other.waiter.lists) == (1, {A})
    # and when nobody is left, the list is to be passed on
    assert desk.leave(other.waiter) == [A]
    assert desk.unanswered(A)


def test_who_was_woken_and_took_from_another_list_hands_on() -> None:
    desk = Desk()
    one, other = Sleeper(desk), Sleeper(desk, "mail")
    desk.heard(A)
    desk.heard(MAIL)
    desk.ask(one.waiter)
    desk.ask(other.waiter)
    # it found something in A and had no room for it; in B, too, but for B other names were drawn
    assert desk.leave(one.waiter, [A, B]) == [A]
    assert desk.unanswered(A)
    assert not desk.unanswered(B)
    # what it emptied is done
    assert desk.leave(other.waiter, []) == []


def test_a_name_drawn_while_its_claim_was_on_its_way_does_not_stand() -> None:
    desk = Desk()
    before = desk.turns([0, 1], ("",))
    desk.heard(A)  # before the answer of the claim that left the name is here
    desk.named(before, [A, B], 1)
    assert desk.unnamed(range(2), ("",)) == [0]


def test_a_shard_that_may_have_been_missed_is_asked_again() -> None:
    desk = Desk()
    one, other = Sleeper(desk), Sleeper(desk)
    name(desk, A, B, MAIL)
    before = desk.turns([0], ("",))
    desk.missed(0)
    assert (one.wakes, other.wakes) == (1, 1)
    assert desk.unnamed(range(2), ("",)) == [0]
    desk.named(before, [A], 1)
    assert desk.unnamed(range(2), ("",)) == [0]


def test_more_than_one_takes_rouses_another_of_ours_and_opens_nothing() -> None:
    desk = Desk()
    sleeper = Sleeper(desk)
    desk.rouse([A, B])
    assert (sleeper.wakes, sleeper.waiter.lists) == (1, {A})
    assert not desk.unanswered(B)


def test_rousing_all() -> None:
    desk = Desk()
    sleepers = [Sleeper(desk), Sleeper(desk, "mail")]
    name(desk, A, MAIL)
    desk.forget_all()
    desk.rouse_all()
    assert [sleeper.wakes for sleeper in sleepers] == [1, 1]
    assert desk.unnamed([0], ("", "mail")) == [0]


@pytest.mark.parametrize(
    ("crowd", "mean"), [(0, SAFETY_S), (1, SAFETY_S), (30, 30 * SAFETY_S), (10**6, LONGEST_SAFETY_S)]
)
def test_the_larger_the_crowd_the_longer_the_sleep(crowd: int, mean: float) -> None:
    sleeps = []
    for _ in range(300):
        desk = Desk()
        name(desk, A, crowd=crowd)
        sleeps.append(desk.trusted_s([""], 0.0))
    assert min(sleeps) >= 0.8 * mean
    assert max(sleeps) <= (1.2 + STAGGER) * mean
    assert max(sleeps) - min(sleeps) > 0.2 * mean


def test_one_doubts_for_all() -> None:
    desk = Desk()
    name(desk, A, B, MAIL)
    assert desk.trusted_s([""], 0.0) <= (1.2 + STAGGER) * SAFETY_S
    assert not desk.doubt(["", "mail"], 0.5 * SAFETY_S)
    assert desk.doubt(["", "mail"], 2 * SAFETY_S)
    # the others trust the names until the answer is here
    assert not desk.doubt([""], 2 * SAFETY_S)
    assert desk.unnamed(range(2), ("",)) == []
    # nobody has slept on the other topic
    assert not desk.doubt(["mail"], 2 * SAFETY_S)


def test_a_list_that_was_asked_and_not_empty_does_not_know_us() -> None:
    desk = Desk()
    name(desk, A, B, MAIL)
    desk.named(desk.turns([0, 1], ("",)), [B], 1)
    assert desk.unnamed(range(2), ("",)) == [0]
    assert desk.unnamed([0], ("mail",)) == []


def test_no_message_is_ever_lost() -> None:
    """Whatever the order of comings, goings and messages: each list heard of is somebody's, or open."""
    chance = random.Random(7)
    for _ in range(300):
        desk, sleepers, unasked = Desk(), list[Sleeper](), set[List]()
        for _ in range(30):
            match chance.randrange(4):
                case 0:
                    sleepers.append(Sleeper(desk, *chance.sample(("", "mail"), chance.randint(1, 2))))
                case 1 if sleepers:
                    sleeper = sleepers.pop(chance.randrange(len(sleepers)))
                    if chance.random() < 0.5:
                        unasked -= sleeper.waiter.lists
                        sleeper.waiter.lists.clear()
                    desk.leave(sleeper.waiter)
                case _:
                    entry = (chance.randrange(3), chance.choice(("", "mail")))
                    desk.heard(entry)
                    unasked.add(entry)
        held = {entry for sleeper in sleepers for entry in sleeper.waiter.lists}
        assert unasked <= held | {entry for entry in unasked if desk.unanswered(entry)}
