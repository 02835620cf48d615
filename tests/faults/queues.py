"""Topics that feed other queues on Redis, whose Redis is broken: what each integration puts into the engine goes out in
the form of that queue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tests.faults.neighbours import RedisNeighbour
from tests.faults.sinks import SILENT_S, SinkWay

_ONLY_ITS_FORM = "Redis looks at no message, and what is no message of this queue is refused at once"


class QueueWay(SinkWay):
    neighbour: RedisNeighbour
    not_here: ClassVar[Mapping[str, str]] = {
        "timing out on one item": _ONLY_ITS_FORM,
        "slow on one item": _ONLY_ITS_FORM,
    }

    def listed(self, key: str) -> list[str]:
        found: list[str] = self.neighbour.server.ask("LRANGE", key, 0, -1)
        return found


class RqWay(QueueWay):
    kind = "rq"
    not_here: ClassVar[Mapping[str, str]] = {
        **QueueWay.not_here,
        "full": "the job is there already, and its ticket is removed first: a full Redis takes that",
    }

    def to(self, address: str, login: str = "") -> str:
        return f"rq+redis://{login}{address}?timeout={SILENT_S}"

    def prepare(self, uniques: Sequence[str]) -> None:
        with self.neighbour.server.client() as client:
            for unique in uniques:
                client.hset(f"rq:job:{unique}", mapping={"shardq": unique, "status": "scheduled"})

    def payload(self, unique: str, fault: str = "") -> Any:
        if fault == "refusing one item":
            return {"id": unique}
        places = {"queue": "rq:queue:mail", "queues": "rq:queues", "scheduled": "rq:scheduled:mail"}
        return {"id": unique, "ticket": unique, "job": f"rq:job:{unique}", "fault": fault, **places}

    def arrived(self) -> Sequence[str]:
        return self.listed("rq:queue:mail")


class DramatiqWay(QueueWay):
    kind = "dramatiq"

    def to(self, address: str, login: str = "") -> str:
        return f"dramatiq+redis://{login}{address}?timeout={SILENT_S}#dramatiq:mail"

    def headers(self, unique: str, fault: str = "") -> Mapping[str, str]:
        return {} if fault == "refusing one item" else {"redis_message_id": unique}

    def arrived(self) -> Sequence[str]:
        return self.listed("dramatiq:mail")


class SidekiqWay(QueueWay):
    kind = "sidekiq"

    def to(self, address: str, login: str = "") -> str:
        return f"sidekiq+redis://{login}{address}?timeout={SILENT_S}#mail"

    def payload(self, unique: str, fault: str = "") -> Any:
        return [unique] if fault == "refusing one item" else {"jid": unique, "created_at": 1.5, "args": [fault]}

    def arrived(self) -> Sequence[str]:
        return [json.loads(job)["jid"] for job in self.listed("queue:mail")]


class CeleryWay(QueueWay):
    """Through kombu, as to every broker that is no plain list of Redis."""

    kind = "celery"

    def to(self, address: str, login: str = "") -> str:
        return f"kombu+redis://{login}{address}/0?timeout={SILENT_S}"

    def payload(self, unique: str, fault: str = "") -> Any:
        if fault == "refusing one item":
            return {"body": unique}
        return {
            "body": fault, "base64": False, "priority": 0, "content_type": "text/plain", "content_encoding": "utf-8",
            "headers": {"id": unique}, "properties": {"delivery_info": {}}, "exchange": "", "routing_key": "mail",
            "expires_ms": None, "exchange_type": None,
        }  # fmt: skip

    def arrived(self) -> Sequence[str]:
        return [json.loads(message)["headers"]["id"] for message in self.listed("mail")]
