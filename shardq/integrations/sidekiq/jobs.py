"""The client without its I/O: jobs as Sidekiq's own client makes them, and the tasks in which they wait."""

from __future__ import annotations

import datetime as dt
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from shardq.core.layout.words import UNENCODABLE
from shardq.core.model.checks import check_topic
from shardq.core.model.task import Task
from shardq.engine.base import EngineBase
from shardq.engine.inside import Inside
from shardq.errors import InvalidOption
from shardq.integrations.delaying import as_payload, check_codec, is_routed, task_id

E = TypeVar("E", bound=EngineBase)

_MADE_HERE = {"class", "args", "queue", "jid", "created_at", "enqueued_at", "at"}


class JobOptions(TypedDict, total=False):
    """The options of a push."""

    queue: str
    delay: float | dt.timedelta | None
    at: float | dt.datetime | None
    retry: bool | int
    options: Mapping[str, Any] | None


class Client(Generic[E]):
    """The parts of both clients that wait for nothing."""

    kind: ClassVar[type[EngineBase]]

    def __init__(self, engine: E, *, major: int = 8, topic: str = "sidekiq", to: str | None = None) -> None:
        name = type(self).__name__
        if not isinstance(engine, self.kind):
            raise InvalidOption(f"{name} takes a shardq.{self.kind.__name__}, not {type(engine).__name__}")
        own = Inside(engine).options
        check_codec(own)
        check_topic(topic)
        if not isinstance(major, int) or not 5 <= major <= 99:
            raise InvalidOption(f"major={major!r} is no version of Sidekiq; give its first number, such as 8")
        if to is None and (own.is_embedded or "+cluster:" in str(own.url)):
            raise InvalidOption(
                "Sidekiq is not on the engine's servers, which are a cluster or embedded; give the URL of its Redis: "
                f"{name}(engine, to='sidekiq+redis://HOST:PORT/DB')"
            )
        self.engine = engine
        self.major = major
        self.topic = topic
        self._to = to or f"sidekiq+{own.url}"
        self._routed: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.major} through {self.engine.name!r}>"

    def _topic_of(self, queue: str) -> str:
        return f"{self.topic}.{queue}"

    def _lacking(self, queue: str) -> tuple[str, str] | None:
        """The topic and the destination of a queue that has no route; the engine is open."""
        topic, to = self._topic_of(queue), f"{self._to}#{quote(queue, safe='')}"
        return None if is_routed(self.engine.topology, topic, to) else (topic, to)

    def _job(
        self,
        job_class: str,
        args: Sequence[Any],
        jid: str | None = None,
        *,
        queue: str = "default",
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
        retry: bool | int = True,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[str, Task]:
        """The jid, and the task, of a job with the fields that ``normalize_item`` of Sidekiq makes. Raises
        InvalidOption.
        """
        if not isinstance(job_class, str) or not job_class:
            raise InvalidOption(
                f"the class of a job can't be {job_class!r}; give its name in Ruby, such as 'RemindJob'"
            )
        if not isinstance(queue, str) or not queue:
            raise InvalidOption(f"queue={queue!r} is not possible; give the name of a queue of Sidekiq")
        if isinstance(args, str | bytes) or not isinstance(args, Sequence):
            raise InvalidOption(f"the arguments of a job can't be {args!r}; give a list, such as [{args!r}]")
        if options and (taken := _MADE_HERE & set(options)):
            raise InvalidOption(f"options= can't have {', '.join(sorted(taken))}: that is what push makes itself")
        if jid is not None and (not isinstance(jid, str) or not jid):
            raise InvalidOption(f"jid={jid!r} is not possible; give text, or None for one that is made here")
        own = {"retry": retry, **(options or {})}
        if not isinstance(own["retry"], int) or own["retry"] < 0:
            raise InvalidOption(f"retry={own['retry']!r} is not possible; give True, False, or the number of retries")
        _check_json(list(args))
        _check_json(own)
        jid = secrets.token_hex(12) if jid is None else jid
        created_at = int(time.time() * 1000) if self.major >= 8 else time.time()
        job = {**own, "queue": queue, "class": job_class, "args": list(args), "jid": jid, "created_at": created_at}
        payload = as_payload(Inside(self.engine).options, msgspec.json.encode(job))
        return jid, Task(payload, delay=delay, at=at, topic=self._topic_of(queue), id=task_id(jid))


def _check_json(value: list[Any] | dict[str, Any]) -> None:
    """Refuses what Ruby would get as something else, as Sidekiq's strict arguments do."""
    try:
        same = msgspec.json.decode(msgspec.json.encode(value)) == value
    except UNENCODABLE:
        same = False
    if not same:
        raise InvalidOption(
            f"{value!r} does not come back from JSON as it is; give numbers, text, True, False, None, lists, and "
            "dicts with text as keys"
        )
