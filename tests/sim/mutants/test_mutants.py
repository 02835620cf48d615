"""Mutants are made of every statement, have names that last, and die by a test, by a search, by an endless loop."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from shardq.core.scripts import script
from tests.sim.branches.reached import reasons
from tests.sim.branches.scripts import sources
from tests.sim.mutants import tested
from tests.sim.mutants.killing import simulated
from tests.sim.mutants.lua import scripts_mutants
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.python import operations_mutants, sampled
from tests.sim.mutants.report import SURVIVORS
from tests.sim.mutants.subjects import place_of, put_in_place, put_scripts_in_place, scripts_of
from tests.sim.mutants.tested import Bench, Verdict, serve
from tests.sim.mutants.trials import Trial, tried

LEAST = 3500
"""Mutants of all scripts. Fewer: something is not bent any more."""


def mutant(file: str, name: str) -> Mutant:
    (found,) = (each for each in scripts_mutants()[file] if each.name == f"{file}: {name}")
    return found


def test_every_script_has_mutants_and_each_has_a_name() -> None:
    every = [each for some in scripts_mutants().values() for each in some]
    assert scripts_mutants().keys() == sources().keys()
    assert all(scripts_mutants().values())
    assert len(every) > LEAST
    assert max(Counter(each.name for each in every).values()) == 1
    assert max(Counter(each.where for each in every).values()) == 1


def test_each_is_a_change_of_its_own() -> None:
    for file, some in scripts_mutants().items():
        texts = {each.applied(sources()[file].text) for each in some}
        assert len(texts) == len(some)
        assert sources()[file].text not in texts


def test_how_statements_are_bent() -> None:
    told = {each.where.partition(" ")[2] for each in scripts_mutants()["common/draw"] if each.change.line == 9}
    assert told == {
        "while: negated", "and to or", "> to >=", "0 and one",
    }  # fmt: skip


def test_its_place_is_the_branch_around_it() -> None:
    line = "if heard > 0 then most, wakings, woken = most - 1, wakings - 1, true end"
    loop = "common/draw: loop: while most > 0 and wakings > 0 and draws > 0 do"
    assert place_of(mutant("common/draw", f"{line}: - to +")) == f"common/draw: then: {line}"
    assert place_of(mutant("common/draw", f"{line}: if: never")) == loop
    assert place_of(mutant("common/draw", "local wakings, draws = 8, 128: 8 and one")) == "common/draw: "


def test_a_mutant_of_a_part_is_one_of_all_scripts_that_use_it() -> None:
    bent = scripts_of(
        mutant(
            "common/die",
            "if added == 1 then redis.pcall('HINCRBY', KEYS[1], 'died/' .. topic_of(id), 1) end: if: never",
        )
    )
    assert sorted(bent) == ["claim", "dispatch", "forward", "settle"]
    assert all("if false then redis.pcall('HINCRBY'" in each.text for each in bent.values())


DYING = [
    (
        ("settle", "redis.call('HDEL', KEYS[2], unpack(ids, 1, good)): deleted"),
        Trial("leased", ("ack", "get"), 0),
    ),
    (
        ("take", "redis.call('HDEL', KEYS[2], unpack(taken)): deleted"),
        Trial("scheduled, not moved", ("get", "move"), 0),
    ),
    (("push_unique", "if state == 'ready' then: if: never"), Trial("ready", ("push replace", "claim"), 0)),
]


@pytest.mark.parametrize(("place", "trial"), DYING, ids=[file for (file, _), _ in DYING])
def test_a_search_kills(place: tuple[str, str], trial: Trial) -> None:
    one = mutant(*place)
    assert not trial.violation()
    verdict = simulated(one, lambda: tried([trial], 60.0), 60)
    assert verdict.is_killed
    assert verdict.by.startswith(f"{trial}: ")
    assert script(next(iter(scripts_of(one)))).text != next(iter(scripts_of(one).values())).text, "only in the fork"


@pytest.mark.slow
def test_a_search_kills_one_of_an_operation() -> None:
    module = "shardq/core/producer/commands_by_id.py"
    name = f"{module}: if shard == shards[-1] or not absent(result): if: always"
    (one,) = (each for each in operations_mutants()[module] if each.name == name)
    trial = Trial("scheduled, cleared", ("cancel", "get"), 0)
    assert not trial.violation()
    assert simulated(one, lambda: tried([trial], 60.0), 60).is_killed
    assert not trial.violation(), "only in the fork"


@pytest.mark.slow
def test_operations_have_mutants_that_can_be_put_in_place() -> None:
    every = [each for some in operations_mutants().values() for each in some]
    assert len(every) > 5000
    assert all(operations_mutants().values())
    assert max(Counter(each.name for each in every).values()) == 1
    assert len(sampled(40, 1)) > 35
    assert sampled(40, 1) == sampled(40, 1) != sampled(40, 2)


def test_a_harmless_one_survives() -> None:
    one = mutant("common/record", r"local NONCE_ALONE = '\0\8\129\161n\206': no value")
    trials = [trial for _, trial in DYING]
    assert not simulated(one, lambda: tried(trials, 60.0), 60).is_killed


TESTS = Path(__file__).parents[2] / "lua" / "test_epoch_guard.py"


@pytest.mark.slow
def test_tests_kill_and_an_endless_loop_is_ended() -> None:
    ours, theirs = (spawn := multiprocessing.get_context("spawn")).Pipe()
    process = spawn.Process(target=_bench, args=(theirs,))
    process.start()
    theirs.close()
    killed, survives, endless = ours.recv()
    process.join(30)
    ours.close()
    assert killed.is_killed
    assert "test_epoch_guard" in killed.by
    assert not survives.is_killed
    assert endless == Verdict(True, "a script that does not end", endless.seconds)


def _bench(pipe: Connection) -> None:
    tested.BUSY_MS = 300

    def work(bench: Bench) -> None:
        tests = list(bench.items)
        bent = mutant("common/guard", "if ARGV[1] ~= meta[1] then: if: never")
        harmless = mutant("common/record", r"local NONCE_ALONE = '\0\8\129\161n\206': no value")
        endless = {"seal": type(script("seal")).of("seal", "while true do end\n" + script("seal").text)}
        on_a_server = [test for test in tests if "by_the_clock" in test]
        pipe.send(
            (
                bench.judged(lambda: put_in_place(bent), tests, 100.0),
                bench.judged(lambda: put_in_place(harmless), tests[:20], 100.0),
                bench.judged(lambda: put_scripts_in_place(endless), on_a_server, 100.0),
            )
        )

    serve([TESTS], work)


def test_reasons_are_of_mutants_that_there_are() -> None:
    names = {each.name for some in scripts_mutants().values() for each in some}
    for name, reason in reasons(SURVIVORS, "mutants").items():
        assert name in names, name
        assert reason.endswith("."), reason
