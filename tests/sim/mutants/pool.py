"""Several processes that judge mutants, what they need to know, and the results that are kept."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec

from tests.sim.branches.reached import ROOT
from tests.sim.branches.scripts import sources
from tests.sim.mutants.killing import Killer, Result, Survey, come_by
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.subjects import Subject
from tests.sim.mutants.tested import Bench, serve
from tests.sim.mutants.trials import runs, searches, surveyed

SURVEY_CPU_S = 25.0

SIMULATED = (
    "shardq/lua",
    "shardq/core",
    "tests/judge",
    *(f"tests/sim/{each}" for each in ("model", "runs", "search", "world")),
)
"""By these folders it is known if a survey of trials is still true."""

_SPAWN = multiprocessing.get_context("spawn")


class Pool:
    def __init__(self, subject: Subject, folder: Path, jobs: int, until: str = "") -> None:
        self._subject = subject
        self._folder = folder / subject.name
        self._jobs = jobs
        last = subject.stages.index(until) if until in subject.stages else len(subject.stages) - 1
        self._stages = subject.stages[: last + 1]
        self._folder.mkdir(parents=True, exist_ok=True)

    def judged(self, mutants: Sequence[Mutant], *, again: str = "") -> dict[str, Result]:
        """The results of all these mutants, by name. ``again``: judges ``all`` anew, or the ``survivors``."""
        known = {} if again == "all" else self._known()
        if again == "survivors":
            known = {name: result for name, result in known.items() if result.is_killed}
        left = [(mutant, stages) for mutant in mutants if (stages := self._left(mutant, known.get(mutant.name)))]
        if left:
            survey = self._survey()
            began = time.monotonic()
            with (self._folder / "results.jsonl").open("ab") as file:
                for done, result in enumerate(self._judged(left, survey), 1):
                    known[result.name] = result
                    file.write(msgspec.json.encode(result) + b"\n")
                    file.flush()
                    told = f"killed by {result.killed_by}" if result.killed_by else "SURVIVES"
                    if not result.killed_by or done % 25 == 0 or done == len(left):
                        print(
                            f"{done} of {len(left)}, {time.monotonic() - began:.0f} s: {result.where} {told}",
                            flush=True,
                        )
        return {mutant.name: known[mutant.name] for mutant in mutants}

    def _known(self) -> dict[str, Result]:
        """What was found earlier, the last of each mutant."""
        file = self._folder / "results.jsonl"
        lines = file.read_bytes().splitlines() if file.exists() else []
        return {result.name: result for result in (msgspec.json.decode(line, type=Result) for line in lines)}

    def _left(self, mutant: Mutant, result: Result | None) -> Sequence[str]:
        """The stages that are still to be tried."""
        if result is None or result.digest != digest_of(mutant):
            return self._stages
        if result.is_killed:
            return []
        tried = self._subject.stages.index(result.tried) + 1
        return [stage for stage in self._stages if stage not in self._subject.stages[:tried]]

    def _survey(self) -> Survey:
        """What tests and trials come by; from the file, if nothing has changed since it was written."""
        file = self._folder / "survey.msgpack"
        survey = Survey("", {}, "", [])
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError, FileNotFoundError):
            survey = msgspec.msgpack.decode(file.read_bytes(), type=Survey)
        digests = _digest((*self._subject.folders, *self._subject.sources)), _digest(SIMULATED)
        if (survey.tests_digest, survey.trials_digest) != digests:
            print("looking at what tests and simulated runs come by, for some minutes", flush=True)
            with _Worker(self._subject, self._folder, "survey") as worker:
                worker.send((survey, *digests))
                file.write_bytes(worker.answer())
            survey = msgspec.msgpack.decode(file.read_bytes(), type=Survey)
        return survey

    def _judged(self, mutants: Sequence[tuple[Mutant, Sequence[str]]], survey: Survey) -> Iterator[Result]:
        left = _mixed(mutants)
        with contextlib.ExitStack() as stack:
            workers: dict[Connection, _Worker] = {}
            for number in range(min(self._jobs, len(mutants))):
                worker = stack.enter_context(_Worker(self._subject, self._folder, f"{number}"))
                worker.send(survey)
                workers[worker.connection] = worker
            for worker in list(workers.values()):
                worker.send(next(left, None))
            while workers:
                for connection in wait(list(workers)):
                    assert isinstance(connection, Connection)
                    worker = workers[connection]
                    try:
                        yield msgspec.msgpack.decode(worker.answer(), type=Result)
                    except EOFError:
                        raise RuntimeError(f"a process has ended: see {worker.log}") from None
                    following = next(left, None)
                    worker.send(following)
                    if following is None:
                        del workers[connection]


def digest_of(mutant: Mutant) -> str:
    text = sources()[mutant.file].text if mutant.file in sources() else (ROOT / mutant.file).read_bytes()
    return hashlib.sha1(mutant.applied(text)).hexdigest()


def _mixed(mutants: Sequence[tuple[Mutant, Sequence[str]]]) -> Iterator[tuple[Mutant, Sequence[str]]]:
    """One of each file after the other: so a part of the whole tells of all."""
    by_file: dict[str, list[tuple[Mutant, Sequence[str]]]] = {}
    for mutant, stages in mutants:
        by_file.setdefault(mutant.file, []).append((mutant, stages))
    return (each for each in chain.from_iterable(zip_longest(*by_file.values())) if each is not None)


def _digest(folders: Iterable[str]) -> str:
    digest = hashlib.sha1()
    for folder in folders:
        for suffix in ("*.lua", "*.py"):
            for file in sorted((ROOT / folder).rglob(suffix)):
                digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()


class _Worker:
    """A process of its own, at the end of a pipe. Context manager."""

    def __init__(self, subject: Subject, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        self.connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serving, args=(subject, theirs, str(self.log), name == "survey"))
        self._process.start()
        theirs.close()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()

    def send(self, what: Any) -> None:
        self.connection.send(what)

    def answer(self) -> bytes:
        return self.connection.recv_bytes()


def _serving(subject: Subject, pipe: Connection, log: str, is_survey: bool) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def work(bench: Bench) -> None:
        if is_survey:
            survey, tests, trials = pipe.recv()
            if survey.tests_digest != tests:
                survey.tests_digest, survey.tests = tests, come_by(subject, bench)
            if survey.trials_digest != trials and not {"quick", "minute"}.isdisjoint(subject.stages):
                survey.trials_digest = trials
                survey.trials = surveyed(searches(), subject.modules, SURVEY_CPU_S)
                survey.trials += surveyed(runs(), subject.modules, SURVEY_CPU_S)
            pipe.send_bytes(msgspec.msgpack.encode(survey))
            return
        killer = Killer(subject, bench, pipe.recv())
        with contextlib.suppress(EOFError):
            while (following := pipe.recv()) is not None:
                mutant, stages = following
                pipe.send_bytes(msgspec.msgpack.encode(killer.judged(mutant, digest_of(mutant), stages)))

    serve([ROOT / each for each in subject.folders], work, subject.marks)
