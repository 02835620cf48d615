"""``make defect N=18`` shows a defect of the table in this folder's README.md on the revision before its mend.

A worktree gets the product of that revision and the tests of the mend, and an environment of its own: the packages of
this one, but ``shardq`` from the worktree, also for the processes that tests start. There the test has to fail by what
it asserts, and to pass with the product of the mend: a test that fails with both shows nothing.

The program ends with 0 when all defects that it was asked for are shown, with 1 when the test of one passes, and with 2
when this can't be told. make itself makes 2 of both.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import tomllib
import venv
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.entry import run

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("README.md")

WHOLE = "all cases"
"""Stands for their names where pytest has not told them."""

SHOWN, PASSES, UNKNOWN = range(3)
"""The exit codes, and what became of a defect."""

FILE = "the test's file"

TAKEN = (["tests"], ["tests", "cluster", "pyproject.toml"], ["tests", "cluster", "pyproject.toml", FILE], [FILE])
"""What comes from the revision of the test, tried one after the other: all tests; also what starts the servers, and
pytest's settings; of the test's file only what the test needs, as others may import what was not there; that alone.
"""

ENOUGH = 3
"""So many cases of a test that fail end it: each may take as long as pytest lets it."""

LONGEST_S = 600.0
"""For a test in one revision: longer than pytest lets ENOUGH cases of it be, but for those that it can't interrupt."""

ENDINGS = {signal.SIGINT, signal.SIGTERM}

ENDS_S = 30.0
"""For pytest to take down its servers."""

_ROW = re.compile(
    r"""
    ^\|\ (?P<number>\d+)\ \|\ (?P<did>.+?)\ \|\ (?P<found>[\w\ ]+)\ \|\ (?P<mended>\S+)\ \|
    (?:\ not\ shown:\ (?P<why>[^`|;]+?);?)?
    (?:(?:\ held\ by)?\ `(?:(?P<of>[0-9a-f]{7}):)?(?P<test>[\w/]+\.py::\w+(?:\[[^`|]+\])?)`)?
    \ \|$
    """,
    re.MULTILINE | re.VERBOSE,
)
_PLACE = re.compile(r"^(\S+\.py):\d+: in ", re.MULTILINE)
_SAID = re.compile(r"^E +(.+)", re.MULTILINE)
_ERROR = re.compile(r"^E +(\w+Error: .*)", re.MULTILINE)

ABSENT = re.compile(r"ImportError|ModuleNotFoundError|NameError|AttributeError(?!: 'NoneType')|TypeError: .*\bargument")
"""Errors by which a test asks for what the older product does not have, where no line of the product raises them."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    number: int
    did: str
    found: str
    mended: str
    why: str | None
    """The reason why no test shows it."""
    of: str | None
    """The revision that has the test, where it is not that of the mend, or where the test is not there any more."""
    test: str | None
    """The test that shows it, or that holds it today: a node of pytest below tests/."""


@dataclass(frozen=True)
class Case:
    """What became of a test with one set of its parameters."""

    name: str
    outcome: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {textwrap.shorten(self.reason, 200)}"


def rows(text: str) -> list[Row]:
    """The table of the page."""
    return [Row(int(number), *rest) for number, *rest in (each.groups() for each in _ROW.finditer(text))]


def git(*words: str, folder: Path = ROOT) -> str:
    """What git prints. Raises CalledProcessError where it fails."""
    done = subprocess.run(["git", *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """A folder with a revision, which goes in the end."""
    folder = Path(tempfile.mkdtemp(prefix="defect-"))  # short: there are sockets in it
    folder.chmod(0o755)  # a test's PostgreSQL runs as another user
    try:
        with signals_wait():
            git("worktree", "add", "--quiet", "--detach", str(folder), revision)
        yield folder
    finally:
        with signals_wait():
            end_all(folder)
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=False)
            shutil.rmtree(folder, ignore_errors=True)


def end_all(folder: Path) -> None:
    """Kills what was started from a folder and still runs: a defect may be that something does not end."""
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [""])[0].startswith(f"{folder}/"):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def signals_wait() -> Iterator[None]:
    """Holds Ctrl-C back for a moment: git keeps what it has half done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def put_environment(folder: Path) -> Path:
    """Makes ``.venv`` in a worktree: the packages and commands of this one, ``shardq`` from the worktree. Returns its
    interpreter.
    """
    home = folder / ".venv"
    venv.EnvBuilder(symlinks=True).create(home)
    scripts = Path(sysconfig.get_path("scripts", vars={"base": str(home)}))
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "shardq" not in each.name and each.name != "__pycache__":
            (packages / each.name).symlink_to(each)
    here = f"#!{Path(sysconfig.get_path('scripts'))}/python".encode()
    for each in Path(sysconfig.get_path("scripts")).iterdir():
        put = scripts / each.name
        if put.exists() or each.name == "shardq":
            continue
        content = each.read_bytes()
        if content.startswith(here):
            put.write_bytes(f"#!{scripts}/python".encode() + content[len(here) :])
            put.chmod(0o755)
        else:
            put.symlink_to(each)
    put_package(folder, packages, scripts)
    return scripts / "python"


def put_package(folder: Path, packages: Path, scripts: Path) -> None:
    """What an editable installation leaves of the worktree's package: its path, its metadata, its command."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (packages / "_shardq.pth").write_text(f"{folder}\n")
    version = project.get("version", "0")  # later ones say it where they run, from their checkout
    information = packages / f"shardq-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shardq\nVersion: {version}\n")
    groups = {"console_scripts": project["scripts"], **project.get("entry-points", {})}
    text = "\n".join([line for name, each in groups.items() for line in (f"[{name}]", *map(" = ".join, each.items()))])
    (information / "entry_points.txt").write_text(text)
    module, _, function = project["scripts"]["shardq"].partition(":")
    lines = [f"#!{scripts}/python", "import sys", f"from {module} import {function}", f"sys.exit({function}())"]
    (scripts / "shardq").write_text("\n".join([*lines, ""]))
    (scripts / "shardq").chmod(0o755)


def run_test(test: str, product: str, tests: str, taken: list[str]) -> list[Case]:
    """Runs a test of one revision on the product of another."""
    file, _, name = test.partition("::")
    whole = [each for each in taken if each != FILE] or [f"tests/{file}"]
    with worktree(product) as folder:
        for each in whole:
            shutil.rmtree(folder / each, ignore_errors=True)
        git("checkout", "--quiet", tests, "--", *whole, folder=folder)
        if FILE in taken:
            path = folder / "tests" / file
            path.write_text(alone(path.read_text(encoding="utf-8"), re.split(r"::|\[", name)[0]), encoding="utf-8")
        report = folder / "report.xml"
        plugins = [f"-pno:{plugin}" for plugin in ("cacheprovider", "benchmark", "xdist")]
        words: list[str | Path] = [
            put_environment(folder),
            "-m",
            "pytest",
            f"tests/{test}",
            *plugins,
            f"--maxfail={ENOUGH}",
            "--tb=short",
            f"--junitxml={report}",
        ]
        try:
            said = run_program(words, folder)
        except subprocess.TimeoutExpired:
            return [Case(WHOLE, "fails", f"it does not end in {LONGEST_S:g} s")]
        cases = [case_of(each) for each in ET.parse(report).iter("testcase")] if report.exists() else []
        return cases or [Case(WHOLE, "can't run", said.strip()[-500:])]


def run_program(words: Sequence[str | Path], folder: Path) -> str:
    """Returns what a program prints. It is interrupted where this is, and killed if it does not end then."""
    with subprocess.Popen(
        words,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=LONGEST_S)[0]
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(ENDS_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def alone(text: str, name: str) -> str:
    """Returns a test file with one of its tests, and the statements of the module that it needs.

    Annotations need nothing: types that are new since are not missed.
    """
    module = ast.parse(text)
    kept: set[int] = set()
    needed = {name, "annotations", "pytestmark"}
    while True:
        size = len(kept)
        for place, statement in enumerate(module.body):
            always = "autouse=True" in ast.unparse(statement) or isinstance(statement, ast.Expr)
            if place not in kept and (always or bound(statement) & needed):
                kept.add(place)
                if not isinstance(statement, ast.Import | ast.ImportFrom):
                    needed |= mentioned(statement)
        if len(kept) == size:
            break
    for statement in module.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            statement.names = [each for each in statement.names if own_name(each) in needed]
    return ast.unparse(ast.Module([module.body[place] for place in sorted(kept)], []))


def own_name(alias: ast.alias) -> str:
    """The name that an import binds."""
    return (alias.asname or alias.name).split(".")[0]


def bound(statement: ast.stmt) -> set[str]:
    """The names of the module that a statement binds."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {own_name(each) for each in statement.names}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    stored = (each for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return {each.id for each in stored}


def mentioned(node: ast.AST) -> set[str]:
    """The names, fixtures among them, that a statement uses."""
    names: set[str] = set()
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        if isinstance(value, str) and field in ("id", "arg", "value"):
            names.add(value)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                names |= mentioned(each)
    return names


def case_of(element: ET.Element) -> Case:
    """Reads a case of pytest's report."""
    name = element.get("name", "")
    for kind in ("error", "failure", "skipped"):
        if (found := element.find(kind)) is not None:
            message, text = found.get("message", ""), found.text or ""
            if kind == "skipped":
                return Case(name, "is skipped", message)
            fits = kind == "failure" or "teardown" in message
            absent = asks_for_what_is_absent(text)
            if fits and not absent:
                return Case(name, "fails", message)
            return Case(name, "can't run", "; ".join(_SAID.findall(text)[-2:]) or message)
    return Case(name, "passes", "")


def asks_for_what_is_absent(text: str) -> bool:
    """Returns True if an error is one of ABSENT, and the last line on its way is the test's, not the product's."""
    ours = [place for place in _PLACE.findall(text) if place.startswith(("tests/", "shardq/", "cluster/"))]
    errors = _ERROR.findall(text)
    return bool(ours and errors) and ours[-1].startswith("tests/") and ABSENT.match(errors[-1]) is not None


def tell(cases: list[Case]) -> None:
    """Prints how many cases passed and failed, and the first of those that did not pass."""
    counts = Counter(case.outcome for case in cases)
    print("     " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    others = [case for case in cases if case.outcome != "passes"]
    for case in sorted(others, key=lambda case: case.outcome != "fails")[:ENOUGH]:
        print(f"     {case.outcome}: {case}")


def show(row: Row) -> int:
    """Shows a defect. Returns what became of it."""
    print(f"{row.number}. {row.did}\n   found by: {row.found}; mended in: {row.mended}", flush=True)
    if row.why is not None or row.test is None:
        print(f"   not shown: {row.why}" + (f"; held by {row.test}" if row.test else ""))
        return UNKNOWN
    tests = row.of or row.mended
    before, outcome = f"{row.mended}^", UNKNOWN
    for taken in TAKEN:
        print(f"   {row.test} on {before}, with {', '.join(taken)} of {tests}:", flush=True)
        cases = run_test(row.test, before, tests, taken)
        tell(cases)
        if all(case.outcome == "passes" for case in cases):
            outcome = PASSES
        elif failed := {case.name for case in cases if case.outcome == "fails"}:
            print(f"   on {tests}:", flush=True)
            cases = run_test(row.test, tests, tests, taken)
            tell(cases)
            passed = {case.name for case in cases if case.outcome == "passes"}
            if failed & passed or (WHOLE in failed and passed):
                outcome = SHOWN
                break
    print(f"   {('shown', 'not shown: the test passes there, this time', 'can not be told')[outcome]}", flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make defect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", nargs="*", type=int, help="the numbers of rows; without one all rows are listed")
    numbers = parser.parse_args().number
    table = {row.number: row for row in rows(PAGE.read_text(encoding="utf-8"))}
    if not numbers:
        for row in table.values():
            print(f"{row.number:4}  {row.mended}  {row.did}" + (f" (not shown: {row.why})" if row.why else ""))
        return SHOWN
    if unknown := [number for number in numbers if number not in table]:
        print(f"make defect: there is no row {unknown[0]}: they go to {max(table)}", file=sys.stderr)
        return UNKNOWN
    if shutil.which("git") is None:
        print("make defect: this needs git", file=sys.stderr)
        return UNKNOWN
    for ending in ENDINGS:  # also where a shell ignores them in the background
        signal.signal(ending, signal.default_int_handler)
    try:
        return max(show(table[number]) for number in numbers)
    except subprocess.CalledProcessError:
        print("make defect: git failed: is the whole history here? git fetch --unshallow gets it", file=sys.stderr)
        return UNKNOWN


if __name__ == "__main__":
    sys.exit(run(main))
