"""A pushed function has the same name in the program that is run and in those that import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENDS_S = 60.0
"""For a program on a busy machine."""

APP = """
import shardq

engine = shardq.Engine("redis://127.0.0.1:1")

@engine.task
def send(): ...

if __name__ == "__main__":
    print(send.name)
"""


def ran(folder: Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, input=text, capture_output=True, text=True, timeout=ENDS_S, check=False
    )


def written(folder: Path, file: str, text: str) -> None:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("words", "file", "package", "name"),
    [
        (["shopapp.py"], "shopapp.py", False, "shopapp.send"),
        (["-m", "shopapp"], "shopapp.py", False, "shopapp.send"),
        (["-m", "cProfile", "-o", "profile", "shopapp.py"], "shopapp.py", False, "shopapp.send"),
        (["-m", "shop.app"], "shop/app.py", True, "shop.app.send"),
        (["shop/app.py"], "shop/app.py", True, "shop.app.send"),
        (["-m", "shop"], "shop/__main__.py", True, "shop.__main__.send"),
        (["shop"], "shop/__main__.py", True, "shop.__main__.send"),
    ],
    ids=str,
)
def test_a_program_is_known_by_the_name_it_is_imported_by(
    tmp_path: Path, words: list[str], file: str, package: bool, name: str
) -> None:
    written(tmp_path, file, APP)
    if package:
        written(tmp_path, "shop/__init__.py", "")
    done = ran(tmp_path, *words)
    assert (done.stdout, done.returncode) == (f"{name}\n", 0), done.stderr
    # as another process knows it
    module = name.removesuffix(".send")
    other = ran(tmp_path, "-c", f"import importlib; print(importlib.import_module({module!r}).send.name)")
    assert (other.stdout, other.returncode) == (f"{name}\n", 0), other.stderr


def test_a_decorated_function_is_known_by_where_it_is(tmp_path: Path) -> None:
    written(
        tmp_path,
        "deco.py",
        "import functools\n\ndef deco(f):\n    @functools.wraps(f)\n    def g(*a): return f(*a)\n    return g\n",
    )
    written(
        tmp_path,
        "shopapp.py",
        APP.replace("@engine.task", "@engine.task\n@deco.deco").replace("import", "import deco,"),
    )
    done = ran(tmp_path, "shopapp.py")
    assert (done.stdout, done.returncode) == ("shopapp.send\n", 0), done.stderr


def test_a_process_that_is_spawned_knows_it_by_the_same_name(tmp_path: Path) -> None:
    spawn = """
    import multiprocessing
    child = multiprocessing.get_context("spawn").Process(target=tell)
    child.start()
    child.join()
"""
    written(tmp_path, "shopapp.py", APP.replace("if __name__", "def tell(): print(send.name)\n\nif __name__") + spawn)
    done = ran(tmp_path, "shopapp.py")
    assert (done.stdout, done.returncode) == ("shopapp.send\nshopapp.send\n", 0), done.stderr


@pytest.mark.parametrize("words", [["-"], ["-c", APP], ["shop"]], ids=["stdin", "-c", "folder"])
def test_where_nobody_can_import_it_from_a_name_is_demanded(tmp_path: Path, words: list[str]) -> None:
    written(tmp_path, "shop/__main__.py", APP)  # and no __init__.py
    done = ran(tmp_path, *words, text=APP)
    assert done.returncode == 1
    assert "nobody else can import send from where it is defined" in done.stderr
    assert 'give one: @engine.task(name="…")' in done.stderr
    named = ran(tmp_path, "-", text=APP.replace("@engine.task", "@engine.task(name='send')"))
    assert (named.stdout, named.returncode) == ("send\n", 0), named.stderr
