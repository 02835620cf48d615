"""Every page works as typed: README, the guides, and those beside the code; each in an empty environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.ports import free_port
from cluster.server import Server
from tests.support.languages import needed
from tests.support.reader import ROOT, Reader, built, install_line, installed, steps

TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "shardq").rglob("*.md"))]
}
PAGES = {page: text for page, text in TEXTS.items() if any(step.kind != "file" for step in steps(text))}

Install = Callable[[str], Path]


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Makes the environment of an install line, once for each, for all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "environments"
    folder.mkdir(exist_ok=True)

    def made(name: str, make: Callable[[Path], object]) -> Path:
        path, done = folder / name, folder / f"{name}.done"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                make(path)
                done.touch()
        return path

    def environment(line: str) -> Path:
        [wheel] = made("wheel", built).glob("shardq-*.whl")
        words = hashlib.sha256(line.encode()).hexdigest()[:16]
        return made(words, lambda path: installed(path, line, wheel))

    return environment


@pytest.mark.promise
@pytest.mark.slow
@pytest.mark.timeout(600)  # an environment is installed first
@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_typed(page: str, install: Install, own_server: Server) -> None:
    needed(*(word for word in ("curl", "node") if re.search(rf"^(timeout \d+ )?{word} ", PAGES[page], re.MULTILINE)))
    environment = install(install_line(PAGES[page]))
    ports = {"6379": own_server.address.rpartition(":")[2], "8000": str(free_port()), "8787": str(free_port())}
    # the path of an embedded server's socket is short, and that of a test's own folder may not be
    with tempfile.TemporaryDirectory(prefix="typed-") as home, Reader(environment, Path(home), ports) as reader:
        reader.reads(PAGES[page])


def test_pages_have_programs() -> None:
    assert len(PAGES) > 20
