"""What a request may have changed, judged by all shards before and after it.

It may change the tasks it is about, in the way it is meant to, and no others. Above all, no step of a migration changes
what is stored of any task, or the dedup window of any id. Pure.
"""

from __future__ import annotations

from typing import Any

from shardq.core.calls.request import Call, Command
from tests.resharding.picture import Picture, Task


def judged(request: Command[Any], result: Any, before: Picture, after: Picture, now_ms: int) -> list[str]:
    """Returns what is wrong; ``now_ms`` is the time that was given to a dispatch."""
    said = f"after {_named(request)}, answered {result!r}"
    wrong = [f"{what} {said}" for what in after.wrong]
    for id in sorted(before.tasks.keys() | after.tasks.keys()):
        old, new = before.tasks.get(id), after.tasks.get(id)
        if old != new and not (_may_change(request, id, before) and _fitting(request, id, old, new, now_ms)):
            wrong.append(f"{id} was {old} at {before.places.get(id)} and is {new} at {after.places.get(id)} {said}")
    script = request.script.name if isinstance(request, Call) else ""
    if script not in ("push_unique", "dispatch") and before.windows != after.windows:
        wrong.append(f"the windows {before.windows} are {after.windows} {said}")
    if script == "push_unique" and isinstance(result, list) and request.words[3] == "0":
        words = request.words
        for at, answer in zip(range(5, len(words), 5), result, strict=True):
            id = str(words[at])
            if answer == "pushed" and id in before.tasks:
                wrong.append(f"{id} was there already {said}")
            if answer == "pushed" and id in before.windows and words[at + 3] != "replace":
                wrong.append(f"{id} was in its dedup window {said}")
    return wrong


def _named(request: Command[Any]) -> str:
    if isinstance(request, Call):
        return f"{request.script.name} {list(request.words)} at {request.keys[0]}"
    return f"{list(request.words)}"


def _may_change(request: Command[Any], id: str, before: Picture) -> bool:
    """True if the request may change this id."""
    if not isinstance(request, Call):
        return False
    match request.script.name:
        case "push":
            return id in request.words[4 + int(request.words[3]) :: 3]
        case "push_unique":
            return id in request.words[5::5]
        case "cancel":
            return id == request.words[2]
        case "reschedule" | "requeue":
            return id == request.words[3]
        case "dispatch" | "claim" | "settle":
            return before.prefixes.get(id) == request.keys[0].removesuffix("meta")
    return False


def _fitting(request: Command[Any], id: str, old: Task | None, new: Task | None, now_ms: int) -> bool:
    """True if a request on the id may turn the first state into the second."""
    assert isinstance(request, Call), "nothing else changes a task"
    was, is_now = (old.state if old else "gone"), (new.state if new else "gone")
    if old and new and request.script.name != "push_unique" and old.record != new.record:
        return False
    match request.script.name:
        case "push" | "push_unique":
            at = list(request.words).index(id)
            pushed = ("scheduled", *request.words[at + 1 : at + 3])
            return new is not None and (is_now, new.instant_ms, new.record) == pushed
        case "cancel":
            return was in ("scheduled", "ready", "dead") and new is None
        case "reschedule":
            return was in ("scheduled", "ready") and new is not None and new.instant_ms == request.words[4]
        case "requeue":
            return was == "dead" and new is not None and new.instant_ms == request.words[4]
        case "dispatch":
            return old is not None and old.instant_ms <= now_ms and was in ("scheduled", "leased") and is_now == "ready"
        case "claim":
            return (was, is_now) == ("ready", "leased")
        case "settle":
            return was == "leased" and is_now in ("gone", "scheduled", "dead")
    return False
