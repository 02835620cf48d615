"""The page on other languages, typed: curl and Node, and Go in the slow tests; and ledgers of what its programs push
and work on while the gateway is killed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.ports import free_port
from cluster.server import Server
from shardq import AsyncEngine, Engine
from shardq.http import app
from shardq.http.server import served
from tests.support.languages import needed
from tests.support.programs import Program
from tests.support.reader import ROOT, Reader
from tests.support.waiting import wait_until

PAGE = (ROOT / "shardq/guide/other-languages.md").read_text(encoding="utf-8")

LONG_S = 240.0


@pytest.fixture
def engine(single: Server, name: str) -> Iterator[Engine]:
    with Engine(single.url, name=name, shards=4) as engine:
        engine.start()
        yield engine


def test_what_the_page_shows_works_as_typed(engine: Engine, single: Server, name: str, tmp_path: Path) -> None:
    """All but the lines of shardq itself: the gateway runs here already."""
    needed("curl", "node")
    shown = AsyncEngine(single.url, name=name)
    application = app(shown)

    async def close() -> None:
        await application.close()
        await shown.close()

    with served(application, "127.0.0.1", close=close) as url:
        ports = {"8787": url.rpartition(":")[2], "6379": single.address.rpartition(":")[2]}
        with Reader(Path(sys.prefix), tmp_path, ports) as reader:
            reader.reads(re.sub(r"^shardq .*\n|^export SHARDQ_.*\n", "", PAGE, flags=re.MULTILINE))


# ---- ledgers


@contextmanager
def programs_of(language: str, folder: Path, door: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Gives what runs the page's program for a command, push or work, with its words; and what it prints."""
    for name, text in re.findall(r"^```\w+\n// ([\w.]+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text, encoding="utf-8")
    if language == "go":
        subprocess.run(["go", "build", "-o", "worker", "worker.go"], cwd=folder, check=True, timeout=LONG_S)
    running: list[subprocess.Popen[str]] = []

    def begun(command: str, *words: str) -> subprocess.Popen[str]:
        program = ["./worker", command] if language == "go" else ["node", f"{command}.mjs"]
        out = folder / f"{command}-{len(running)}.out"
        with out.open("w") as file:
            variables = os.environ | {"SHARDQ_DOOR": door}
            running.append(subprocess.Popen([*program, *words], cwd=folder, stdout=file, env=variables, text=True))
        return running[-1]

    try:
        yield begun
    finally:
        for each in running:
            if each.poll() is None:
                each.terminate()
        for each in running:
            each.wait(60)


@pytest.mark.parametrize(
    ("language", "count", "kills"),
    [
        pytest.param("node", 20_000, 3, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param("go", 20_000, 3, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_nothing_is_lost_or_doubled_though_the_gateway_is_killed(
    language: str, count: int, kills: int, engine: Engine, single: Server, name: str, tmp_path: Path
) -> None:
    """A push program and two workers, and a gateway that is begun anew after each SIGKILL."""
    needed(language)
    port = str(free_port())
    variables = {"SHARDQ_URL": single.url, "SHARDQ_NAME": name}

    def gateway() -> Program:
        serving = Program("-m", "shardq", "serve", "--port", port, variables=variables, logs=True)
        serving.matching(r"serving .* at http")
        return serving

    def handled() -> list[str]:
        texts = [path.read_text() for path in tmp_path.glob("work-*.out")]
        return [line.split()[0] for text in texts for line in text.splitlines()]

    serving = gateway()
    try:
        with programs_of(language, tmp_path, f"http://127.0.0.1:{port}") as begun:
            workers = [begun("work", "letters") for _ in range(2)]
            push = begun("push", "letters", str(count))
            for kill in range(1, kills + 1):
                wait_until(lambda: len(handled()) > count * kill // (kills + 2), "a part is done", timeout=LONG_S)  # noqa: B023
                serving.end()
                serving = gateway()
            wait_until(lambda: len(handled()) >= count, "all are done", timeout=LONG_S)
            assert push.wait(60) == 0
            wait_until(lambda: not engine.stats().leased, "all are settled", timeout=LONG_S)
            assert [each.poll() for each in workers] == [None, None]
    finally:
        serving.end()
    seen = Counter(handled())
    assert sorted(seen) == sorted(f"letters/n-{n}" for n in range(count))
    assert [id for id, times in seen.items() if times > 1] == []
    stats = engine.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)
