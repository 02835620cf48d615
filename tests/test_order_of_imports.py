"""Imports go one way, as the table of ``shardq/README.md`` has them, and never in a circle; imports for typing, too."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "shardq"
FACES = {"shardq", "shardq.__main__"}
"""The package's face names what is public; ``python -m shardq`` is the command."""

AROUND = "shardq.engine.around"
"""The one file of the engine that what is around it imports, beside the names of ``shardq``."""

NAMED_BY_THE_CORE = {"sink": 10, "schedul": 9, "spool": 5, "webhook": 24, "outbox": 0, "dashboard": 2}
"""The beginning of a feature's name → how many lines of the core have it: names of keys and scripts, fields of what
processes report, and what a user writes. A number that fell is to fall here, too. None is to rise: the core knows what
is general, such as a route, an entry, a thread beside the pollers, and a feature gives it the words.
"""

_OF_TASKS = re.compile(r"(?i)reschedul|scheduled|schedules (?:tasks|a|an) ")
"""A task that waits is scheduled: that is not the feature."""

_ROW = re.compile(r"^\| ((?:`[a-z_/]+`(?:, )?)+) \|", re.MULTILINE)


def modules() -> dict[str, Path]:
    found = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


@functools.cache
def imports() -> Mapping[str, set[str]]:
    """Module → the modules of the package that it imports, wherever in its code."""
    known = modules()
    return {name: set(_imported(path, known)) - {name} for name, path in known.items() if name not in FACES}


def _imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = [
                full if (full := f"{node.module}.{alias.name}") in known else str(node.module) for alias in node.names
            ]
        else:
            continue
        yield from (name for name in names if name in known)


def places() -> dict[str, int]:
    """Module or package → its row in the table."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Reading order\n")[2].partition("\nSync and asyncio")[0]
    rows = [re.findall(r"`([a-z_/]+)`", row) for row in _ROW.findall(table)]
    assert len(rows) > 15
    return {"shardq." + each.replace("/", "."): place for place, row in enumerate(rows) for each in row}


def place_of(module: str, rows: Mapping[str, int]) -> int:
    while module not in rows:
        module, _, last = module.rpartition(".")
        assert module, f"no row of shardq/README.md has {last}"
    return rows[module]


def test_they_go_one_way() -> None:
    rows = places()
    edges = imports()
    wings = {"shardq", "shardq.core", "shardq.features"}  # packages without code of their own
    against = [
        f"{name} imports {other}, which is below it in the table"
        for name, others in sorted(edges.items())
        if name not in wings
        for other in sorted(others - wings)
        if place_of(other, rows) > place_of(name, rows)
    ]
    assert against == []


def test_there_is_no_circle() -> None:
    """Whatever imports nothing that is left goes, until nothing goes: what is left is circles, and what needs them."""
    left = {name: others - FACES for name, others in imports().items()}
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    while top := left.keys() - set().union(*left.values()):
        left = {name: others for name, others in left.items() if name not in top}
    assert {name: sorted(others & left.keys()) for name, others in left.items()} == {}


def test_what_is_around_the_engine_imports_one_file_of_it() -> None:
    rows = places()
    inside = {name for name in modules() if name == "shardq.engine" or name.startswith("shardq.engine.")}
    against = [
        f"{name} imports {other}; take it from {AROUND}, or a public name from shardq"
        for name, others in sorted(imports().items())
        if name not in ("shardq.core", "shardq.features") and place_of(name, rows) > rows["shardq.engine"]
        for other in sorted(others & inside - {AROUND})
    ]
    assert against == []


def test_every_module_has_a_place() -> None:
    rows = places()
    for name in imports():
        if name not in ("shardq.core", "shardq.features"):
            place_of(name, rows)
    for name in rows:
        assert name in modules(), f"shardq/README.md has {name}, which is not there"


def test_within_core_and_engine_each_file_has_a_name_of_its_own() -> None:
    """But those that are the same in each package: who meets a name in a traceback knows which file it is."""
    files = [path for part in ("core", "engine") for path in (PACKAGE / part).rglob("*.py")]
    counts = Counter(path.stem for path in files)
    assert {name for name, count in counts.items() if count > 1} - {"__init__", "sync", "aio"} == set()


def test_the_core_names_features_no_more_often() -> None:
    lines = [
        _OF_TASKS.sub("", line)
        for path in sorted((PACKAGE / "core").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").lower().splitlines()
    ]
    assert {word: sum(word in line for line in lines) for word in NAMED_BY_THE_CORE} == NAMED_BY_THE_CORE
