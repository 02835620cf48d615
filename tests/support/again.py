"""A pytest plugin, ``-p tests.support.again``, for ``make test`` and its like: what failed is run once more at the end,
alone. On a busy machine a test can lose a race of its own, one in some thousands.

What passes then is "passed alone", and the closing line of the run counts and names it; above stands how it failed at
first. What fails again is red, and so is each failure of the tests in ``ONCE``, which get no second try: they look for
losses that come once in many runs. If more than ``MOST`` fail, the cause is not the machine, and none is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path, PurePath

import pytest

ONCE = frozenset({"ledger", "faults", "keys", "resharding", "sim"})
"""Folders, and marks, of tests without a second try."""

MOST = 20

OUTCOMES = "--outcomes"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OUTCOMES, type=Path, help="the second run: write the outcome of each part of a test into this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption(OUTCOMES)) is not None:
        config.pluginmanager.register(Recorder(file))
    elif not hasattr(config, "workerinput"):  # one of the processes of xdist
        config.pluginmanager.register(SecondTry(config))


class Recorder:
    """In the second run: writes down what became of each test."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            print(json.dumps([report.nodeid, report.when, report.outcome]), file=file)


class SecondTry:
    """In the first run: has the failed tests run again, and changes their outcome."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: dict[str, list[pytest.TestReport]] = {}
        """Test → its reports, of the tests that failed."""
        self._told = ""
        self._passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reports.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Behind all tests, and before the session is judged by the number of those that failed."""
        result = yield
        tried = [id for id, reports in self._reports.items() if not any(map(is_of_once, reports))]
        if len(self._reports) > MOST:
            self._told = f"{len(self._reports)} tests failed: none is run again, as they are more than {MOST}"
        elif tried:
            self._passed, self._told = self._run(tried)
            for id in self._passed:
                session.testsfailed -= len(self._reports[id])
            self._move()
        return result

    def _run(self, tests: Sequence[str]) -> tuple[list[str], str]:
        """Runs these tests, one at a time, with the options of this run. Returns those that pass, and what pytest said
        of the others.
        """
        given = {*self._config.option.file_or_dir}
        words = [word for word in self._config.invocation_params.args if word not in given]
        places = [str(self._config.rootpath / id) for id in tests]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "outcomes"
            file.touch()
            alone = ["--numprocesses", "0", "-m", "", "-p", "no:cacheprovider", "-q", "--no-header", "-rN"]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *words, *alone, OUTCOMES, str(file), *places],
                cwd=self._config.invocation_params.dir,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            parts = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        good = {id for id, when, outcome in parts if when == "teardown" and outcome == "passed"}
        good -= {id for id, _, outcome in parts if outcome != "passed"}
        passed = [id for id in tests if id in good]
        return passed, "" if len(passed) == len(tests) else done.stdout

    def _move(self) -> None:
        """Counts what passed alone as that, and not as failed."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None or not self._passed:
            return
        names = ", ".join(dict.fromkeys(id.rpartition("::")[2].partition("[")[0] for id in self._passed))
        stats = reporter.stats
        for kind in ("failed", "error", "passed"):
            rest = [each for each in stats.pop(kind, []) if getattr(each, "nodeid", "") not in self._passed]
            if rest:
                stats[kind] = rest
        stats[f"passed alone ({names})"] = [self._reports[id][0] for id in self._passed]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._passed:
            terminalreporter.section("failed at first, passed alone", yellow=True)
            for report in (report for id in self._passed for report in self._reports[id]):
                terminalreporter.line(f"{report.nodeid} ({report.when})", yellow=True)
                terminalreporter.line(report.longreprtext)
        if self._told:
            terminalreporter.section("run again, alone")
            terminalreporter.line(self._told)


def is_of_once(report: pytest.TestReport) -> bool:
    folders = PurePath(report.nodeid.partition("::")[0]).parts[:-1]
    return not ONCE.isdisjoint(folders) or not ONCE.isdisjoint(report.keywords)
