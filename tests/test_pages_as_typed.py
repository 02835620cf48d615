"""Every page works as typed: README, the guides, and those beside the code; each in an empty environment of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.ports import free_port
from cluster.server import Server
from tests.support.reader import ROOT, Reader, built, install_line, installed, steps

TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "shardq").rglob("*.md"))]
}
PAGES = {page: text for page, text in TEXTS.items() if any(step.kind != "file" for step in steps(text))}

Install = Callable[[str], Path]


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Makes the environment of an install line, once for each."""
    folder = tmp_path_factory.mktemp("environments")
    wheel = built(folder)
    made: dict[str, Path] = {}

    def environment(line: str) -> Path:
        if line not in made:
            made[line] = installed(folder / str(len(made)), line, wheel)
        return made[line]

    return environment


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.timeout(600)  # an environment is installed first
@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_typed(page: str, install: Install, own_server: Server) -> None:
    environment = install(install_line(PAGES[page]))
    ports = {"6379": own_server.address.rpartition(":")[2], "8000": str(free_port())}
    # the path of an embedded server's socket is short, and that of a test's own folder may not be
    with tempfile.TemporaryDirectory(prefix="typed-") as home, Reader(environment, Path(home), ports) as reader:
        reader.reads(PAGES[page])


def test_pages_have_programs() -> None:
    assert len(PAGES) > 20
