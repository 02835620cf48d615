"""``python -m bench.celery_etas``: tasks of Celery with ETAs far beyond the visibility timeout of its broker, through
shardq or as Celery does it, run by Celery's own worker. It counts how often each has run, and weighs the worker.

The same file is the app of the worker, and the producers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import celery
import psutil
import redis

from cluster.server import Server
from shardq import Engine
from shardq.integrations.celery import delay_through

VISIBILITY_S = 5
ETA_S = float(os.environ.get("SHARDQ_BENCH_ETA", "30"))
"""The delay of each task: by default six times the visibility timeout."""

WARM = 2000
"""Tasks without an ETA that the worker runs before it is weighed: by then it has loaded all that it needs."""

PRODUCERS = 2

URL = os.environ.get("SHARDQ_BENCH_URL", "redis://127.0.0.1:6379")
app = celery.Celery("etas", broker=f"{URL}/0")
app.conf.update(
    task_ignore_result=True,
    broker_transport_options={"visibility_timeout": VISIBILITY_S},
    broker_connection_retry_on_startup=True,
    task_default_queue="etas",
)
engine = Engine(f"{URL}/0", name="etas", shards=16)
if os.environ.get("SHARDQ_BENCH_THROUGH") == "1":
    delay_through(app, engine, above=1)
store = redis.Redis.from_url(f"{URL}/1")


@app.task(name="note", acks_late=True)  # type: ignore[untyped-decorator]  # Celery has no types
def note(n: int) -> None:
    """One run of one task."""
    store.hincrby("runs", str(n), 1)


def produce(start: int, stop: int) -> None:
    with app.producer_or_acquire() as producer:
        for n in range(start, stop):
            note.apply_async((n,), countdown=ETA_S, producer=producer)


def rss(worker: psutil.Process) -> int:
    """The memory of the worker and of its children, in bytes."""
    return sum(one.memory_info().rss for one in [worker, *worker.children(recursive=True)])


def _shown(title: str, value: object) -> None:
    print(f"  {title:44} {value}", flush=True)


def run(tasks: int, *, eta_s: float, through: bool, pool: str, patience_s: float) -> bool:
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        given = os.environ | {"SHARDQ_BENCH_URL": server.url, "SHARDQ_BENCH_ETA": str(eta_s)}
        given["SHARDQ_BENCH_THROUGH"] = "1" if through else "0"
        client = stack.enter_context(redis.Redis.from_url(f"{server.url}/1"))
        dispatcher = stack.enter_context(Engine(f"{server.url}/0", name="etas", shards=16))
        dispatcher.start()
        words = ["-m", "celery", "-A", "bench.celery_etas", "worker", f"--pool={pool}", "--concurrency=1"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
        process = subprocess.Popen([sys.executable, *words, *quiet], env=given, stderr=subprocess.DEVNULL)
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
        worker = psutil.Process(process.pid)
        warm = [sys.executable, "-m", "bench.celery_etas", "--warm", str(WARM)]
        subprocess.run(warm, env=given, check=True)
        while client.hlen("runs") < WARM:
            time.sleep(0.1)
        time.sleep(2)
        before = most = least = rss(worker)
        client.delete("runs")
        began = time.monotonic()
        each = -(-tasks // PRODUCERS)
        producers = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.celery_etas", "--produce", str(start), str(min(start + each, tasks))],
                env=given,
            )
            for start in range(0, tasks, each)
        ]
        pushed = 0.0
        limit = began + patience_s
        while (seen := client.hlen("runs")) < tasks and time.monotonic() < limit:
            now = rss(worker)
            most, least = max(most, now), min(least, now)
            if not pushed and all(one.poll() is not None for one in producers):
                pushed = time.monotonic() - began
                print(f"  … {tasks:,} sent after {pushed:.0f} s; {seen:,} have run", flush=True)
            time.sleep(0.25)
        took = time.monotonic() - began
        time.sleep(2 * VISIBILITY_S)  # whatever Celery runs again, it does now
        most = max(most, rss(worker))
        for one in producers:
            one.terminate()
            one.wait()
        runs: Counter[int] = Counter(map(int, client.hvals("runs")))
        ran = sum(runs.values())
        _shown("tasks with an ETA", f"{tasks:,}, each {eta_s:g} s ahead; visibility timeout {VISIBILITY_S} s")
        _shown("sent after, the last has run after", f"{pushed:.0f} s, {took:.0f} s")
        _shown("have run", f"{ran:,}")
        _shown("missing", f"{tasks - ran:,}")
        _shown(
            "more than once", f"{ran - runs[1]:,} tasks, {sum(n * k for n, k in runs.items()) - ran:,} runs too many"
        )
        _shown("memory of the worker before", f"{before / 1e6:.1f} MB")
        _shown("least, most", f"{least / before - 1:+.1%}, {most / before - 1:+.1%}")
        return runs == {1: tasks} and least / before >= 0.95 and most / before <= 1.05


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.celery_etas", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--without", action="store_true", help="without shardq: what Celery does with them")
    parser.add_argument("--eta", type=float, default=ETA_S, help="seconds ahead (default: %(default)g)")
    parser.add_argument("--pool", default="prefork", choices=("prefork", "threads", "solo"), help="of the worker")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait at most (default: %(default)s)")
    parser.add_argument("--produce", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=int, help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.produce:
        produce(*given.produce)
    elif given.warm:
        for n in range(given.warm):
            note.delay(-n)
    else:
        print("Celery's ETAs", "as Celery does it" if given.without else "through shardq", flush=True)
        how: Any = {"eta_s": given.eta, "pool": given.pool, "patience_s": given.patience}
        good = run(given.tasks, through=not given.without, **how)
        sys.exit(0 if good or given.without else 1)


if __name__ == "__main__":
    main()
