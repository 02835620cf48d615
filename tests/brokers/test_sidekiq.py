"""Jobs that wait in an engine, and run in Sidekiq."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from cluster import sidekiq as ruby
from cluster.server import Server
from shardq import Engine
from tests.sinks.seen import database_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

DB = 11

JOBS = """\
class NoteJob
  include Sidekiq::Worker

  def perform(number, name)
    Sidekiq.redis { |server| server.rpush("ran", "#{jid} #{number} #{name}") }
    raise "as wanted" if name == "fail"
  end
end
"""


def note(args: list[Any], queue: str) -> dict[str, Any]:
    """A job as Sidekiq 6 makes it."""
    jid = secrets.token_hex(12)
    return {"class": "NoteJob", "args": args, "queue": queue, "jid": jid, "retry": True, "created_at": time.time()}


@pytest.fixture
def client(single: Server) -> Iterator[redis.Redis]:
    yield from database_of(single, DB)


def ran(client: redis.Redis) -> Counter[str]:
    found: Any = client.lrange("ran", 0, -1)
    return Counter(line.decode() for line in found)


def test_jobs_run_once_while_dispatchers_are_killed(
    single: Server, client: redis.Redis, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.rb"
    file.write_text(JOBS)
    url = f"{single.url}/{DB}"
    with Engine(single.url, name=name, shards=4) as engine, ruby.running(url, file, "low"), ExitStack() as stack:
        engine.forward("low", to=f"sidekiq+{url}#low")
        wanted: list[str] = []
        for round in range(2):
            dispatcher = stack.enter_context(Worker("tests.support.dispatching", single.url, name, 4))
            assert dispatcher.said()
            for n in range(100):
                job = note([n, "é"], "low")
                engine.push(job, topic="low", id=job["jid"], delay=n / 100)
                wanted.append(f"{job['jid']} {n} é")
            wait_until(lambda: ran(client).total() > len(wanted) - 60, "some have run", timeout=60)
            if round == 0:
                dispatcher.kill()
        wait_until(lambda: ran(client).total() >= len(wanted), "all have run", timeout=60)
        failing = note([0, "fail"], "low") | {"retry": 2}
        engine.push(failing, topic="low")
        wait_until(lambda: client.zcard("retry") == 1, "Sidekiq has it to retry it", timeout=60)
        wait_until(lambda: client.llen("queue:low") == 0, "nothing is left", timeout=60)
        assert ran(client) == Counter([*wanted, f"{failing['jid']} 0 fail"])


def test_the_format_is_that_of_sidekiqs_own_client(
    single: Server, client: redis.Redis, name: str, tmp_path: Path
) -> None:
    """The same fields of the same types, but for those that differ with each job."""
    script = 'require "sidekiq"; Sidekiq::Client.push("class" => "NoteJob", "args" => [1, "é"], "queue" => "theirs")'
    subprocess.run(
        ["ruby", "-e", script],
        env={"REDIS_URL": f"{single.url}/{DB}", "PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        check=True,
    )
    with Engine(single.url, name=name, shards=4) as engine:
        engine.start()
        engine.forward("ours", to=f"sidekiq+{single.url}/{DB}#ours")
        engine.push(note([1, "é"], "ours"), topic="ours")
        wait_until(lambda: client.llen("queue:ours") == 1, "it is on its queue")
    theirs, ours = [json.loads(client.lindex(f"queue:{queue}", 0) or "") for queue in ("theirs", "ours")]
    assert {key: type(value) for key, value in ours.items()} == {key: type(value) for key, value in theirs.items()}
    assert [ours[key] for key in ("class", "args", "retry")] == [theirs[key] for key in ("class", "args", "retry")]
    assert client.smembers("queues") == {b"ours", b"theirs"}
