"""A trip of a claim goes by one topology, whenever another thread learns a newer one: shards refuse the old epoch, so
no task is claimed past a limit, a pause or a route that the claim did not know.
"""

from __future__ import annotations

import msgspec
import pytest

from shardq.core.calls.request import Call
from shardq.core.consumer.claim_planner import ReadyCounts
from shardq.core.consumer.claim_state import ClaimNotes, Claims
from shardq.core.consumer.claiming import claim
from shardq.core.layout.topology import Limit, TopicSettings, Topology
from shardq.core.model.record import JSON
from shardq.core.operation import Many
from tests.support.learning import LearningCache

OLD = Topology(epoch=1, shards=2)
GLANCES = 8
"""More than a claim takes at the topology before it is sent."""


@pytest.mark.parametrize("change", [TopicSettings(limit=Limit(concurrency=1)), TopicSettings(paused=True)])
@pytest.mark.parametrize("at", range(1, GLANCES))
def test_what_is_sent_has_the_epoch_that_it_goes_by(change: TopicSettings, at: int) -> None:
    news = msgspec.structs.replace(OLD, epoch=2, topics={"": change})
    claims = Claims(
        LearningCache("claims", OLD, news, at), [""], name="c", lease_ms=1000, codec=JSON, ready_counts=ReadyCounts()
    )
    step = next(claim(claims, ClaimNotes(), 3, range(2)))
    assert isinstance(step, Many)
    sent = [call for _, call in step.pairs]
    assert sent, "the claim began before the change"
    for call in sent:
        assert isinstance(call, Call)
        assert call.words[0] == OLD.stamp
