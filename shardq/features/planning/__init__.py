"""The plan of a cluster for a load: masters, shards, memory, connections and processes, and why. It is arithmetic on
the measured costs of a task, which ``bench.reporting`` writes to ``costs.json`` from the figures of the report.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from importlib import resources

import msgspec

from shardq.core.drivers.settings import CONNECTIONS
from shardq.core.layout.slots import MAX_SHARDS, SLOTS, table, target_slot
from shardq.features.far.rows import MARGIN_S

FILE = "costs.json"

Curve = tuple[tuple[float, float], ...]
"""Points, by their first number."""

FEWEST_SHARDS = 16
"""The number that an engine has unless told otherwise."""

SHARDS_OF_A_MASTER = 4
"""Fewer spread unevenly, and leave no room for more masters."""

MOST_SHARDS_OF_A_MASTER = 16
EVEN = 1.1
"""The fullest master has a tenth more than the mean: more shards would hardly be more even."""

MOST_MASTERS = MAX_SHARDS // SHARDS_OF_A_MASTER

HEADROOM = 1.5
"""``maxmemory`` ÷ the tasks' memory: a table that grows is there twice for a moment, and clients have buffers."""

BUSY_PROCESS = 0.7
"""The part of its core that a Python process should use at the peak."""

DISPATCHERS = 2
"""When one ends, the other serves its shards."""

MIGRATED = 100_000
"""Pending tasks of a shard above which MIGRATE, which moves a key in one piece, holds up its server."""


FAR_ROW = 150
"""Bytes of a row of the far store on the disk beside its payload: table and indexes in PostgreSQL 18, of 200,000
rows with payloads of 20 and 100 bytes, all due within 30 days. With payloads of 500 bytes: 170.
"""

FAR_MEMORY = 90
"""Bytes of Redis for each loaded row, which it remembers for ``2 × ahead + MARGIN_S``."""


class NotPossible(ValueError):
    """No number of masters carries the load."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in µs a task. The servers' are those of a core that serves one master."""

    measured: str
    """The machine, server and commit."""
    push_one: float
    """The server's, for a push that is sent alone."""
    push_many: float
    """The server's, for a push in a batch, with few tasks pending."""
    push: Curve
    """Tasks pending on a server → the server's cost of a push in a batch."""
    dispatch: Curve
    """Tasks pending on a server → the server's cost of making a due task ready."""
    forward: float
    """The server's, for making it ready and putting its payload on a list of the same server."""
    claim: float
    """The server's, for claim and ack, with as many consumers as made it dearest."""
    push_by_bytes: Curve
    """Bytes of a payload → the cost of a push in a batch, as a multiple of that of the smallest payload."""
    claim_by_bytes: Curve
    """Bytes of a payload → the cost of claim and ack, as such a multiple."""
    client_push_one: float
    client_push_many: float
    client_dispatch: float
    client_work: float
    """The worker's own, without its handlers."""
    memory: Curve
    """Bytes of a payload → the server's bytes of a pending task, everything included."""
    memory_spread: float
    """The most memory a task took over all fillings of a shard ÷ that of the curve: tables double at powers of two."""
    late: tuple[tuple[float, float, float], ...]
    """The busy share of the server's core, and the lateness from due to claimed then: p50 and p99 in ms."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load to carry, at its peak."""

    rate: float
    """Tasks a second: as many are pushed as fall due."""
    delay_s: float
    """The mean delay."""
    payload: int
    """Bytes."""
    single: bool = True
    """True: pushed one at a time; False: in batches (``push_many``, a Buffer, many coroutines)."""
    forward: bool = False
    """True: payloads go to a list; False: workers handle them."""
    handler_s: float = 0.0
    """The mean time of a handler."""
    replicas: int = 1
    busy: float = 0.5
    """The most that a master's core is to be used."""
    node_memory: int = 8_000_000_000
    """The most bytes of tasks on a master."""

    ahead_s: float | None = None
    """``ahead`` of an engine with a far store."""

    @property
    def is_far(self) -> bool:
        """True if the tasks wait in the far store at first."""
        return self.ahead_s is not None and self.delay_s > self.ahead_s + MARGIN_S

    @property
    def pending(self) -> float:
        """The tasks that wait in Redis."""
        return self.rate * (self.ahead_s or 0.0 if self.is_far else self.delay_s)

    @property
    def rows(self) -> float:
        """The tasks that wait in the far store."""
        return self.rate * self.delay_s - self.pending

    @property
    def remembered(self) -> float:
        """The loads that Redis remembers."""
        return self.rate * (2 * (self.ahead_s or 0.0) + MARGIN_S) if self.is_far else 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    masters: int
    replicas: int
    """The replicas of each master."""
    shards: int
    busy: float
    """The share of its core that the fullest master uses."""
    pending: int
    """In Redis."""
    memory: int
    """Bytes of pending tasks on the fullest master."""
    far_rows: int
    """The tasks in the far store; 0 without one."""
    far_disk: int
    """Bytes of these on the disk, table and index."""
    maxmemory: int
    bandwidth: int
    """Bytes a second that the fullest master receives and sends, its replicas included."""
    pushers: int
    """Processes, of one core each."""
    workers: int
    concurrency: int
    """Handlers at once, in all workers together; 0 if their time is not known."""
    dispatchers: int
    connections: int
    """The most that a master has."""
    late_p50_ms: float
    late_p99_ms: float
    reasons: list[str]
    cautions: list[str]
    measured: str


class _Master(msgspec.Struct, frozen=True):
    """The fullest master of a number of them."""

    uneven: float
    pending: float
    memory: float
    busy: float
    push_us: float
    dispatch_us: float
    out_us: float


def measured() -> Costs:
    """Returns the costs that the package was published with."""
    return msgspec.json.decode(resources.files(__package__).joinpath(FILE).read_bytes(), type=Costs)


def at(curve: Sequence[tuple[float, float]], x: float) -> float:
    """Returns the value on straight lines between the points. Beyond the last one it goes on as between the last two;
    before the first it stays.

    >>> at([(10, 1.0), (20, 2.0)], 15), at([(10, 1.0), (20, 2.0)], 40), at([(10, 1.0), (20, 2.0)], 1)
    (1.5, 4.0, 1.0)
    """
    if x <= curve[0][0] or len(curve) == 1:
        return curve[0][1]
    (x0, y0), (x1, y1) = next(
        ((low, high) for low, high in itertools.pairwise(curve) if x <= high[0]), (curve[-2], curve[-1])
    )
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def by_magnitude(curve: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolates over the logarithm: a cost that grows with each tenfold."""
    return at([(math.log(each), y) for each, y in curve], math.log(max(x, 1)))


def plan(load: Load, costs: Costs) -> Plan:
    """Returns the smallest cluster that carries the load. Raises ``NotPossible``."""
    masters, shards, fullest = _smallest(load, costs)
    client_push = costs.client_push_one if load.single else costs.client_push_many
    pushers = _processes(load.rate * client_push)
    workers = 0 if load.forward else _processes(load.rate * costs.client_work)
    dispatchers = max(DISPATCHERS, _processes(load.rate * costs.client_dispatch))
    processes = pushers + workers + dispatchers
    p50 = at([(busy, low) for busy, low, _ in costs.late], fullest.busy)
    p99 = at([(busy, high) for busy, _, high in costs.late], fullest.busy)
    own = load.rate * fullest.uneven / masters
    return Plan(
        masters=masters,
        replicas=load.replicas,
        shards=shards,
        busy=fullest.busy,
        pending=round(load.pending),
        memory=round(fullest.memory),
        far_rows=round(load.rows),
        far_disk=round(load.rows * (load.payload + FAR_ROW)),
        maxmemory=round(fullest.memory * HEADROOM),
        bandwidth=round(own * load.payload * (2 + load.replicas)),
        pushers=pushers,
        workers=workers,
        concurrency=0 if load.forward else math.ceil(load.rate * load.handler_s),
        dispatchers=dispatchers,
        connections=math.ceil(shards / masters) + processes * (1 + CONNECTIONS),
        late_p50_ms=p50,
        late_p99_ms=p99,
        reasons=_reasons(load, costs, masters, shards, fullest),
        cautions=_cautions(load, costs, masters, shards, fullest),
        measured=costs.measured,
    )


def shards_for(masters: int) -> int:
    """Returns the fewest shards that lie evenly on so many masters, with room to grow.

    >>> shards_for(1), shards_for(4), shards_for(6)
    (16, 16, 48)
    """
    fewest = max(FEWEST_SHARDS, SHARDS_OF_A_MASTER * masters)
    most = max(fewest, min(MAX_SHARDS, MOST_SHARDS_OF_A_MASTER * masters))
    powers = (part << power for power in range(11) for part in (2, 3))
    counts = sorted({fewest, *(count for count in powers if fewest <= count <= most)})
    return next((n for n in counts if imbalance(masters, n) <= EVEN), min(counts, key=lambda n: imbalance(masters, n)))


def _smallest(load: Load, costs: Costs) -> tuple[int, int, _Master]:
    for masters in range(1, MOST_MASTERS + 1):
        # as if shards lay evenly: how they do lie takes long to say, and only makes it worse
        fullest = _fullest(load, costs, masters, uneven=1.0)
        if not _fits(load, fullest):
            continue
        shards = shards_for(masters)
        fullest = _fullest(load, costs, masters, uneven=imbalance(masters, shards))
        if _fits(load, fullest):
            return masters, shards, fullest
    raise NotPossible(
        f"{MOST_MASTERS} masters do not carry that: each would be busy for {fullest.busy:.0%} of its core and hold "
        f"{fullest.memory / 1e9:,.1f} GB of tasks; give a higher --node-memory, push in batches (--push many), or "
        "split the load over several engines of their own names"
    )


def _fits(load: Load, fullest: _Master) -> bool:
    return fullest.busy <= load.busy and fullest.memory <= load.node_memory


def _fullest(load: Load, costs: Costs, masters: int, *, uneven: float) -> _Master:
    pending = load.pending * uneven / masters
    push = by_magnitude(costs.push, pending) * at(costs.push_by_bytes, load.payload)
    if load.single and not load.is_far:  # loaders push in batches
        push += costs.push_one - costs.push_many
    dispatch = by_magnitude(costs.dispatch, pending)
    forwarded, claimed = costs.forward - costs.dispatch[0][1], costs.claim * at(costs.claim_by_bytes, load.payload)
    out = forwarded if load.forward else claimed
    busy = load.rate * uneven / masters * (push + dispatch + out) / 1e6
    memory = pending * at(costs.memory, load.payload) * costs.memory_spread
    memory += load.remembered * uneven / masters * FAR_MEMORY
    return _Master(uneven, pending, memory, busy, push, dispatch, out)


def _processes(us_a_second: float) -> int:
    return max(1, math.ceil(us_a_second / 1e6 / BUSY_PROCESS))


def _reasons(load: Load, costs: Costs, masters: int, shards: int, fullest: _Master) -> list[str]:
    way = "sent alone" if load.single else "in batches"
    out = "forwarded to a list" if load.forward else "claimed and acked"
    by_cpu = fullest.busy * masters / load.busy
    by_memory = fullest.memory * masters / load.node_memory
    decides = "memory" if by_memory > by_cpu else "the servers' CPU"
    waits_s, where = load.delay_s, "tasks"
    far = []
    if load.is_far:
        assert load.ahead_s is not None, "it is far"
        waits_s, where, way = load.ahead_s, "tasks in Redis", "by a loader"
        far = [
            f"far store: {load.rate:,.0f} tasks/s × {load.delay_s - waits_s:,.0f} s = {load.rows:,.0f} rows of "
            f"{load.payload + FAR_ROW:,} bytes on the disk, in PostgreSQL 18. Redis "
            f"remembers {load.remembered:,.0f} loads, in {FAR_MEMORY} bytes each."
        ]
    return [
        f"pending: {load.rate:,.0f} tasks/s × {waits_s:,.0f} s = {load.pending:,.0f} {where}, "
        f"{fullest.pending:,.0f} of them on the fullest master.",
        *far,
        f"memory: {at(costs.memory, load.payload):,.0f} bytes a task with {load.payload:,} bytes of payload, "
        f"× {costs.memory_spread:.2f} for the shard whose tables have just doubled.",
        f"server CPU: {fullest.push_us:.1f} µs to push a task, {way}, {fullest.dispatch_us:.1f} µs to make it ready, "
        f"{fullest.out_us:.1f} µs until it is {out}. A server has one core for all of it.",
        f"masters: {decides} decides: {max(by_cpu, by_memory):.1f} masters' worth at {load.busy:.0%} of a core and "
        f"{load.node_memory / 1e9:,.1f} GB each, rounded up until the fullest one fits.",
        f"shards: {shards / masters:.0f} for each master, so that the fullest has {fullest.uneven:.2f} of the mean. "
        "More can be added while everything runs: `shardq resize`.",
        f"lateness: from due to claimed, as measured at the nearest shares of a core, {fullest.busy:.0%} here.",
        f"processes: of one core each, {BUSY_PROCESS:.0%} used, without the time of your own code.",
        f"connections: one for each poller, and for each process one to listen on and at most {CONNECTIONS} to call.",
    ]


def _cautions(load: Load, costs: Costs, masters: int, shards: int, fullest: _Master) -> list[str]:
    found = []
    deepest = costs.push[-1][0]
    if fullest.pending > deepest:
        found.append(
            f"{fullest.pending:,.0f} tasks on a master are more than the {deepest:,.0f} that were measured; the costs "
            "are continued as they grew."
        )
    largest = costs.push_by_bytes[-1][0]
    if load.payload > largest:
        found.append(
            f"payloads of {load.payload:,} bytes are larger than the {largest:,.0f} that were measured; keep what is "
            "large elsewhere, and push its key."
        )
    if masters > 1 and load.pending / shards > MIGRATED:
        found.append(
            f"a shard has {load.pending / shards:,.0f} tasks: moving its slot with MIGRATE would hold up "
            "its server for seconds. Add masters before the load comes, or use a server that moves slots while they "
            "are in use: Valkey 9 (CLUSTER MIGRATESLOTS) or Redis 8.4 (CLUSTER MIGRATION)."
        )
    if load.ahead_s is not None and not load.is_far:
        found.append(
            f"a delay of {load.delay_s:,.0f} s is not far: with ahead={load.ahead_s:g} only what is due in "
            f"more than {load.ahead_s + MARGIN_S:,.0f} s waits in the far store."
        )
    if load.is_far:
        found.append("all tasks are taken to have the mean delay; those that are nearer wait in Redis.")
    if load.replicas:
        found.append("the cost of feeding replicas was not measured, nor that of an append-only file.")
    else:
        found.append("without replicas a master that is lost takes its tasks with it.")
    return found


def imbalance(masters: int, shards: int) -> float:
    """Returns the ids on the fullest master of a cluster ÷ the mean of all masters.

    >>> round(imbalance(3, 48), 2), round(imbalance(64, 48), 2)
    (1.0, 1.33)
    """
    ids: Counter[int] = Counter()
    for shard, buckets in Counter(table(shards)).items():
        # the owner in equal runs of slots, where run n begins at ⌊n × SLOTS ÷ masters⌋
        ids[((target_slot(shard) + 1) * masters - 1) // SLOTS] += buckets
    return max(ids.values()) * masters / ids.total()
