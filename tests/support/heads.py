"""Heads of records, by the options of a task."""

from __future__ import annotations

from typing import Any

from shardq.core.model import record
from shardq.core.model.task_options import Content


def encode_head(*, expires: int | None = None, nonce: int | None = None, **content: Any) -> bytes | None:
    """``content``: options of a task's content."""
    return record.encode_head(Content(**content), expires=expires, nonce=nonce)
