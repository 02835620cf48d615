"""How a mutant dies: in stages, the cheapest first, each in a fork of a process that has everything imported.

1. the tests that are most likely to find it, up to the first that fails;
2. a few small searches and simulated runs that come by its place;
3. all other tests that come by it;
4. such runs for a minute of the processor's time, and then others.

A process that serves (``Killer``) is one pytest session: see ``tested``.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tests.sim.branches.scripts import is_of_lanes, sources, users_of
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.subjects import Subject, place_of, put_in_place, tests_of
from tests.sim.mutants.tested import Bench, Verdict, forked, with_keys
from tests.sim.mutants.trials import Known, Trials, runs, tried

QUICK_SEARCHES, QUICK_RUNS, QUICK_CPU_S = 4, 5, 40

MINUTE_S = 60.0

LIKELY = 400
"""Tests in the first stage, and at once."""

TESTS_S = 300.0
"""Far more than so many tests take, also those that wait, on a busy machine."""

MEMORY = 4 << 30
"""Of a fork that simulates: an endless loop must not take the machine's."""


class Result(msgspec.Struct):
    """What became of a mutant."""

    name: str
    where: str
    digest: str
    """Of the file with the change."""
    tried: str
    """The last stage that was tried."""
    is_killed: bool
    """By that one."""
    what: str
    """The test or the trial, and what it says."""

    @property
    def killed_by(self) -> str:
        return self.tried if self.is_killed else ""


class Survey(msgspec.Struct):
    """What tests and trials come by. Made once, for all mutants."""

    tests_digest: str
    tests: dict[str, tuple[list[str], float]]
    """Test → scripts that it sends (``with_keys`` where they have lanes), or ``MODULE:LINE``, and its time."""
    trials_digest: str
    trials: list[Known]


@dataclass
class Killer:
    subject: Subject
    bench: Bench
    survey: Survey

    def __post_init__(self) -> None:
        self._trials = Trials(self.survey.trials)
        self._lately: dict[str, Counter[str]] = {}

    def judged(self, mutant: Mutant, digest: str, stages: Sequence[str]) -> Result:
        """Tries one stage after the other."""
        verdict, stage = Verdict(False), ""
        for stage in stages:
            verdict = getattr(self, f"_{stage}")(mutant)
            if verdict.is_killed:
                break
        return Result(mutant.name, mutant.where, digest, stage, verdict.is_killed, verdict.by.strip()[:600])

    def _tests(self, mutant: Mutant) -> Verdict:
        lately = self._lately.setdefault(mutant.file, Counter())
        known = [test for test, _ in lately.most_common(8)]
        tests = [*known, *(test for test in self._tests_of(mutant)[:LIKELY] if test not in known)]
        return self._by_tests(mutant, tests)

    def _rest(self, mutant: Mutant) -> Verdict:
        tests = self._tests_of(mutant)
        verdict = Verdict(False)
        for first in range(LIKELY, len(tests), LIKELY):  # in parts, as each has its time
            verdict = self._by_tests(mutant, tests[first : first + LIKELY])
            if verdict.is_killed:
                break
        return verdict

    def _by_tests(self, mutant: Mutant, tests: Sequence[str]) -> Verdict:
        lately = self._lately.setdefault(mutant.file, Counter())
        if not tests:
            return Verdict(False)
        verdict = self.bench.judged(lambda: put_in_place(mutant), tests, TESTS_S)
        if verdict.is_killed and verdict.by in self.survey.tests:
            if self.subject.is_timed and self.bench.judged(lambda: None, [verdict.by], TESTS_S).is_killed:
                return self._by_tests(mutant, tests[tests.index(verdict.by) + 1 :])
            lately[verdict.by] += 1
        return verdict

    def _tests_of(self, mutant: Mutant) -> list[str]:
        if mutant.file not in sources():
            subjects = [f"{mutant.file}:{mutant.change.line}"]
        else:
            users = users_of(mutant.file)
            subjects = [*([] if is_of_lanes(mutant.file) else users), *map(with_keys, users)]
        tests = [test for test in tests_of(subjects, self.survey.tests) if test in self.bench.items]
        if is_of_lanes(mutant.file):
            # first those in which many scripts meet on the same lanes
            tests.sort(key=lambda test: -len(set(subjects).intersection(self.survey.tests[test][0])))
        return tests

    def _quick(self, mutant: Mutant) -> Verdict:
        trials = self._trials.of(place_of(mutant))
        some = [trial for trial in trials if trial.kinds][:QUICK_SEARCHES]
        some += [trial for trial in trials if not trial.kinds][:QUICK_RUNS]
        return simulated(mutant, lambda: tried(some, QUICK_CPU_S / 2), QUICK_CPU_S)

    def _minute(self, mutant: Mutant) -> Verdict:
        trials = self._trials.of(place_of(mutant))
        before = {trial.seed for trial in trials if not trial.kinds}
        others = (trial for trial in runs() if trial.seed not in before)

        def work() -> str:
            return tried(trials, MINUTE_S * 0.8) or tried(others, MINUTE_S * 0.2)

        return simulated(mutant, work, int(MINUTE_S * 2 + 60))


def simulated(mutant: Mutant, trying: Callable[[], str], cpu_s: int) -> Verdict:
    """Tries trials in a fork that has the mutant, and ends it after so much time of the processor."""

    def work() -> str:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        put_in_place(mutant)
        return trying()

    return forked(work, most_s=cpu_s * 20, cpu_s=cpu_s)


def come_by(subject: Subject, bench: Bench) -> dict[str, tuple[list[str], float]]:
    """Runs all tests of a session once. Returns the scripts that each sends, or the lines that it comes by, and how
    long it takes. One that fails is left out.
    """
    told = {}
    for test, item in bench.items.items():
        began = time.monotonic()
        passed, met = bench.lines(item, subject.modules) if subject.modules else bench.calls(item)
        if passed:
            told[test] = sorted(met), time.monotonic() - began
    return told
