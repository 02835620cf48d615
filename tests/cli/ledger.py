"""Lines to push, and which of them the server has stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from shardq import Engine
from shardq.core.layout.keys import shard_keys
from shardq.core.model.record import codec_named, decode_record
from shardq.engine.access import EngineAccess
from tests.support.servers import Servers


def lines(objects: Iterable[Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def stored(engine: Engine) -> Counter[Any]:
    """Returns the payloads of all tasks, and how often each is stored."""
    found = Counter[Any]()
    with Servers(str(EngineAccess(engine).options.url)) as servers:
        for shard in engine.stats().shards:
            keys = shard_keys(engine.name, shard.shard)
            records = servers.ask(keys.slot, "HVALS", keys.task)
            found.update(decode_record(record, own=codec_named("json")).payload for record in records)
    return found
