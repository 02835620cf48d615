"""Conversations with several nodes at once, by one thread: while one server waits for its disk, the others do, too."""

from __future__ import annotations

import select
import time
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from shardq.core.drivers.connection import READ_TIMEOUT_S, Connection
from shardq.core.drivers.conversations import Exchange
from shardq.core.drivers.faults import timed_out

T = TypeVar("T")


def converse_together(talks: Sequence[tuple[Connection, Generator[Exchange, Any, T]]], deadline: float) -> list[T]:
    """Holds conversations, each on a connection of its own, and each step of one answer. Returns their results. A node
    that is silent gets a fault at the deadline, and holds up no other.
    """
    results: dict[int, T] = {}
    waiting: dict[int, tuple[int, float]] = {}
    """Place of a talk whose answer is awaited → its file descriptor, and when its server is taken for dead."""

    def go_on(place: int, answer: Any) -> None:
        """Takes the steps of a conversation until one has to wait for its answer."""
        connection, conversation = talks[place]
        try:
            while True:
                step = conversation.send(answer)
                if (fault := connection.send(step.data, deadline=deadline)) is None:
                    silent_at = min(deadline, time.monotonic() + READ_TIMEOUT_S)
                    waiting[place] = connection.sock.fileno(), silent_at
                    return
                answer = fault
        except StopIteration as stop:
            results[place] = stop.value

    for place in range(len(talks)):
        go_on(place, None)
    while waiting:
        poll = select.poll()
        for number, _ in waiting.values():
            poll.register(number, select.POLLIN)
        until = min(silent_at for _, silent_at in waiting.values())
        ready = {number for number, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)}
        for place, (number, silent_at) in list(waiting.items()):
            left = silent_at - time.monotonic()
            if number in ready:
                del waiting[place]
                go_on(place, talks[place][0].receive(left))
            elif left <= 0:
                del waiting[place]
                go_on(place, timed_out(READ_TIMEOUT_S))
    return [results[place] for place in range(len(talks))]
