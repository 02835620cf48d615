"""A dispatcher that signs off is gone, whatever it was about to say. Simulated: it takes a moment of microseconds."""

from __future__ import annotations

import time
from functools import partial

from shardq import Engine
from tests.sim.world.stage import Stage, staged

MOMENTS = range(40)


def test_a_heartbeat_under_way_does_not_outlive_the_sign_off() -> None:
    """The second of two dispatchers ends just as the end of the first one has it send a heartbeat."""
    left = {moment: names for moment in MOMENTS if (names := _left(moment))}
    assert not left


def _left(moment: int) -> list[str]:
    """The dispatchers that count as alive when both have ended."""
    names: list[str] = []

    def serve(stage: Stage, seconds: float) -> None:
        engine = stage.engine()
        engine.start()
        time.sleep(seconds)
        engine.close()

    def look(engine: Engine) -> None:
        names.extend(member.name for member in engine.fleet())
        engine.close()

    with staged(moment) as stage:
        later_s = 0.020 + moment * 20e-6
        ends = (2.0, 2.0 + later_s)
        stage.run(*(stage.spawn(f"dispatcher{ends_s}", partial(serve, stage, ends_s)) for ends_s in ends))
        stage.run(stage.spawn("look", lambda: look(stage.engine())))
    return names
