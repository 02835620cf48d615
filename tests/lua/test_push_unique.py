"""push_unique stores ids of the caller's own by the table of conflicts, and knows what its lost first send stored."""

from __future__ import annotations

import msgspec
import pytest

from shardq.core.calls import by_id
from shardq.core.calls.by_id import Resent
from shardq.core.calls.request import Word
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.record import RAW, decode_record, encode_record
from tests.lua.shard import EPOCH, NOW, Case, Shard, State, T, at, meta, raw, record, text
from tests.support.heads import encode_head

OLD, NEW = record("old"), record("new")

WINDOW = 800

STATES: dict[str, State] = {
    "scheduled": {"task": {"a": OLD}, "due": {"a": T + 50}, "lease": {"a": "1:0::"}},
    "ready": {"task": {"a": OLD}, "ready/": ["a"], "lease": {"a": "0:1::"}},
    "leased": {"task": {"a": OLD}, "leased": {"a": T + 9}, "lease": {"a": "1:2:5:tok"}},
    "dead": {"task": {"a": OLD}, "dead": {"a": T - 9}, "why": {"a": "boom"}, "lease": {"a": "3:0::"}},
    "seen": {"seen": {"a": T + 1}},
    "gone": {},
}

STORED: State = {"task": {"a": NEW}, "due": {"a": T + 100}, "seen": {"a": T + WINDOW}, "meta": meta(wake_at=T + 100)}

REPLACED: dict[str, State] = {
    "scheduled": STORED | {"lease": None},
    "ready": STORED | {"lease": None, "ghost": {"a": "1"}, "meta": STORED["meta"] | {"ghosts/": "1"}},
    "leased": STORED | {"leased": None, "lease": {"a": "0:0::~tok"}},
    "dead": STORED | {"dead": None, "why": None, "lease": None},
    "seen": STORED,
    "gone": STORED,
}

ANSWERS = {
    "keep": {state: f"kept:{state}" for state in STATES} | {"seen": "seen", "gone": "pushed"},
    "reject": {state: f"refused:{state}" for state in STATES} | {"gone": "pushed"},
    "replace": dict.fromkeys(STATES, "replaced") | {"seen": "pushed", "gone": "pushed"},
}


def push(rule: str, *, record: str = NEW, window: Word = WINDOW, resent: Resent = "0") -> Case:
    tasks: list[Word] = ["a", -100, raw(record), rule, window]
    return Case(lambda keys: by_id.push_unique(keys, EPOCH, tasks, resent=resent).at(NOW), [])


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("state", STATES)
def test_conflicts(shard: Shard, keys: ShardKeys, rule: str, state: str) -> None:
    answer = ANSWERS[rule][state]
    after = REPLACED[state] if answer in ("pushed", "replaced") else {}
    Case(push(rule).call, ["ok", answer], STATES[state], after).check(shard, keys)


MINE, THEIRS = 0x8000_0007, 0x8000_0008
"""The nonces of two pushes that are alike in all else."""


def marked(end: int, nonce: int) -> float:
    """The end of a window that a push with this nonce opened."""
    return end - (nonce % 1023 + 1) / 2048


def stored_by(nonce: int, state: str) -> State:
    """A state in which the push with this nonce is what was executed last."""
    if state == "seen":
        return {"seen": {"a": marked(T + 1, nonce)}}
    return {name: {"a": record("new", nonce=nonce)} if name == "task" else v for name, v in STATES[state].items()}


WRITTEN: State = {"task": {"a": record("new", nonce=MINE)}, "seen": {"a": marked(T + WINDOW, MINE)}}


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("state", [state for state in STATES if state != "gone"])
def test_after_a_lost_answer_our_own_push_is_known(shard: Shard, keys: ShardKeys, rule: str, state: str) -> None:
    """Whatever became of its task since: nothing is written again."""
    case = push(rule, record=record("new", nonce=MINE), resent="1")
    Case(case.call, ["ok", "pushed"], stored_by(MINE, state)).check(shard, keys)


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("state", STATES)
def test_after_a_lost_answer_an_equal_push_of_another_is_a_conflict(
    shard: Shard, keys: ShardKeys, rule: str, state: str
) -> None:
    """The first send never arrived: replace replaces, reject refuses, keep says what is kept."""
    case = push(rule, record=record("new", nonce=MINE), resent="1")
    answer = ANSWERS[rule][state]
    after = REPLACED[state] | WRITTEN if answer in ("pushed", "replaced") else {}
    Case(case.call, ["ok", answer], stored_by(THEIRS, state), after).check(shard, keys)


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("state", ["scheduled", "ready", "leased", "dead"])
def test_after_a_lost_answer_an_equal_record_without_a_nonce_is_nobodys(
    shard: Shard, keys: ShardKeys, rule: str, state: str
) -> None:
    after = REPLACED[state] | {"task": {"a": OLD}} if rule == "replace" else {}
    case = push(rule, record=OLD, resent="1")
    Case(case.call, ["ok", ANSWERS[rule][state]], STATES[state], after).check(shard, keys)


def test_one_id_twice_in_a_call_whose_answer_was_lost(shard: Shard, keys: ShardKeys) -> None:
    """Where the later of the two is stored the earlier one is not sent again in its place."""
    first, second = (raw(record("new", nonce=nonce)) for nonce in (MINE, THEIRS))
    for rules, answers, again in [
        (("replace", "replace"), ["pushed", "replaced"], ["pushed", "pushed"]),
        (("reject", "replace"), ["pushed", "replaced"], ["pushed", "pushed"]),
        (("keep", "keep"), ["pushed", "kept:scheduled"], ["pushed", "kept:scheduled"]),
    ]:
        shard.seed({"meta": meta()})
        tasks: list[Word] = ["a", -50, first, rules[0], 0, "a", -60, second, rules[1], 0]
        call = by_id.push_unique(keys, EPOCH, tasks).at(NOW)
        # lost on its way there, and lost on its way back
        assert shard.run(call.after_loss()) == answers
        state = shard.state()
        assert shard.run(call.after_loss()) == again
        assert shard.state() == state


# ---- a window that only resends know of

HIDDEN: State = {"seen": {f"a\n{MINE}": T + WINDOW}}


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dedup", [0, WINDOW])
def test_a_window_for_resends_is_noted_with_every_answer_but_a_refusal(
    shard: Shard, keys: ShardKeys, rule: str, state: str, dedup: int
) -> None:
    answer = ANSWERS[rule][state]
    windows = STATES[state].get("seen", {}) | ({} if answer.startswith("refused:") else HIDDEN["seen"])
    stored = REPLACED[state] | WRITTEN if answer in ("pushed", "replaced") else {}
    if stored and dedup:
        windows |= WRITTEN["seen"]
    case = push(rule, record=record("new", nonce=MINE), window=f"{dedup}-{WINDOW}")
    Case(case.call, ["ok", answer], STATES[state], stored | {"seen": windows or None}).check(shard, keys)


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("state", [*STATES, "moved"])
def test_a_resend_in_its_window_counts_as_pushed_whatever_is_there_now(
    shard: Shard, keys: ShardKeys, rule: str, state: str
) -> None:
    """Its task may be done, and somebody else's be under the id."""
    before: State = {"moved": {"a": "n1|2|…"}} if state == "moved" else STATES[state]
    before = before | {"seen": before.get("seen", {}) | HIDDEN["seen"]}
    case = push(rule, record=record("new", nonce=MINE), window=f"0-{WINDOW}", resent="1")
    Case(case.call, ["ok", "pushed"], before).check(shard, keys)


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("nonce", [None, THEIRS])
def test_a_window_for_resends_is_nobody_elses(shard: Shard, keys: ShardKeys, rule: str, nonce: int | None) -> None:
    resents: tuple[Resent, ...] = ("0", "1")
    for resent in resents:
        shard.seed({"meta": meta()} | HIDDEN)
        for window in (0, WINDOW, f"0-{WINDOW}", f"{WINDOW}-{WINDOW}"):
            case = push(rule, record=record("new", nonce=nonce), window=window, resent=resent)
            assert shard.run(case.call(keys)) == ["pushed"]
            shard.do("DEL", keys.task, keys.due)
            shard.do("ZREM", keys.seen, "a")


@pytest.mark.parametrize("nonce", [None, MINE])
def test_a_window_for_resends_is_over_at_its_end(shard: Shard, keys: ShardKeys, nonce: int | None) -> None:
    tasks: list[Word] = ["a", 0, raw(record("a", nonce=nonce)), "keep", f"0-{WINDOW}"]
    for ms in (0, WINDOW - 1, 2 * WINDOW - 2, 3 * WINDOW - 2):  # it counts from the last send
        call = by_id.push_unique(keys, EPOCH, tasks, resent="1").at(at(ms))
        assert shard.run(call) == ["pushed"]
        assert bool(shard.state().get("task")) is (ms in (0, 3 * WINDOW - 2)), "stored again, or known"
        shard.do("DEL", keys.task, keys.due)


def test_without_a_window_none_is_kept(shard: Shard, keys: ShardKeys) -> None:
    Case(push("keep", window=0).call, ["ok", "pushed"], {}, STORED | {"seen": None}).check(shard, keys)


@pytest.mark.parametrize("nonce", [None, 1022, 0x8000_0000, 0xFFFF_FFFF])
def test_a_window_is_over_at_its_end(shard: Shard, keys: ShardKeys, nonce: int | None) -> None:
    first: list[Word] = ["a", 0, raw(record("a", nonce=nonce)), "keep", WINDOW]
    shard.run(by_id.push_unique(keys, EPOCH, first).at(NOW))
    shard.do("DEL", keys.task, keys.due)
    for ms, answer in ((WINDOW - 1, "seen"), (WINDOW, "pushed")):
        second: list[Word] = ["a", 0, raw(record("b", nonce=5)), "keep", 0]
        assert shard.run(by_id.push_unique(keys, EPOCH, second).at(at(ms))) == [answer]


@pytest.mark.parametrize("state", ["scheduled", "ready"])
def test_replaced_twice_the_first_holder_still_hears_it(shard: Shard, keys: ShardKeys, state: str) -> None:
    before = STATES[state] | {"lease": {"a": "0:0::~tok"}}
    Case(push("replace").call, ["ok", "replaced"], before, REPLACED[state] | {"lease": before["lease"]}).check(
        shard, keys
    )


def test_a_ready_id_replaced_again_and_again_has_a_ghost_for_each(shard: Shard, keys: ShardKeys) -> None:
    before = STATES["ready"] | {"ready/": ["a", "a"], "ghost": {"a": "1", "b": "2"}}
    after = REPLACED["ready"] | {"ghost": {"a": "2", "b": "2"}}
    Case(push("replace").call, ["ok", "replaced"], before, after).check(shard, keys)


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("resent", ["0", "1"])
def test_an_id_on_its_way_to_another_shard(shard: Shard, keys: ShardKeys, rule: str, resent: Resent) -> None:
    Case(push(rule, resent=resent).call, ["ok", "moving"], {"moved": {"a": "n1|2|…"}}).check(shard, keys)


@pytest.mark.parametrize("rule", ANSWERS)
def test_an_id_whose_parcel_was_put_where_it_goes(shard: Shard, keys: ShardKeys, rule: str) -> None:
    """Its window counts, where that is."""
    tasks: list[Word] = ["a", -100, NEW, rule, WINDOW]
    for seen, answer in (
        ({}, "elsewhere"),
        ({"seen": {"a": T + 1}}, ANSWERS[rule]["seen"].replace("pushed", "elsewhere")),
    ):
        Case(
            lambda keys: by_id.push_unique(keys, EPOCH, tasks, earlier="2").at(NOW),
            ["ok", answer],
            {"moved": {"a": "n1|2|…"}} | seen,
        ).check(shard, keys)


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("state", STATES)
def test_where_an_id_may_be_from_earlier_none_is_added(shard: Shard, keys: ShardKeys, rule: str, state: str) -> None:
    tasks: list[Word] = ["a", -100, NEW, rule, WINDOW]
    answer = ANSWERS[rule][state].replace("pushed", "elsewhere")
    Case(
        lambda keys: by_id.push_unique(keys, EPOCH, tasks, earlier="1").at(NOW),
        ["ok", answer],
        STATES[state],
        REPLACED[state] if answer == "replaced" else {},
    ).check(shard, keys)


def test_nothing(shard: Shard, keys: ShardKeys) -> None:
    Case(lambda keys: by_id.push_unique(keys, EPOCH, []).at(NOW), ["ok"]).check(shard, keys)


def test_one_id_twice_in_a_batch_meets_itself(shard: Shard, keys: ShardKeys) -> None:
    tasks: list[Word] = ["a", -50, OLD, "keep", 0, "a", -60, NEW, "keep", 0, "a", -70, NEW, "replace", 0]
    Case(
        lambda keys: by_id.push_unique(keys, EPOCH, tasks).at(NOW),
        ["ok", "pushed", "kept:scheduled", "replaced"],
        {},
        {"task": {"a": NEW}, "due": {"a": T + 70}, "meta": meta(wake_at=T + 50)},
    ).check(shard, keys)


@pytest.mark.parametrize("rule", ANSWERS)
def test_twice_changes_nothing_more(shard: Shard, keys: ShardKeys, rule: str) -> None:
    call = push(rule).call(keys)
    assert shard.run(call) == ["pushed"]
    state = shard.state()
    assert shard.run(call) == [ANSWERS[rule]["scheduled"]]
    assert shard.state() == state


def test_a_thousand(shard: Shard, keys: ShardKeys) -> None:
    mine = raw(record("new", nonce=MINE))
    tasks: list[Word] = [word for n in range(1000) for word in (f"i{n}", -n, mine, "keep", 0)]
    call = by_id.push_unique(keys, EPOCH, tasks).at(NOW)
    assert shard.run(call) == ["pushed"] * 1000
    assert shard.state()["due"] == {f"i{n}": T + n for n in range(1000)}
    assert shard.run(call) == ["kept:scheduled"] * 1000
    assert shard.run(call.after_loss()) == ["pushed"] * 1000


def dated(expires: int, *, headers: dict[str, str] | None = None, nonce: int | None = None) -> str:
    """A record that is good until an instant, or (below 0) for a time from its push."""
    stored: str = text(encode_record(RAW, b"p", encode_head(expires=expires, headers=headers, nonce=nonce)))
    return stored


def head_of(stored: bytes) -> dict[str, object]:
    """The head, read without the library."""
    head: dict[str, object] = msgspec.msgpack.decode(stored[3 : 3 + int.from_bytes(stored[1:3], "big")])
    return head


def test_a_time_to_live_becomes_an_instant_when_it_is_pushed(shard: Shard, keys: ShardKeys) -> None:
    tasks: list[Word] = ["a", 0, raw(dated(-500)), "keep", 0, "b", 0, raw(dated(T + 9)), "keep", 0]
    assert shard.run(by_id.push_unique(keys, EPOCH, tasks).at(NOW)) == ["pushed", "pushed"]
    shard.run(by_id.push(keys, EPOCH, ["c", 0, raw(dated(-500, headers={"h": "1"}))]).at(NOW))
    stored = {id: raw(record) for id, record in shard.state()["task"].items()}
    assert {id: head_of(record) for id, record in stored.items()} == {
        "a": {"x": T + 500},
        "b": {"x": T + 9},
        "c": {"x": T + 500, "h": {"h": "1"}},
    }
    assert {decode_record(record).payload for record in stored.values()} == {b"p"}


@pytest.mark.parametrize("rule", ANSWERS)
@pytest.mark.parametrize("nonce", [MINE, THEIRS])
def test_with_a_time_to_live_our_own_push_is_known_after_a_lost_answer(
    shard: Shard, keys: ShardKeys, rule: str, nonce: int
) -> None:
    """Its record was rewritten by the push; the nonce is still there."""
    first: list[Word] = ["a", 0, raw(dated(-500, headers={"x": "1"}, nonce=MINE)), rule, 0]
    shard.run(by_id.push_unique(keys, EPOCH, first).at(NOW))
    state = shard.state()
    assert head_of(raw(state["task"]["a"])) == {"x": T + 500, "h": {"x": "1"}, "n": MINE}
    again: list[Word] = ["a", 0, raw(dated(-500, headers={"x": "1"}, nonce=nonce)), rule, 0]
    answer = shard.run(by_id.push_unique(keys, EPOCH, again, resent="1").at(at(70)))
    assert answer == ["pushed" if nonce == MINE else ANSWERS[rule]["scheduled"]]
    assert (shard.state() == state) is (nonce == MINE or rule != "replace")


@pytest.mark.parametrize(("ends", "stored"), [(T, True), (T + 1, False)])
def test_what_is_noted_for_resends_is_over_at_its_end(shard: Shard, keys: ShardKeys, ends: int, stored: bool) -> None:
    shard.seed({"meta": meta(), "seen": {"a\n7": ends}})
    call = by_id.push_unique(keys, EPOCH, ["a", 5, raw(record("a", nonce=7)), "keep", "0-50"]).at(NOW).after_loss()
    assert shard.ask(call) == ["ok", "pushed"]
    assert ("task" in shard.state()) == stored


def test_a_window_of_one_ms(shard: Shard, keys: ShardKeys) -> None:
    shard.ask(
        by_id.push_unique(keys, EPOCH, ["a", 5, raw(record("a")), "keep", 1, "b", 5, raw(record("b")), "keep", 0]).at(
            NOW
        )
    )
    assert shard.state()["seen"] == {"a": T + 1}


# ---- an instant after which it is refused


@pytest.mark.parametrize("resent", ["0", "1"])
@pytest.mark.parametrize(("last_ms", "answer"), [(T, "pushed"), (T - 1, "refused:late")])
def test_a_push_after_its_last_instant_is_refused(
    shard: Shard, keys: ShardKeys, last_ms: int, answer: str, resent: Resent
) -> None:
    case = push("keep", window=f"0-{WINDOW}-{last_ms}", resent=resent)
    shard.seed({"meta": meta()})
    before = shard.state()
    assert shard.run(case.call(keys)) == [answer]
    assert (shard.state() == before) is (answer != "pushed")


@pytest.mark.parametrize("state", [*STATES])
def test_what_is_there_is_told_however_late_it_is(shard: Shard, keys: ShardKeys, state: str) -> None:
    told = "refused:late" if state == "gone" else ANSWERS["keep"][state]
    case = push("keep", window=f"0-{WINDOW}-{T - 1}")
    shard.seed({"meta": meta()} | STATES[state])
    assert shard.run(case.call(keys)) == [told]


def test_one_that_is_known_is_not_late(shard: Shard, keys: ShardKeys) -> None:
    """Whoever brings it may remove it where it was."""
    case = push("keep", record=record("new", nonce=MINE), window=f"0-{WINDOW}-{T - 1}", resent="1")
    Case(case.call, ["ok", "pushed"], HIDDEN).check(shard, keys)


def test_a_mark_that_two_pushes_share_is_no_answer_to_what_is_brought(shard: Shard, keys: ShardKeys) -> None:
    """One push of a thousand has the mark of an earlier one, whose window is open: what is brought from elsewhere, and
    replaces, would be taken for that.
    """
    twin = record("new", nonce=MINE + 1023)
    case = push("replace", record=twin, window=f"0-{WINDOW}-{T + 1}", resent="1")
    shard.seed({"meta": meta()} | {"seen": {"a": marked(T + WINDOW, MINE)}})
    assert shard.run(case.call(keys)) == ["pushed"]
    assert "a" in shard.state()["task"]
