"""What goes wrong, as HTTP says it: one table from the errors of Python to the status, and the form of the answer, a
problem of RFC 9457 with the sentence that the error has.

**503 says that nothing was written. 504 says that it is unknown what was: send the same again, with the same id.**
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

import shardq.errors as errors
from shardq.core.model.arguments import in_fields
from shardq.errors import ShardqError

log: logging.Logger = logging.getLogger("shardq.http")

TYPE = b"application/problem+json"

AGAIN_S = 1
"""``Retry-After`` of what will pass: a failover, a full server, a crowd."""

TABLE: tuple[tuple[type[ShardqError], int], ...] = (
    (errors.PayloadTooLarge, 413),
    (errors.BadInput, 400),
    (errors.UnknownSchedule, 404),
    (errors.ChangeUnderWay, 409),
    (errors.Conflict, 409),
    (errors.LeaseLost, 409),
    (errors.Unanswered, 504),
    (errors.SettleError, 504),  # some of it is done
    (errors.PushError, 504),  # likewise
    (errors.NotReplicated, 504),  # it is stored; again with the same id confirms it
    (errors.ServerFault, 503),
    (errors.IncompatibleVersion, 503),
    (errors.AnotherEngine, 503),
    (errors.SpoolFault, 503),
    (errors.EmbeddedFault, 503),
    (errors.EngineClosed, 503),
)
"""Error → status; the first that fits. Whatever is not here is a fault of ours: 500."""

RETRIED = frozenset((429, 503, 504))
"""Answers that say when to ask again."""


class ProblemForm(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An answer that says what was wrong, what is allowed, and what to do."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    code: str
    """A name for programs: that of the error in Python, such as ``Conflict``, or that of the status."""
    request_id: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    """The id of the task, where it is about one."""
    state: str | UnsetType = UNSET
    """The state of that task."""


class Refusal(Exception):
    """An answer that is not what was asked for. Raised by whatever looks at a request."""

    def __init__(self, status: int, detail: str, *, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status: int = status
        self.detail: str = detail
        self.code: str = code or HTTPStatus(status).phrase.replace(" ", "").replace("-", "")
        self.headers: dict[str, str] = dict(headers or {})
        self.more: dict[str, Any] = {}


def refusal_of(exc: Exception) -> Refusal:
    """The answer to a request that met this."""
    if isinstance(exc, Refusal):
        return exc
    status = next((status for kind, status in TABLE if isinstance(exc, kind)), 500)
    if status == 500:
        log.error("a request has failed by a fault of shardq's own", exc_info=exc)
        return Refusal(500, "this is a fault of shardq; the log of its process has more, under the request's id")
    refusal = Refusal(status, in_fields(str(exc)), code=type(exc).__name__)
    if isinstance(exc, errors.Conflict):
        refusal.more = {"id": exc.id, "state": exc.state}
    elif isinstance(exc, errors.NotReplicated) and len(exc.ids) == 1:
        refusal.more = {"id": exc.ids[0]}
    return refusal


def form_of(refusal: Refusal, request_id: str | UnsetType = UNSET) -> ProblemForm:
    return ProblemForm(
        type="about:blank",
        title=HTTPStatus(refusal.status).phrase,
        status=refusal.status,
        detail=refusal.detail,
        code=refusal.code,
        request_id=request_id,
        **refusal.more,
    )
