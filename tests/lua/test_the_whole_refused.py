"""Scripts of the whole engine whose user may not do all that they do; and shards that learn of a newer topology from a
caller, on a server that can't note it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest

from shardq.core.calls import control as calls
from shardq.core.layout.keys import ControlKeys
from shardq.core.scripts import script
from tests.lua import shard
from tests.lua.samples import WHOLE, named, on_the_whole
from tests.lua.shard import NOW, Shard
from tests.lua.test_contracts import CONTROL


def tried(name: str) -> set[str]:
    """The commands that a script goes on without: it tries them, and needs them for nothing else."""
    text = script(name).text
    return set(re.findall(r"redis\.pcall\('([A-Z]+)'", text)) - set(re.findall(r"redis\.call\('([A-Z]+)'", text))


SAMPLES = on_the_whole(CONTROL)
TRIED = {
    f"{name} without {command}": (number, command)
    for number, name in enumerate(named(SAMPLES))
    for command in sorted(tried(SAMPLES[number].script.name))
}


@pytest.fixture
def user(centre: Shard) -> Iterator[str]:
    user = f"u{uuid.uuid4().hex}"
    centre.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "allchannels", "allkeys")
    yield user
    centre.do("ACL", "DELUSER", user)


@pytest.mark.parametrize(("number", "command"), TRIED.values(), ids=TRIED)
def test_what_is_only_tried_is_no_reason_to_fail(
    centre: Shard, control: ControlKeys, user: str, number: int, command: str
) -> None:
    call = on_the_whole(control)[number]
    centre.seed(WHOLE)
    answer = centre.ask(call)
    centre.seed(WHOLE)
    centre.do("ACL", "SETUSER", user, f"-{command.lower()}")
    with centre.as_user(user) as asker:
        told = asker.ask(call)
    # behind these a heartbeat tells what it has written
    told_anyhow = 6 if (call.script.name, command) == ("heartbeat", "HSET") else len(answer)
    assert told[:told_anyhow] == answer[:told_anyhow]


def test_a_report_that_is_refused_is_left_out(centre: Shard, control: ControlKeys, user: str) -> None:
    """Who lives is known all the same, and no word says that nothing has changed."""
    centre.seed(WHOLE | {"unreached": {"": "a word"}})
    centre.do("ACL", "SETUSER", user, "-hset")
    with centre.as_user(user) as asker:
        beat = calls.heartbeat(control, "d", alive_ms=9, others_ms=9, epoch=0, report=b"new").at(NOW)
        assert shard.named(asker.ask(beat))["word"] == ""
        asker.ask(calls.report(control, 0, "w", alive_ms=9, report=b"new").at(NOW))
    state = centre.state()
    assert "d" in state["members"]
    assert "w" in state["workers"]
    assert state["reports"].keys() <= {"me", "worker", "late"}
    assert "unreached" not in state
