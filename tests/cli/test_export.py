"""export and import: into another engine, through a pipe and a packed file, killed, cut off, by users of each role."""

from __future__ import annotations

import gzip
import json
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.cli.acl import rules
from tests.cli.ledger import lines
from tests.cli.shell import LONGEST_S, ON_BOTH, SCRIPT, Shell
from tests.support.states import FAR_S, claim, ready_of
from tests.support.waiting import wait_until


@pytest.fixture
def full(engine: Engine) -> Engine:
    engine.start()
    engine.push_many([Task({"n": n}, delay=FAR_S, topic="mail") for n in range(200)])
    engine.push("x", topic="work")
    wait_until(lambda: ready_of(engine, "work") == 1, "it is ready")
    consumer = engine.consumer("work")
    consumer.bury(claim(consumer, 1), "no")
    engine.limit("mail", rate=5)
    engine.stop()
    return engine


@pytest.fixture
def other(url: str, name: str) -> str:
    return f"{name}.to"


def exported(shardq: Shell, *words: str) -> list[Any]:
    """The tasks of an export, in the order of their ids."""
    done = shardq.run("export", *words)
    assert done.code == 0
    return sorted((line for line in done.objects if "state" in line), key=lambda line: str(line["id"]))


@ON_BOTH
def test_through_a_pipe(shardq: Shell, full: Engine, other: str) -> None:
    words = f"{SCRIPT} export | {SCRIPT} import - --name {other}"
    done = subprocess.run(
        ["sh", "-c", words], env=shardq.environment, capture_output=True, text=True, check=True, timeout=LONGEST_S
    )
    # the lines of both commands come in any order
    told = sorted(done.stderr.splitlines())
    assert [line for line in told if "there was no engine named" not in line] == [
        "201 restored, 1 topic",
        "204 lines",
    ]
    assert f"there was no engine named '{other}'" in done.stderr
    assert exported(shardq) == exported(shardq, "--name", other)


def test_a_line_of_a_list_is_a_line_of_an_export(shardq: Shell, full: Engine, other: str) -> None:
    listed = shardq.run("list", "--all", "--json")
    assert sorted(listed.objects, key=lambda line: str(line["id"])) == exported(shardq)
    done = shardq.run("import", "-", "--name", other, stdin=listed.out)
    assert (done.code, done.err.splitlines()[-1]) == (0, "201 restored")
    one = shardq.run("get", listed.objects[0]["id"], "--json")
    assert (
        one.out == shardq.run("get", listed.objects[0]["id"], "--json", "--name", other).out == f"{listed.lines[0]}\n"
    )


def test_a_packed_file(shardq: Shell, full: Engine, other: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl.gz"
    text = shardq.run("export", "--topic", "mail").out.encode()
    file.write_bytes(gzip.compress(text))
    would = shardq.run("import", str(file), "--dry-run")
    assert (would.code, would.err) == (0, "it would be: 0 restored, 200 kept, 1 topic\n")
    words = ("import", str(file), "--name", other)
    assert shardq.run(*words).err.splitlines()[-1] == "200 restored, 1 topic"
    assert exported(shardq, "--topic", "mail") == exported(shardq, "--name", other)
    file.write_bytes(gzip.compress(text)[:-200])
    cut = shardq.run(*words)
    assert cut.code == 1
    assert cut.err.splitlines()[-1].startswith("the lines were cut off")


def test_a_file_that_was_cut_off(shardq: Shell, full: Engine, other: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    text = shardq.run("export").out
    file.write_text(text[: len(text) // 2])
    done = shardq.run("import", str(file), "--name", other, "--json")
    assert done.code == 1
    *_, account = done.objects
    assert (account["cut"], account["bad"], account["whole"]) == (True, 1, True)
    # the whole one then brings the rest
    file.write_text(text)
    done = shardq.run("import", str(file), "--name", other)
    assert (done.code, exported(shardq)) == (0, exported(shardq, "--name", other))


def test_a_dry_run_makes_no_engine(shardq: Shell, full: Engine, other: str) -> None:
    done = shardq.run("import", "-", "--dry-run", "--name", other, stdin=shardq.run("export").out)
    assert done.code == 1
    assert f"there is no engine named '{other}'" in done.err


def test_ids_with_a_slash_are_whole(shardq: Shell, engine: Engine) -> None:
    source = lines([{"payload": 1, "id": "mail/a"}, {"payload": 2, "id": "calls/k/b", "delay": 60}])
    done = shardq.run("import", "-", "--ids", "--topic", "other", stdin=source)
    assert (done.code, done.lines) == (0, ["mail/a", "calls/k/b"])


def test_a_rate(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(lines({"payload": n, "delay": 3600} for n in range(60)))
    process = shardq.start("import", str(file), "--rate", "60/s")
    wait_until(lambda: engine.stats().scheduled, "some are stored")
    assert engine.stats().scheduled < 60
    wait_until(lambda: engine.stats().scheduled == 60, "all are")
    assert process.wait(LONGEST_S) == 0


def test_by_users_of_each_role(shell: Shell, own_server: Server, name: str) -> None:
    for role in ("producer", "operator", "viewer"):
        own_server.ask("ACL", "SETUSER", role, "nopass", *rules([role], name=name))

    def run(role: str, *words: str, stdin: str = "") -> Any:
        return shell.run(*words, "--url", f"redis://{role}:x@{own_server.address}", "--name", name, stdin=stdin)

    with Engine(own_server.url, name=name, shards=2) as engine:
        engine.push("x", delay=FAR_S, dedup=900, id="own")
        engine.limit("mail", rate=5)
        text = run("operator", "export").out
        assert len(text.splitlines()) == 5
        engine.purge(everything=True)
        engine.limit("mail", None)
        push = '{"payload": 1, "delay": 3600}\n{"payload": 2, "id": "b", "delay": 3600}\n'
        assert run("producer", "import", "-", stdin=push).code == 0
        refused = run("producer", "import", "-", stdin=text)
        assert refused.code == 1
        assert "the role dispatcher or operator" in refused.err
        assert engine.stats().scheduled == 2
        done = run("operator", "import", "-", stdin=text + push)
        assert (done.code, done.err) == (0, "0 restored, 1 pushed, 1 kept, 1 seen, 1 topic, 1 window\n")


SENT_S = 0.1
"""It has sent a window by then."""


class Worker:
    """Takes tasks as they come, and counts what it was given."""

    def __init__(self, engine: Engine, topic: str) -> None:
        self.seen = Counter[str]()
        self._ended = threading.Event()
        self._engine, self._topic = engine, topic
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        consumer = self._engine.consumer(self._topic, lease=60)
        while not self._ended.is_set():
            if deliveries := consumer.claim(500, wait=0.1):
                self.seen.update(delivery.id for delivery in deliveries)
                consumer.ack(deliveries)

    def __enter__(self) -> Worker:
        self._engine.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def killed(shell: Shell, server: Server, words: tuple[str, ...], kills: int) -> None:
    """Runs a command until it ends, and kills it some times before that: the server has got a window, and carries it
    out when nobody hears of it any more.
    """
    for _ in range(kills):
        before = progress_of(words[1])
        process = shell.start(*words)
        wait_until(lambda: process.poll() is not None or progress_of(words[1]) > before, "it goes on")  # noqa: B023
        server.pause()
        threading.Event().wait(SENT_S)
        assert process.poll() is None, "it has not ended"
        process.kill()
        process.wait()
        server.resume()
    assert shell.run(*words).code == 0


def progress_of(file: str) -> int:
    """The last line that is settled."""
    try:
        return int(json.loads(Path(f"{file}.progress").read_bytes())["line"])
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        (10_000, 1),
        pytest.param(80_000, 10, marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
    ],
)
def test_an_import_that_is_killed_beside_a_worker_carries_out_each_line_once(
    shell: Shell, own_server: Server, name: str, tmp_path: Path, count: int, kills: int
) -> None:
    file = tmp_path / "tasks.jsonl"
    with Engine(own_server.url, name=f"{name}.from", shards=2) as source:
        ids = source.push_many([Task(n, topic="work") for n in range(count // 2)])
        own = lines({"payload": n, "topic": "work"} for n in range(count // 4))
        own += lines({"payload": n, "topic": "work", "id": f"own-{n}"} for n in range(count // 4))
        file.write_bytes(b"".join(source.export()) + own.encode())
    words = ("import", str(file), "--url", own_server.url, "--name", name)
    with Engine(own_server.url, name=name, shards=4) as target, Worker(target, "work") as worker:
        killed(shell, own_server, words, kills)
        wait_until(lambda: sum(worker.seen.values()) >= count, "all are handled", timeout=60)
    assert {id: times for id, times in worker.seen.items() if times > 1} == {}
    assert len(worker.seen) == count
    assert worker.seen.keys() >= {*ids} | {f"work/own-{n}" for n in range(count // 4)}
