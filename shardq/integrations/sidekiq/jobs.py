"""Jobs as Sidekiq's own client makes them. No I/O."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shardq.errors import InvalidOption

_MADE_HERE = {"class", "args", "queue", "jid", "created_at", "enqueued_at", "at"}


def new_job(
    major: int,
    job_class: str,
    args: Sequence[Any],
    *,
    queue: str,
    jid: str | None,
    retry: bool | int,
    options: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The fields of a job, as ``normalize_item`` of Sidekiq makes them. Raises InvalidOption."""
    if not isinstance(job_class, str) or not job_class:
        raise InvalidOption(f"the class of a job can't be {job_class!r}; give its name in Ruby, such as 'RemindJob'")
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
    created_at = int(time.time() * 1000) if major >= 8 else time.time()
    return {**own, "queue": queue, "class": job_class, "args": list(args), "jid": jid, "created_at": created_at}


def _check_json(value: list[Any] | dict[str, Any]) -> None:
    """Refuses what Ruby would get as something else, as Sidekiq's strict arguments do."""
    try:
        same = msgspec.json.decode(msgspec.json.encode(value)) == value
    except (TypeError, ValueError, msgspec.MsgspecError):
        same = False
    if not same:
        raise InvalidOption(
            f"{value!r} does not come back from JSON as it is; give numbers, text, True, False, None, lists, and "
            "dicts with text as keys"
        )
