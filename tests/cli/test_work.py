"""work runs the worker of a module, in one process or several, and ends as it is told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shardq import Engine, Task
from shardq.engine.access import EngineAccess
from tests.cli.shell import LONGEST_S, Shell
from tests.support.states import claim, counted, state_of
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, gone
from tests.support.working import Note, logged, notes, sated

SHOPAPP = """
import os
from tests.support.working import Options, prepared

engine, worker = prepared(os.environ["SHARDQ_URL"], os.environ["SHARDQ_NAME"], Options(folder=".", {options}))
"""

ASYNCAPP = """
import asyncio, os, pathlib, shardq

engine = shardq.AsyncEngine(name=os.environ["SHARDQ_NAME"])

@engine.task
async def forever(note: str) -> None:
    pathlib.Path(note).touch()
    await asyncio.sleep(1000)
"""


BATCHAPP = """
import os, shardq

engine = shardq.Engine(name=os.environ["SHARDQ_NAME"])
worker = engine.worker()

@worker.on("events", batch=1000)
def store(batch: shardq.Batch[object]) -> None: ...

@worker.on("mail")
def send(delivery: shardq.Delivery) -> None: ...
"""


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """An open engine of the same name, which dispatches. It has one shard: tasks are claimed in their order."""
    with Engine(url, name=name, shards=1) as engine:
        engine.start()
        yield engine


@pytest.fixture(autouse=True)
def in_its_folder(shell: Shell, shardq: Shell, tmp_path: Path) -> None:
    shell.cwd = shardq.cwd = tmp_path


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(shardq: Shell, tmp_path: Path) -> Iterator[Start]:
    """Starts ``work`` on a worker with these options, and returns when it says that it serves."""

    def begin(*words: str, **options: object) -> subprocess.Popen[str]:
        said = ", ".join(f"{key}={value!r}" for key, value in options.items())
        (tmp_path / "shopapp.py").write_text(SHOPAPP.format(options=said))
        process = shardq.start("work", "shopapp:worker", *words)
        assert "serving (default) of" in served(process)
        return process

    yield begin
    (tmp_path / "open").touch()


def served(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def noted(folder: Path, kind: str) -> list[Note]:
    return [note for note in notes(folder) if note.kind == kind]


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Those that live."""
    return [child for child in psutil.Process(process.pid).children(recursive=True) if not gone(child)]


def busy(folder: Path, count: int) -> set[int]:
    """Waits for so many handlers to run; the processes they run in."""
    wait_until(lambda: len(noted(folder, "begun")) == count, f"{count} run", timeout=SOON_S)
    return {note.pid for note in noted(folder, "begun")}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_ends_it_when_what_runs_is_finished(
    engine: Engine, start: Start, tmp_path: Path, processes: int
) -> None:
    """The signal goes to all processes, as from systemd and terminals: it must not count twice."""
    count = 2 * processes
    ids = engine.push_many([Task("gate") for _ in range(count + 3)])
    process = start("--processes", str(processes), "--concurrency", "2", processes=3)
    pids = busy(tmp_path, count)
    assert (pids == {process.pid}) == (processes == 1)
    for pid in {process.pid, *pids}:
        os.kill(pid, signal.SIGINT if processes == 1 else signal.SIGTERM)
    wait_until(lambda: sated(tmp_path) == pids, "they claim no more", timeout=SOON_S)
    assert process.poll() is None
    (tmp_path / "open").touch()
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0
    assert err.endswith("stopped\n")
    assert "has ended" not in logged(tmp_path)
    done = {note.id for note in noted(tmp_path, "done")}
    assert len(done) == count
    rest = claim(engine.consumer(), 3)
    assert {delivery.id for delivery in rest} == set(ids) - done
    assert {delivery.attempt for delivery in rest} == {1}


@pytest.mark.slow
def test_handlers_of_batches_are_told_as_such(shardq: Shell, tmp_path: Path) -> None:
    (tmp_path / "batchapp.py").write_text(BATCHAPP)
    process = shardq.start("work", "batchapp:worker")
    assert "serving events (batches of 1,000), mail of" in served(process)
    process.terminate()
    assert process.wait(LONGEST_S) == 0
    process = shardq.start("work", "batchapp:worker", "--json")
    told = json.loads(served(process))
    assert (told["topics"], told["batches"]) == (["events", "mail"], {"events": 1000})
    process.terminate()
    assert process.wait(LONGEST_S) == 0


def test_quietly(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "asyncapp.py").write_text(ASYNCAPP)
    process = shardq.start("work", "asyncapp:engine", "--quiet")
    engine.push({"task": "asyncapp.forever", "args": ["began"], "kwargs": {}})
    wait_until((tmp_path / "began").exists, "it runs", timeout=SOON_S)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST_S)
    assert (out, "stopped" in err) == ("", False)


def test_a_second_signal_ends_it_at_once(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    """So does an asyncio engine, whose tasks are served; its coroutines are cancelled, and their tasks given back."""
    (tmp_path / "asyncapp.py").write_text(ASYNCAPP)
    process = shardq.start("work", "asyncapp:engine", "--json")
    told = json.loads(served(process))
    assert told == {
        "name": engine.name,
        "url": EngineAccess(engine).options.safe_url,
        "topics": [""],
        "batches": {},
        "concurrency": 16,
        "processes": 1,
    }
    id = engine.push({"task": "asyncapp.forever", "args": ["began"], "kwargs": {}})
    wait_until((tmp_path / "began").exists, "it runs", timeout=SOON_S)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode in (130, 143)
    assert "Traceback" not in err
    wait_until(lambda: state_of(engine, id) == "ready", "it is given back")


@pytest.mark.slow
def test_a_killed_child_is_replaced_and_a_killed_parent_takes_all_along(
    engine: Engine, start: Start, tmp_path: Path
) -> None:
    ids = engine.push_many([Task("gate") for _ in range(4)])
    process = start("--processes", "2", "--concurrency", "2", lease=5.0)
    pids = busy(tmp_path, 4)
    assert {child.pid for child in children(process)} == pids
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: {note.pid for note in noted(tmp_path, "begun")} > pids, "another works", timeout=SOON_S)
    left = children(process)
    process.kill()
    (tmp_path / "open").touch()
    wait_until(lambda: all(gone(child) for child in left), "they have ended", timeout=SOON_S)
    wait_until(lambda: {state_of(engine, id) for id in ids} == {"gone"}, "all are acknowledged", timeout=SOON_S)
    process.communicate(timeout=LONGEST_S)
    assert f"worker process {victim} has ended by SIGKILL" in logged(tmp_path)


RELOADED = """
import pathlib, os, shardq
engine = shardq.Engine(name=os.environ["SHARDQ_NAME"])

@engine.task(name="note")
def note():
    pathlib.Path("notes").open("a").write("{word} ")
"""


@pytest.mark.slow
def test_it_starts_again_when_a_file_is_saved(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    """A file with an error is shown, and is loaded when it is saved again. The end of the parent ends the child."""
    (tmp_path / "shop.py").write_text("from shoptasks import engine\n")
    tasks = tmp_path / "shoptasks.py"
    tasks.write_text(RELOADED.format(word="one"))
    process = shardq.start("work", "shop:engine", "--reload")

    def complaint(end: str) -> str:
        """What it says on stderr until a line that ends so."""
        said = ""
        while not said.endswith(f"{end}\n"):
            line = process.stderr.readline()  # type: ignore[union-attr]  # a pipe
            assert line, said
            said += line
        return said

    def does(word: str) -> None:
        assert "serving (default)" in served(process)
        engine.push({"task": "note", "args": [], "kwargs": {}})
        wait_until(lambda: (tmp_path / "notes").read_text().endswith(f"{word} "), f"it does {word}", timeout=SOON_S)

    (tmp_path / "notes").touch()
    does("one")
    tasks.write_text(RELOADED.format(word="two"))
    complaint("shoptasks.py has changed: starting again")
    does("two")
    tasks.write_text("engine = (\n")
    said = complaint("waiting until a file is saved")
    assert "SyntaxError: '(' was never closed" in said
    assert "importlib" not in said
    assert "shardq/cli" not in said
    tasks.write_text(RELOADED.format(word="three"))
    does("three")
    (child,) = children(process)
    process.kill()
    wait_until(lambda: gone(child), "it has ended", timeout=SOON_S)


PRINTING = """
import os, shardq
engine = shardq.Engine(name=os.environ["SHARDQ_NAME"])

@engine.task(topic="mail")
def send(to):
    print("mail to", to)
"""


def tasks(engine: Engine) -> int:
    stats = counted(engine)
    return stats.scheduled + stats.ready + stats.leased


def test_each_task_and_what_a_handler_prints_is_seen_at_once(
    shardq: Shell, engine: Engine, name: str, tmp_path: Path
) -> None:
    (tmp_path / "shopapp.py").write_text(PRINTING)
    process = shardq.start("work", "shopapp:engine", "-v")
    assert "serving mail of" in served(process)
    engine.push({"task": "shopapp.send", "args": ["ann@example.org"], "kwargs": {}}, topic="mail")
    assert served(process) == "mail to ann@example.org\n"
    wait_until(lambda: tasks(engine) == 0, "it is handled", timeout=SOON_S)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LONGEST_S)
    assert re.search(r"task mail/\S+ is done: shopapp.send took 0\.\d\d\d s\n", err)


FAILING = """
import shardq
engine = shardq.Engine()
raise RuntimeError("no setting")
"""


def test_a_module_that_fails_shows_its_own_traceback(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    done = shell.run("work", "failing:engine")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith('Traceback (most recent call last):\n  File "')
    assert len(re.findall("File ", done.err)) == 1
    assert done.err.endswith(
        "RuntimeError: no setting\nerror: the module 'failing' could not be imported: RuntimeError\n"
    )


def test_ctrl_c_while_the_module_is_imported(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import pathlib, time\npathlib.Path('began').touch()\ntime.sleep(1000)\n")
    process = shell.start("work", "slow:engine")
    wait_until((tmp_path / "began").exists, "it is imported", timeout=LONGEST_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out, err.strip()) == (130, "", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shoapp:engine"], "error: there is no module 'shoapp' in "),
        (["shopapp:engin", "--reload", "--processes", "2"], "--reload runs one process"),
        (["shopapp:engine", "--name", "x"], "No such option '--name'"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_exit_code_2(
    shell: Shell, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "shopapp.py").touch()
    done = shell.run("work", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err
