"""While a master is away, who waits for it asks the others now and then. Simulated: real time would count something
else on each machine.
"""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

from shardq import Task
from tests.sim.world.stage import staged

AWAY_S = 5.0
LOOKS_A_SECOND = 2


def test_the_slot_map_is_not_asked_for_without_a_pause() -> None:
    """A map that was learnt has the replayer look again, but not one that it has learnt itself."""
    asked = 0
    with staged(1, nodes=2, is_cluster=True) as stage:
        told = stage.servers.told

        def counted(what: bytes, node: Any) -> Any:
            nonlocal asked
            asked += what == b"SLOTS"
            return told(what, node)

        def push() -> None:
            with stage.engine(replay=30.0) as engine:
                engine.push_many([Task(number) for number in range(20)])
                stage.servers.nodes[1].go_down()
                time.sleep(AWAY_S)

        with mock.patch.object(stage.servers, "told", counted):
            stage.run(stage.spawn("pushes", push))
    assert 2 < asked < 3 * AWAY_S * LOOKS_A_SECOND
