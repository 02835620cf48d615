"""An export of tasks, and a restore of its lines, beside the pushes of the same tasks in the same round."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Figure, client_cost, rate, server_cost
from bench.loads import FAR_S, PAYLOAD
from bench.stand import Stand, Suite
from shardq import Task

ROUNDS = 3


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(10_000, 300_000)
    ratios: list[float] = []
    for number in range(ROUNDS):
        stand.say(f"{count:,} tasks pushed, exported and restored, round {number + 1} of {ROUNDS}")
        with stand.engine() as source, stand.engine() as target:
            target.open()
            with stand.metering() as pushed:
                for _ in source.push_iter(Task(PAYLOAD, delay=FAR_S) for _ in range(count)):
                    pass
            with stand.metering() as exported:
                lines = list(source.export())
            with stand.metering() as restored:
                found = target.restore(lines)
            if found.restored != count:
                raise RuntimeError(f"{found.restored:,} of {count:,} tasks were restored")
        ratios.append(pushed.wall_s / restored.wall_s)
    yield rate("export", count, exported)
    yield client_cost("export", count, exported)
    yield server_cost("export", count, exported)
    yield rate("restore", count, restored)
    yield client_cost("restore", count, restored)
    yield server_cost("restore", count, restored)
    ratio = sorted(ratios)[ROUNDS // 2]
    yield Figure("restore ÷ push_iter", ratio, "", reference="median of three rounds", ratio=ratio)


SUITE = Suite("transfer", "an export, and a restore beside push_iter", _measure)
