"""RQ's own scheduler and an engine, in turns: how fast jobs that are due at one instant are put on their queue.

    python -m bench.rq_scheduler [--jobs 5000] [--rounds 3]

Both run in a process of their own, on a server that is otherwise idle. The rate counts from the due instant until all
are on the queue. The CPU time for a job, of the process that moves them and of the server, is what a busy machine
changes least.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil
import redis
import rq

from cluster.server import Server
from cluster.servers import DEFAULT, binary
from shardq import Engine
from shardq.integrations.rq import delay_through

AHEAD_S = 15.0
"""The time in which the jobs are scheduled."""

_SCHEDULER = (
    "import redis, rq.scheduler, sys; rq.scheduler.RQScheduler(['mail'], redis.Redis.from_url(sys.argv[1])).work()"
)
"""The program that ``rq worker --with-scheduler`` runs in a process of its own."""


def measure(url: str, jobs: int, *, ours: bool) -> tuple[float, float, float]:
    """Jobs a second, and the milliseconds of CPU time for each: of the mover, and of the server."""
    with redis.Redis.from_url(url) as connection, Engine(url, name="bench", shards=4) as engine:
        queue = rq.Queue("mail", connection=connection)
        due = dt.datetime.fromtimestamp(int(time.time() + AHEAD_S), dt.UTC)
        if ours:
            with delay_through(queue, engine, above=0):
                for _ in range(jobs):
                    queue.enqueue_at(due, print)
        else:
            with connection.pipeline() as pipeline:
                for _ in range(jobs):
                    queue.enqueue_at(due, print, pipeline=pipeline)
                pipeline.execute()
        if dt.datetime.now(dt.UTC) > due:
            raise SystemExit("scheduling took longer than it may: give fewer --jobs")
        shardq_run = ["-m", "shardq", "run", "--quiet", "--url", url, "--name", "bench"]
        with subprocess.Popen([sys.executable, *(shardq_run if ours else ["-c", _SCHEDULER, url])]) as mover:
            process = psutil.Process(mover.pid)
            time.sleep(max(0.0, due.timestamp() - time.time() - 1))
            before = _cpu(process), _cpu_of_server(connection)
            while _length(connection) < jobs:
                time.sleep(0.002)
            rate = jobs / (time.time() - due.timestamp())
            spent = _cpu(process) - before[0], _cpu_of_server(connection) - before[1]
            mover.terminate()
        connection.flushall()
    return rate, 1000 * spent[0] / jobs, 1000 * spent[1] / jobs


def _length(connection: redis.Redis) -> int:
    length: Any = connection.llen("rq:queue:mail")
    return int(length)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _cpu_of_server(connection: redis.Redis) -> float:
    said: Any = connection.info("cpu")
    return float(said["used_cpu_user"] + said["used_cpu_sys"])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.rq_scheduler", description=str(__doc__).splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(words)
    with Server(binary(DEFAULT)) as server:
        rounds = [[measure(server.url, asked.jobs, ours=ours) for ours in (False, True)] for _ in range(asked.rounds)]
    print(f"{asked.jobs:,} jobs due at one instant, medians of {asked.rounds} rounds in turns")
    print(f"{'':16} {'jobs/s':>10} {'mover ms/job':>14} {'server ms/job':>14}")
    medians = [[statistics.median(values) for values in zip(*each, strict=True)] for each in zip(*rounds, strict=True)]
    for title, (rate, mover, of_server) in zip(("RQ's scheduler", "shardq run"), medians, strict=True):
        print(f"{title:16} {rate:10,.0f} {mover:14.3f} {of_server:14.4f}")
    print(f"ratio of the rates: {medians[1][0] / medians[0][0]:.1f}")


if __name__ == "__main__":
    main()
