"""When a lane can give its next task, by a rule in plain Python. Lanes are drawn, with windows, rates, holds, gates and
clocks that went back in all combinations, and the script ``lanes`` sets the alarm of each to the instant of the rule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from shardq.core.calls import lane_control
from shardq.core.calls.lane_control import FAR_MS, LATE_MS
from shardq.core.layout.keys import shard_keys
from tests.lua.modelled import ModelledShard
from tests.lua.shard import EPOCH, NOW, State, T, meta, record

FAR = int(FAR_MS)

WINDOWS = {"a": (1, 0.0), "b": (3, 0.0), "c": (1, 200.0), "d": (3, 25.0), "e": (60, 1.0), "f": (2, 10.0)}
"""How many of a lane of this topic may be out, and the ms between two; ``a`` has no window."""


@dataclass
class Lane:
    name: str
    most: int
    interval: float
    due: list[int]
    out: int
    ready: int
    """How many of these are ready and were not taken yet, in a topic with a rate."""
    turn: float | None
    hold: tuple[int, int] | None
    """Its end, and for how many ms it was asked for."""
    gate: str

    @classmethod
    def drawn(cls, source: random.Random, topic: str, key: int) -> Lane:
        most, interval = WINDOWS[topic]
        out = source.choice([0, 0, 1, most - 1, most])
        hold = source.choice([None, None, None, (T - 5, 900), (T, 900), (T + 300, 900), (T + 9_000_000, 900)])
        return cls(
            f"{topic}/{key}/",
            most,
            interval,
            sorted(source.sample(range(T - 300, T + 300), source.randrange(0 if out else 1, 3))),
            out,
            source.randint(0, out) if interval else 0,
            source.choice([None, T - 500, T - 30.25, T, T + 20, T + 40, T + 500]) if interval else None,
            hold,
            source.choice(["", "", "", "open:5", "shut:5", "closed:5", "closed:4"]),
        )

    @property
    def held(self) -> int:
        """When its hold ends. An end further ahead than the hold was asked for is of a clock that went back."""
        ends, asked = self.hold or (0, 0)
        return min(ends, T + asked)

    @property
    def alarm(self) -> float | None:
        if self.gate in ("shut:5", "closed:5"):
            return None
        if self.hold:
            return self.held
        if not self.due or self.out >= self.most:
            return None
        if not self.interval:
            return self.due[0]
        ahead = max(1, LATE_MS // self.interval)
        if self.ready >= ahead:
            return None
        turn = self.turn or 0.0
        if turn > T + (max(self.most, ahead) - 1) * self.interval:
            turn = T - self.interval
        return max(self.due[0], turn + (self.ready + 1) * self.interval)


def stored(lanes: list[Lane]) -> State:
    waiting = {f"{lane.name}{at}": (lane.name, at) for lane in lanes for at in lane.due}
    out = {f"{lane.name}out{n}": n < lane.ready for lane in lanes for n in range(lane.out)}
    windows = {f"keys/{topic}": f"{most}:{ms:.6f}:skip" for topic, (most, ms) in WINDOWS.items() if topic != "a"}
    return {
        "meta": meta(since=5, numbers="1,2", **windows),
        "task": dict.fromkeys([*waiting, *out], record("x")),
        "due": {id: FAR + at for id, (_, at) in waiting.items()},
        "keys": {f"{lane}{at:015}/{at}": 0 for lane, at in waiting.values()},
        "placed": dict.fromkeys(out, 0) | {f"!{id}": 0 for id, is_ready in out.items() if is_ready},
        "rests": {lane.name: lane.turn for lane in lanes if lane.turn is not None},
        "holds": {lane.name: f"{lane.hold[0]}:{lane.hold[1]}" for lane in lanes if lane.hold},
        "gates": {lane.name: lane.gate for lane in lanes if lane.gate},
        "alarms": {lane.name: T for lane in lanes[::2]},
    }


@pytest.mark.parametrize("seed", range(12))
def test_alarms_are_those_of_the_rule(modelled: ModelledShard, name: str, seed: int) -> None:
    source = random.Random(seed)
    lanes = [Lane.drawn(source, topic, key) for topic in WINDOWS for key in range(source.choice([1, 2, 12]))]
    modelled.seed({key: value for key, value in stored(lanes).items() if value})
    modelled.run(lane_control.lanes(shard_keys(name, 1, keyed=True), EPOCH, "", count=1000).at(NOW))
    state = modelled.state()
    assert state.get("alarms", {}) == {lane.name: lane.alarm for lane in lanes if lane.alarm is not None}
    kept = [lane for lane in lanes if lane.hold and lane.gate not in ("shut:5", "closed:5")]
    assert all(state["holds"][lane.name].startswith(f"{lane.held}:") for lane in kept)
