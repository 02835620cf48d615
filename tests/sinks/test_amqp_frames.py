"""The frames of a published message, as py-amqp reads them."""

from __future__ import annotations

from collections.abc import Mapping
from struct import unpack_from
from typing import Any

import amqp
import pytest

from shardq.features.sinks.amqp import SHORT, Frames, message_id
from shardq.features.sinks.base import Message

CHANNEL = 3
FRAME_MAX = 4096


def a_message(payload: bytes = b"{}", *, id: str = "mail/1", headers: Mapping[str, str] | None = None) -> Message:
    return Message(id=id, topic="mail", payload=payload, codec="json", headers=headers or {}, attempt=1)


def read(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The properties and the payload. Checks each frame on the way."""
    kinds, contents, at = [], [], 0
    while at < len(data):
        kind, channel, size = unpack_from(">BHI", data, at)
        assert (channel, data[at + 7 + size]) == (CHANNEL, 0xCE)
        assert size + 8 <= FRAME_MAX
        kinds.append(kind)
        contents.append(data[at + 7 : at + 7 + size])
        at += size + 8
    assert kinds == [1, 2] + [3] * (len(kinds) - 2)
    assert contents[0] == bytes([0, 60, 0, 40, 0, 0, 1]) + b"x" + bytes([1]) + b"k" + bytes([1])
    message = amqp.Message()
    assert unpack_from(">HHQ", contents[1]) == (60, 0, sum(map(len, contents[2:])))
    message._load_properties(60, contents[1], 12)
    return message.properties, b"".join(contents[2:])


def frames() -> Frames:
    return Frames(CHANNEL, "x", "k", FRAME_MAX)


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
def test_a_payload_of_any_size(size: int) -> None:
    payload = bytes(n % 251 for n in range(size))
    packed = frames().of(a_message(payload, headers={"trace": "ä"}))
    assert packed is not None
    properties, body = read(packed)
    assert body == payload
    assert properties == {
        "content_type": "application/json",
        "application_headers": {"trace": "ä"},
        "delivery_mode": 2,
        "message_id": "mail/1",
        "type": "mail",
    }


def test_the_longest_topic_with_the_longest_id() -> None:
    long = a_message(id=f"{'t' * 64}/{'i' * 200}")
    packed = frames().of(long)
    assert packed is not None
    properties, _ = read(packed)
    assert properties["message_id"] == message_id(long) != long.id
    assert len(message_id(long)) == 64
    most = a_message(id=f"mail/{'i' * (SHORT - 5)}")
    assert message_id(most) == most.id


def test_headers_that_have_no_room() -> None:
    packed = frames().of(a_message(headers={"n" * SHORT: "kept", "n" * (SHORT + 1): "left out"}))
    assert packed is not None
    assert read(packed)[0]["application_headers"] == {"n" * SHORT: "kept"}
    assert frames().of(a_message(headers={"large": "x" * FRAME_MAX})) is None
