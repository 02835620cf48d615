"""Tasks with keys beside tasks without: rates, what a noisy key costs the others, and how fast one key goes by itself.

The same tasks fall due with keys and without, in turns. One consumer takes them and acknowledges at once, in the
process of the pollers. The rate counts from the due time to the last acknowledgement. The server's own CPU time is a
figure of its own, for a task and for its push: others who use the machine change it less. *One behind the other*: the
next task of a key falls due when the one before is done, so that nothing is held; *all at once*: they wait for each
other.

What a quiet key feels of a noisy one is measured in one shard, which all share: from due to claimed, from the first
second on.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.children import Child
from bench.consuming import CLAIM
from bench.figures import Figure, Spent, lateness, middle, percentiles, rate, server_cost
from bench.loads import PAYLOAD, READY_S, push_ahead
from bench.probing import CLAIMS
from bench.stand import Stand, Suite
from shardq import Engine, Task

TOPIC = "keyed"

ROUNDS = 3
"""With keys and without take turns. The median of each counts."""

PUSHED_PER_S = 40_000

QUIET = 999
QUIET_PER_S = 1_000
HOLDS = 10
GRACE_S = 1.0
LEAD_S = 1.0


def _measure(stand: Stand) -> Iterator[Figure]:
    keys, each = stand.pick(200, 20_000, 100_000), 3
    waves = [[(key, wave) for key in range(keys)] for wave in range(each)]
    name = f"{keys:,} keys × {each}, one at a time"
    yield from _beside(stand, f"{name}, one behind the other", waves, per_key=1, aim=0.4)
    at_once = [list(itertools.chain(*waves))]
    yield from _beside(stand, f"{name}, all at once", at_once, per_key=1, aim=0.4)
    yield from _beside(stand, f"{name}, all at once, 1 % more on hold", at_once, per_key=1, aim=0.36, holds=keys // 100)
    keys, each = stand.pick(10, 200, 1_000), stand.pick(20, 300)
    burst = [(key, number) for number in range(each) for key in range(keys)]
    yield from _beside(stand, f"{keys:,} keys × {each}, 20 at once", [burst], per_key=20)
    for per_key, count in ((1, stand.pick(100, 5_000)), (20, stand.pick(400, 40_000))):
        stand.say(f"one key by itself, {count:,} tasks, {per_key} at once")
        spent = _taken(stand, [[("k", number) for number in range(count)]], per_key=per_key)
        yield rate(f"one key by itself, {per_key} at once", count, spent, reference=f"claims of {CLAIM}, 1 shard")
    yield from _noisy(stand)
    yield from _others(stand)


SUITE = Suite("keys", "tasks with keys beside tasks without: rates, quiet keys beside a noisy one", _measure)

Waves = Sequence[Sequence[tuple[object, int]]]
"""Key and number of each task; the tasks of a wave fall due at one instant, when those before are done."""


PUSHES = 0.35
"""The aim of pushes with keys: their rate, as the server's CPU allows it, is so much of that without."""


def _beside(
    stand: Stand, name: str, waves: Waves, *, per_key: int, aim: float | None = None, holds: int = 0
) -> Iterator[Figure]:
    """``aim``: the rate with keys is so much of that without, and the cost of a task no more than its reciprocal."""
    count, keyed, plain = sum(map(len, waves)), list[_Work](), list[_Work]()
    for number in range(ROUNDS):
        stand.say(f"{name}: {count:,} tasks with keys and without, round {number + 1} of {ROUNDS}")
        keyed.append(_work(stand, waves, per_key=per_key, holds=holds))
        plain.append(_work(stand, waves, per_key=None))
    with_keys, without = (middle([each.taken for each in rounds]) for rounds in (keyed, plain))
    ratio = without.wall_s / with_keys.wall_s
    told = f"{ratio:.2f} of {count / without.wall_s:,.0f}/s without keys" + (f"; aim: ≥ {aim}" if aim else "")
    yield rate(name, count, with_keys, reference=told, ratio=ratio)
    yield _cost(name, count, with_keys, without, aim)
    pushed_with, pushed_without = (middle([each.pushed for each in rounds]) for rounds in (keyed, plain))
    yield _cost(f"{name}, pushes", count, pushed_with, pushed_without, aim and PUSHES)


def _cost(name: str, count: int, with_keys: Spent, without: Spent, aim: float | None) -> Figure:
    cost, plain = server_cost(name, count, with_keys), server_cost(name, count, without)
    ratio = cost.value / plain.value
    told = f"{ratio:.2f} times the {plain.value:.3g} µs without keys" + (f"; aim: ≤ {1 / aim:.2f} times" if aim else "")
    return dataclasses.replace(cost, reference=f"{told}; {cost.reference}", ratio=ratio)


@dataclass(frozen=True, slots=True)
class _Work:
    pushed: Spent
    taken: Spent
    """From the due time of each wave until its last task is acknowledged."""


def _work(stand: Stand, waves: Waves, *, per_key: int | None, holds: int = 0) -> _Work:
    """Measures one round. Without keys: None. ``holds``: of other keys; another topic has a rate then."""
    whole = _Work(Spent(), Spent())
    with stand.engine(shards=1) as engine:
        if per_key is not None:
            engine.limit(TOPIC, per_key=per_key)
        if holds:
            engine.limit("rated", per_key=1, per_key_rate=1)
        for number in range(holds):
            engine.hold(TOPIC, key=f"held-{number}", until=time.time() + 3600)
        engine.start()
        for number in range(2 if holds else 0):
            engine.push(number, topic="rated", key="k")
        for wave in waves:
            one = _one_wave(stand, engine, wave, keyed=per_key is not None)
            whole.pushed.add(one.pushed)
            whole.taken.add(one.taken)
    return whole


GUARDED = 10_000, 3
"""Keys, and tasks of each, whose costs the guard compares with those of tasks without keys."""


class Costs(NamedTuple):
    """The CPU time of the server for one of each."""

    push: float
    dispatch: float
    claim: float
    ack: float


def costs(stand: Stand, *, keyed: bool) -> Costs:
    """All fall due at one instant. With keys, dispatch gives the first of each, and acknowledgements the others."""
    keys, each = GUARDED
    count, claims, acks = keys * each, Spent(), Spent()
    wave = [(key, number) for number in range(each) for key in range(keys)]
    with stand.engine(shards=1) as engine:
        if keyed:
            engine.limit(TOPIC, per_key=1)
        engine.start()
        due_s, pushed = _push_wave(stand, engine, wave, keyed=keyed)
        time.sleep(max(0.0, due_s - time.time() - READY_S))
        with stand.metering() as dispatched:
            stand.until_gone(engine, lambda keys: keys.alarms if keyed else keys.due)
        engine.stop()
        consumer = engine.consumer(TOPIC, lease=300)
        for _ in range(each):
            with stand.metering() as claim:
                given = [consumer.claim(CLAIM, wait=1.0) for _ in range(keys // CLAIM)]
            with stand.metering() as ack:
                for deliveries in given:
                    consumer.ack(deliveries)
            assert sum(map(len, given)) == keys
            claims.add(claim)
            acks.add(ack)
    return Costs(
        pushed.server_s / count,
        dispatched.server_s / (keys if keyed else count),
        claims.server_s / count,
        acks.server_s / count,
    )


def _taken(stand: Stand, waves: Waves, *, per_key: int) -> Spent:
    return _work(stand, waves, per_key=per_key).taken


def _one_wave(stand: Stand, engine: Engine, wave: Sequence[tuple[object, int]], *, keyed: bool) -> _Work:
    due_s, pushed = _push_wave(stand, engine, wave, keyed=keyed)
    time.sleep(max(0.0, due_s - time.time() - READY_S))
    with stand.metering() as taken:
        _take(engine, len(wave))
    taken.wall_s = time.time() - due_s
    return _Work(pushed, taken)


def _push_wave(stand: Stand, engine: Engine, wave: Sequence[tuple[object, int]], *, keyed: bool) -> tuple[float, Spent]:
    """The instant at which it falls due, and what its pushes took."""
    pushed = Spent()

    def push(at: float) -> None:
        nonlocal pushed
        tasks = (Task(PAYLOAD, at=at, topic=TOPIC, key=str(key) if keyed else None) for key, _ in wave)
        with stand.metering() as pushed:
            for _ in engine.push_iter(tasks):
                pass

    return push_ahead(stand, engine, LEAD_S + len(wave) / PUSHED_PER_S, push), pushed


def _pushed(stand: Stand, engine: Engine, count: int, made: Callable[[float], Iterable[Task]]) -> float:
    """Pushes what falls due from an instant on that is to come. Returns that instant."""

    def push(at: float) -> None:
        for _ in engine.push_iter(made(at)):
            pass

    return push_ahead(stand, engine, LEAD_S + count / PUSHED_PER_S, push)


def _take(engine: Engine, count: int) -> None:
    consumer = engine.consumer(TOPIC, lease=300)
    while count > 0:
        deliveries = consumer.claim(CLAIM, wait=1.0)
        consumer.ack(deliveries)
        count -= len(deliveries)


def _noisy(stand: Stand) -> Iterator[Figure]:
    """The lateness of quiet keys: alone, beside one that has a backlog due from the first instant on, and beside ten on
    hold.
    """
    noise, seconds = stand.pick(2_000, 200_000, 1_000_000), stand.pick(0.5, 5.0)
    idle = 0.0
    for beside, aim, per_key, backlog, holds in (
        ("nothing else due", "", 1, 0, 0),
        (f"beside one with {noise:,} due, 1 at once", "1.3 times", 1, noise, 0),
        (f"beside one with {noise:,} due, 20 at once", "10 ms more", 20, noise, 0),
        (f"beside {HOLDS} on hold with {noise:,} due", "2 times", 1, noise, HOLDS),
    ):
        stand.say(f"quiet keys, {beside}")
        late_ms = _quiet(stand, per_key, backlog, holds, seconds)
        told = ""
        if aim and late_ms:
            told = f"p99 {percentiles(late_ms)['p99'] / idle:.2f} times the {idle:.3g} ms alone; aim: ≤ {aim}"
        figure = lateness(f"{QUIET} quiet keys, {beside}", late_ms, expected=int(QUIET_PER_S * seconds), aim=told)
        idle = idle or figure.percentiles["p99"]
        yield figure


def _quiet(stand: Stand, per_key: int, backlog: int, holds: int, seconds: float) -> list[float]:
    count = int(QUIET_PER_S * seconds)
    with stand.engine(shards=1) as engine, Child("bench.probing", CLAIMS, stand.url, engine.name, TOPIC) as child:
        engine.limit(TOPIC, per_key=per_key)
        for number in range(holds):
            engine.hold(TOPIC, key=f"noisy-{number}", until=time.time() + 3600)
        child.await_ready()
        child.begin()
        engine.start()

        def made(at: float) -> Iterator[Task]:
            source, begin_ms = random.Random(count), int(at * 1000)
            for number in range(count):
                due_ms = begin_ms + source.randrange(int(seconds * 1000))
                yield Task(due_ms, at=due_ms / 1000, topic=TOPIC, key=f"quiet-{number % QUIET}")
            for number in range(backlog):
                yield Task(begin_ms, at=at, topic=TOPIC, key=f"noisy-{number % max(1, holds)}")

        begin = _pushed(stand, engine, count + backlog, made)
        time.sleep(max(0.0, begin + seconds + GRACE_S - time.time()))
        engine.stop()
        return [late_ms for _, late_ms, id in child.end() if f"{TOPIC}/quiet-" in id]


def _others(stand: Stand) -> Iterator[Figure]:
    """The rate of other keys in the shard of one that has very many waiting: its first one is running."""
    count, waiting = stand.pick(400, 50_000), stand.pick(1_000, 100_000)
    wave = [(key, 0) for key in range(count)]
    alone, crowded = list[Spent](), list[Spent]()
    for number in range(ROUNDS):
        stand.say(f"{count:,} keys beside one with {waiting:,} waiting, round {number + 1} of {ROUNDS}")
        for found, backlog in ((alone, 0), (crowded, waiting)):
            with stand.engine(shards=1) as engine:
                engine.limit(TOPIC, per_key=1)
                engine.start()
                if backlog:
                    for _ in engine.push_iter(Task(PAYLOAD, topic=TOPIC, key="one") for _ in range(backlog)):
                        pass
                    engine.consumer(TOPIC, lease=600).claim(1, wait=30.0)
                found.append(_one_wave(stand, engine, wave, keyed=True).taken)
    one, other = middle(alone), middle(crowded)
    ratio = one.wall_s / other.wall_s
    told = f"{ratio:.2f} of {count / one.wall_s:,.0f}/s without it; aim: ≥ 0.95"
    yield rate(f"{count:,} keys beside one with {waiting:,} waiting", count, other, reference=told, ratio=ratio)
