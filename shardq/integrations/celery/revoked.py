"""The result of a task that was cancelled: what a worker stores when it discards a revoked message. No worker will see
this one, and whoever waits for the result, or for the chord that it is a part of, is told now.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from typing import Any

from celery.app.task import Context
from kombu.compression import decompress
from kombu.serialization import loads as load_body
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

log = logging.getLogger("shardq.integrations")


def mark_revoked(app: Any, payload: bytes) -> None:
    """Stores the state REVOKED, and fails the chord. ``payload``: the message as it waited. What goes wrong is logged:
    the task is cancelled all the same.
    """
    try:
        request = _request(app, loads(payload))
        app.backend.mark_as_revoked(request.id, "revoked", request=request, store_result=not request.ignore_result)
    except Exception as exc:  # noqa: BLE001  backends and serializers raise what they like
        log.warning("a task was revoked, but its result could not be set: %s: %s", type(exc).__name__, exc)


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
