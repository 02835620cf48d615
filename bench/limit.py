"""The limit of a server: our scripts driven by redis-benchmark, a client in C that does nothing but send.

It can drive scripts whose arguments are known beforehand: push, dispatch, forward and claim. It can't settle, because
the arguments of a settle are the ids that a claim returned. Figures of claim and ack tell how busy the server was
instead.

A figure beside its limit reads "0.9 of what this server can do". The program comes with the Redis of most systems;
without it the suites say that the limit is missing.
"""

from __future__ import annotations

import re
import shutil
import string
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench import figures
from bench.figures import Figure, Spent
from bench.loads import PAYLOAD, fill_ready
from bench.stand import Stand
from cluster.ports import HOST
from shardq import Task
from shardq.core.calls import by_id, consume, dispatch
from shardq.core.calls.dispatch import MAX_BATCH
from shardq.core.calls.request import Call, Command, Word
from shardq.core.layout.keys import shard_keys
from shardq.core.model.record import JSON, encode_record

PROGRAMS = ("redis-benchmark", "valkey-benchmark")
MISSING = f"no limit to compare with: neither {' nor '.join(PROGRAMS)} is on the PATH"

BATCH = 500
"""Tasks in one call."""

CONNECTIONS = 4
"""So many keep the server busy at all times, and let client and server stay in their caches."""

LEASE_MS = 60_000
"""Longer than a run."""

_RANDOM = "__rand_int__"
"""The program replaces each occurrence by 12 random digits, new ones in every call."""

_RANDOM_BELOW = 2_000_000_000
"""The program draws 31 bits."""

_WORDS_BYTES = 800_000
"""The size of the payloads in one call. They are arguments of a program, for which a system allows 2 MiB."""

_ENDS = string.ascii_letters + string.digits + "!#$%&*+-.:;<=>?@^_|~"
"""The last characters of ids. The more there are, the fewer ids clash: with these, in one run of forty."""

TRIES = 4
"""The most runs of the C client until one has no ids that clash."""

ROUNDS = 3
"""The number of turns that ours and the C client take. The median of each counts."""

_TIMEOUT_S = 300.0


def program() -> str | None:
    """Returns the file of the C client, or None where this machine has none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


def in_turns(
    stand: Stand, doing: str, count: int, ours: Callable[[], Spent], theirs: Callable[[], float]
) -> tuple[Spent, float | None]:
    """Returns the median of our rounds, and the median rate of the C client where there is one. Both take turns."""
    rounds: list[Spent] = []
    limits: list[float] = []
    for number in range(ROUNDS):
        stand.say(f"{doing} of {count:,} tasks and its limit, round {number + 1} of {ROUNDS}")
        rounds.append(ours())
        if program():
            limits.append(theirs())
    return figures.middle(rounds), figures.median(limits) if limits else None


def beside(
    name: str,
    count: int,
    spent: Spent,
    most: float | None,
    how: str,
    *,
    aim: str = "",
    at: Mapping[str, float | str] | None = None,
) -> Figure:
    """Returns our rate beside the C client's, ``most``, which worked in this way. None: there is no C client."""
    if most is None:
        return figures.rate(name, count, spent, reference=MISSING)
    ratio = count / spent.wall_s / most
    reference = f"{ratio:.2f} of the C client ({most:,.0f}/s, {how}){aim and f'; aim: {aim}'}"
    return figures.rate(name, count, spent, reference=reference, ratio=ratio, at=at)


def push_rate(stand: Stand, tasks: int, *, payload: str = PAYLOAD) -> float:
    """Returns the tasks a second that one shard takes from the C client. It needs a ``program``."""
    batch = min(BATCH, _WORDS_BYTES // len(payload))
    rounds = max(1, tasks // batch)
    for _ in range(TRIES):
        with stand.engine(shards=1) as engine:
            keys = shard_keys(engine.name, 0)
            words = _words(batch, payload)
            rate = batch * _calls_per_s(stand, by_id.push(keys, engine.topology.stamp, words), rounds, drawn=True)
            if _stored(stand, keys.slot, "ZCARD", keys.due) == rounds * batch:
                return rate
    raise RuntimeError(f"ids clashed in all {TRIES} runs, so the rate means nothing; run it again")


def dispatch_rate(stand: Stand, tasks: int, *, limit: int = MAX_BATCH) -> float:
    """Returns the due tasks a second that the C client moves from one shard to its ready list, ``limit`` a call."""
    with stand.engine(shards=1) as engine:
        keys = shard_keys(engine.name, 0)
        rounds = max(1, tasks // limit)
        engine.push_many([Task(PAYLOAD)] * (rounds * limit))
        call = dispatch.dispatch(keys, engine.topology.stamp, [""], limit=limit, max_attempts=1)
        rate = limit * _calls_per_s(stand, call, rounds)
        _expect(stand, keys.slot, "LLEN", keys.ready(""), rounds * limit)
        return rate


def forward_rate(stand: Stand, tasks: int) -> float:
    """Returns the ready tasks a second whose payloads the C client has appended to a list."""
    with stand.engine(shards=1) as engine:
        keys = shard_keys(engine.name, 0)
        rounds = max(1, tasks // MAX_BATCH)
        fill_ready(stand, engine, rounds * MAX_BATCH)
        to = f"{keys.meta}-forwarded"
        call = dispatch.forward(keys, engine.topology.stamp, "", to=to, side="right", limit=MAX_BATCH)
        rate = MAX_BATCH * _calls_per_s(stand, call, rounds)
        _expect(stand, keys.slot, "LLEN", to, rounds * MAX_BATCH)
        return rate


def claim_rate(stand: Stand, tasks: int, *, claim: int) -> float:
    """Returns the ready tasks a second that the C client claims. A settle would need the answer."""
    with stand.engine(shards=1) as engine:
        keys = shard_keys(engine.name, 0)
        rounds = max(1, tasks // claim)
        fill_ready(stand, engine, rounds * claim)
        call = consume.claim(keys, engine.topology.stamp, {"": claim}, max=claim, lease_ms=LEASE_MS, token=_RANDOM)
        rate = claim * _calls_per_s(stand, call, rounds, drawn=True)
        _expect(stand, keys.slot, "ZCARD", keys.leased, rounds * claim)
        return rate


def literal_rate(stand: Stand, tasks: int) -> float:
    """Returns the rate of the textbook's loop in redis-py: find the first due id with LIMIT 0 1, move it, repeat."""
    with stand.engine(shards=1) as engine, stand.redis_py() as client:
        keys = shard_keys(engine.name, 0)
        engine.push_many([Task(PAYLOAD)] * tasks)
        began, moved = time.perf_counter(), 0
        while moved < tasks:
            # due times are rounded up: in the first moments nothing may be due
            if ids := client.zrangebyscore(keys.due, "-inf", time.time() * 1000, start=0, num=1):
                move = client.pipeline()
                move.zrem(keys.due, ids[0])
                move.rpush(keys.ready(""), ids[0])
                move.execute()
                moved += 1
        took_s = time.perf_counter() - began
        _expect(stand, keys.slot, "LLEN", keys.ready(""), tasks)
        return tasks / took_s


def _expect(stand: Stand, slot: int, command: str, key: str, tasks: int) -> None:
    found = _stored(stand, slot, command, key)
    if found != tasks:
        raise RuntimeError(f"{command} {key} is {found:,} instead of {tasks:,}, so the rate means nothing")


def _stored(stand: Stand, slot: int, command: str, key: str) -> int:
    return stand.driver.call(Command(slot, (command, key), int))


def _words(batch: int, payload: str) -> list[Word]:
    """Returns the arguments of one batch. Ids have 12 random digits and a last character that few ids of a call share,
    so they are as long as ours.

    Delays are random too, up to 23 days. A sorted set is then written in all places, as by the engine's own tasks.
    """
    record = encode_record(JSON, payload)
    words: list[Word] = []
    for place in range(batch):
        words += (_RANDOM + _ENDS[place % len(_ENDS)], f"-{_RANDOM}", record)
    return words


def _calls_per_s(stand: Stand, call: Call[Any], count: int, *, drawn: bool = False) -> float:
    (server,) = stand.masters
    # the C client does not know NOSCRIPT, so the script is loaded here
    server.ask("SCRIPT", "LOAD", call.script.text)
    where = ["-h", HOST, "-p", str(server.port)]
    path = program()
    assert path is not None, "the caller has looked"
    how = ["-n", str(count), "-c", str(min(count, CONNECTIONS)), "--csv", *(["-r", str(_RANDOM_BELOW)] * drawn)]
    words = [b"EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.words]
    run = subprocess.run([path, *where, *how, *map(_text, words)], capture_output=True, timeout=_TIMEOUT_S, check=False)
    if run.returncode:
        raise RuntimeError(f"{path} ended with code {run.returncode}: {run.stderr.decode(errors='replace')[-500:]}")
    # a line has "the command","calls a second", and on newer servers latencies
    found = re.search(rb'","([\d.]+)"', run.stdout)
    if found is None:
        raise RuntimeError(f"{path} printed no rate: {run.stdout[-200:]!r}")
    return float(found[1])


def _text(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
