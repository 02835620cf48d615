"""All peers with their versions, in the order of their turns.

Each is used as its own documentation advises for speed. The intervals at which a peer polls are its defaults: a shorter
one is less late and costs more when idle. Results of tasks are not kept where that is an option.
"""

from __future__ import annotations

from bench.peers.adapter import SLOW_DRAIN_TASKS, Adapter, Here, Npm, Venv

CLIENT = ("redis==8.1.0", "hiredis==3.5.0")
"""The client of shardq, for every peer that does not need another version."""

UVLOOP = "uvloop==0.23.0"

ADAPTERS = (
    Adapter(
        name="shardq",
        source=Here(),
        program="shardq.py",
        how="push_iter, 16 shards; pollers and a worker of 16 threads, all defaults",
    ),
    Adapter(
        name="celery",
        source=Venv(("celery[redis]==5.7.0", *CLIENT)),
        program="celery.py",
        how="apply_async(eta=), one producer; 8 threads, without gossip, mingle and heartbeat, results ignored",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="dramatiq",
        source=Venv(("dramatiq==2.2.1", *CLIENT)),
        program="dramatiq.py",
        how="send_with_options(delay=); 1 process, 8 threads",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="rq",
        source=Venv(("rq==2.12.0", *CLIENT)),
        program="rq.py",
        how="enqueue_at, pipelines of 500, due at whole seconds; SimpleWorker, scheduler every second, result_ttl=0",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="huey",
        source=Venv(("huey==3.5.4", *CLIENT)),
        program="huey.py",
        how="schedule(eta=aware); a consumer of 16 threads, scheduler_interval=1, no results",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="arq",
        source=Venv(("arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0", UVLOOP)),
        program="arq.py",
        how="enqueue_job, 50 at once; max_jobs=100, poll_delay 0.5 s, keep_result=0, uvloop",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="saq",
        source=Venv(("saq[redis]==0.26.4", "redis==7.4.1", "hiredis==3.5.0", "typing-extensions==4.16.0", UVLOOP)),
        program="saq.py",
        how="enqueue, 50 at once, due at whole seconds; concurrency 100, looks every second, ttl=-1, uvloop",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="taskiq",
        source=Venv(("taskiq==0.13.0", "taskiq-redis==1.2.4", *CLIENT, UVLOOP)),
        program="taskiq.py",
        how="schedule_by_time, 50 at once; list source looked at every second, stream broker, 100 at once, uvloop",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="streaq",
        source=Venv(("streaq==7.2.0", "coredis==6.9.0")),
        program="streaq.py",
        how="enqueue_many(1,000); concurrency 32, looks every 0.5 s, ttl=0",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="ardiq",
        source=Venv(("ardiq==1.2.0",), python=(3, 12)),
        program="ardiq.py",
        how="enqueue_many(1,000); concurrency 100",
    ),
    Adapter(
        name="docket",
        source=Venv(("pydocket==0.27.0", *CLIENT)),
        program="docket.py",
        how="add_many(1,000); concurrency 80, its client has 100 connections; looks every 0.25 s, execution_ttl=0",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="bullmq-python",
        source=Venv(("bullmq==3.4.4", *CLIENT)),
        program="bullmq.py",
        how="addBulk(500); concurrency 100, removeOnComplete",
        drain_tasks=SLOW_DRAIN_TASKS,
    ),
    Adapter(
        name="bullmq-node",
        source=Npm(("bullmq@6.7.0", "ioredis@5.8.2")),
        program="bullmq.mjs",
        how="addBulk(500); concurrency 100, removeOnComplete",
    ),
    Adapter(
        name="beanstalkd",
        source=Venv(("greenstalk==2.1.1",), binary="beanstalkd"),
        program="beanstalkd.py",
        how="puts pipelined by hand, 500 at once, delays of whole seconds; greenstalk, one job at a time",
        store="beanstalkd",
    ),
)
"""A new peer needs its program beside the others, and its modules in the mypy list of pyproject.toml."""
