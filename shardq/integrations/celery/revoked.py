"""A task that was cancelled, as others learn of it: what a worker does when it discards a revoked message. No worker
will see this one. So the result with the chord that waits for it, the signal ``task_revoked`` and the event
``task-revoked`` come from the process that cancels.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import signals
from celery.app.task import Context
from kombu.compression import decompress
from kombu.serialization import loads as load_body
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

log = logging.getLogger("shardq.integrations")


def announce_revoked(app: Any, payload: bytes) -> None:
    """Stores the state REVOKED, fails the chord, and sends the signal and the event. ``payload``: the message as it
    waited. What goes wrong is logged: the task is cancelled all the same.
    """
    with _logged("its result could not be set"):
        request = _request(app, loads(payload))
        app.backend.mark_as_revoked(request.id, "revoked", request=request, store_result=not request.ignore_result)
    with _logged("its event or signal could not be sent"):
        request = _request(app, loads(payload))
        task = app.tasks.get(request.task)  # None: another program has it
        how = {"terminated": False, "signum": None, "expired": False}
        signals.task_revoked.send(task, request=request, **how)
        # nobody knows here if workers send events: one that no monitor reads is dropped by the broker
        if task is None or task.send_events:
            with app.events.default_dispatcher() as events:
                events.send("task-revoked", uuid=request.id, **how)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # noqa: BLE001  backends, brokers and serializers raise what they like
        log.warning("a task was revoked, but %s: %s: %s", what, type(exc).__name__, exc)


def _request(app: Any, message: dict[str, Any]) -> Any:
    """The request as a worker makes it of the message, without the arguments."""
    headers, properties = message["headers"], message["properties"]
    body = message["body"]
    if message.get("base64") or properties.get("body_encoding") == "base64":
        body = b64decode(body)
    if method := headers.get("compression"):
        body = decompress(body, method)
    content_type = message.get("content-type") or message["content_type"]
    encoding = message.get("content-encoding") or message["content_encoding"]
    content = load_body(body, content_type, encoding, accept=prepare_accept_content(app.conf.accept_content))
    if isinstance(content, dict):  # the first protocol
        return Context({**content, "reply_to": properties.get("reply_to")})
    return Context(
        {
            **headers,
            "ignore_result": bool(headers.get("ignore_result")),
            "reply_to": properties.get("reply_to"),
            "correlation_id": properties.get("correlation_id"),
            **(content[2] or {}),
        }
    )
