"""The meaning of an endpoint's answer for a hook: what a handler, or the sink of a route, raises. No I/O.

| answer | becomes |
| --- | --- |
| 2xx | done |
| 429, or 503, with Retry-After | the key waits, and no attempt counts; without a key it is an attempt |
| 410 | dead: the customer has taken the endpoint away. On a route its key waits for a day |
| 3xx, other 4xx, other 5xx, none | an attempt, by the schedule of Standard Webhooks; dead after the last |
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Protocol

from shardq.core.consumer.policy import Bury, Gone, Hold, Retry, Snooze
from shardq.features.sinks.answer import Answer
from shardq.features.sinks.http import asked_s

SCHEDULE_S = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""The pause after each failure: three days in all. ``SPREAD`` of each is random, so that hooks that failed together do
not come back together.
"""
SPREAD = 0.2

LONGEST_S = 3600.0
"""The longest pause that an endpoint may ask for."""
SHORTEST_S = 1.0
"""One that asks for less would be asked without a pause."""

GONE_S = 86_400.0
"""The pause of the key of an endpoint that is gone."""

QUOTED = 300
"""Characters of an answer that a reason quotes."""


class Hook(Protocol):
    """A delivery, or a message."""

    @property
    def key(self) -> str | None: ...

    @property
    def failures(self) -> int: ...


def meaning_of(
    answer: Answer, task: Hook, secrets: Iterable[str] = (), *, of_route: bool = False
) -> Retry | Hold | Bury | None:
    """The meaning of an answer; None: the endpoint has the hook. ``secrets`` are left out of what is quoted.
    ``of_route``: the attempts are the route's to count, and an endpoint that is gone is asked no more for a while.

    >>> meaning_of(Answer(204, "No Content", None, b""), delivery)
    """
    if 200 <= answer.status < 300:
        return None
    reason = _reason(answer, secrets)
    if answer.status == 410:
        said = f"{reason}; the endpoint is gone: send it no more"
        return Gone(said, GONE_S) if of_route and task.key is not None else Bury(said)
    if answer.status in (429, 503) and (asked := asked_s(answer.retry_after)) is not None:
        pause_s = min(max(asked, SHORTEST_S), LONGEST_S)
        # without a key the whole topic would wait
        return failed(task, reason, pause_s, of_route=of_route) if task.key is None else Hold(pause_s)
    advice = "; give the URL to which this one redirects" if 300 <= answer.status < 400 else ""
    return failed(task, reason + advice, of_route=of_route)


def failed(task: Hook, reason: str, pause_s: float | None = None, *, of_route: bool = False) -> Retry | Bury:
    """An attempt that has failed: again after so long, or by the schedule, or no more. A route has attempts of its own,
    and a task may have more than the schedule has pauses: the last one is that of all others.
    """
    if not of_route and task.failures >= len(SCHEDULE_S):
        return Bury(f"{reason}; given up after {task.failures + 1} failures")
    if pause_s is None:
        pause_s = SCHEDULE_S[min(task.failures, len(SCHEDULE_S) - 1)] * random.uniform(1 - SPREAD, 1 + SPREAD)
    return Retry(pause_s, reason)


def put_off(task: Hook, pause_s: float) -> Snooze:
    """Not sent, by no fault of the endpoint's or the hook's: no attempt. Its key waits with it, to keep its order."""
    return Snooze(pause_s) if task.key is None else Hold(pause_s)


def _reason(answer: Answer, secrets: Iterable[str]) -> str:
    said = f"{answer.phrase}: {answer.body.decode('utf-8', 'replace').strip()}".removesuffix(": ")
    for secret in secrets:  # an endpoint may repeat what it was sent
        said = said.replace(secret, "***")
    return f"HTTP {answer.status} {said[:QUOTED]}".strip()
