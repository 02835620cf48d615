"""Programs without the metadata of their packages, and what a spawned process is sent by mistake."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import zipapp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardq
from cluster.server import Server
from shardq import AsyncEngine, Engine, ShardqError
from tests.support.programs import plain_environment

MAIN = """
import sys, shardq
from shardq.cli import main
with shardq.Engine(sys.argv[1], name=sys.argv[2], shards=2) as engine:
    engine.start()
    engine.push("x", topic="mail", delay=3600)
    print(shardq.__version__, engine.stats().scheduled, [member.version for member in engine.fleet()])
sys.argv = ["shardq", "--version"]
sys.exit(main())
"""


def test_a_zipapp_without_metadata(own_server: Server, name: str, tmp_path: Path) -> None:
    app, packages = tmp_path / "app", tmp_path / "packages"
    shutil.copytree(Path(shardq.__file__).parent, app / "shardq", ignore=shutil.ignore_patterns("__pycache__"))
    (app / "__main__.py").write_text(MAIN)
    zipapp.create_archive(app, tmp_path / "app.pyz")
    packages.mkdir()
    for each in Path(msgspec.__file__).parents[1].iterdir():
        if "shardq" not in each.name:
            (packages / each.name).symlink_to(each)
    done = subprocess.run(
        [sys.executable, "-S", tmp_path / "app.pyz", own_server.url, name],
        env=plain_environment() | {"PYTHONPATH": os.fspath(packages)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["unknown 1 ['unknown']", "shardq unknown"]


@pytest.mark.parametrize(
    "make",
    [lambda engine: engine, lambda engine: engine.consumer(), lambda engine: engine.worker()],
    ids=["engine", "consumer", "worker"],
)
@pytest.mark.parametrize("kind", [Engine, AsyncEngine])
def test_pickling_says_what_to_do(own_server: Server, name: str, kind: Any, make: Callable[[Any], object]) -> None:
    engine = kind(own_server.url, name=name, shards=2)
    made = make(engine)
    with pytest.raises(ShardqError, match=rf"{type(made).__name__} can't be pickled, .* make it there, by a function"):
        pickle.dumps(made)
    if kind is Engine:
        engine.close()
