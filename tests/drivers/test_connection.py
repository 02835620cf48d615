"""One connection: an exchange takes few system calls, and is whole and bounded all the same."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shardq.core.drivers.connection import Connection
from shardq.core.drivers.faults import Fault

PATIENT_S = 60.0


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the other end of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours, "here"), theirs


def exchange(connection: Connection, data: bytes, *, wait: float = PATIENT_S) -> Any:
    return connection.exchange(data, deadline=time.monotonic() + wait)


def test_an_exchange_sends_and_reads_and_does_nothing_else(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    server.sendall(b"+one\r\n")
    assert exchange(connection, b"first") == b"one"
    server.sendall(b"+two\r\n")
    called: list[str] = []
    sys.setprofile(lambda _, event, arg: called.append(arg.__name__) if event == "c_call" else None)
    try:
        answer = exchange(connection, b"second")
    finally:
        sys.setprofile(None)
    assert answer == b"two"
    assert server.recv(100) == b"firstsecond"
    # in each of these calls another thread can take the interpreter
    assert [name for name in called if name in ("settimeout", "sendall", "send", "write", "recv")] == ["write", "recv"]


def test_what_does_not_fit_in_the_socket_is_sent_all_the_same(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    data = bytes(range(256)) * 20_000
    read = bytearray()

    def serve() -> None:
        while len(read) < len(data):
            read.extend(server.recv(65536))
        server.sendall(b"+OK\r\n")

    server.settimeout(PATIENT_S)
    thread = threading.Thread(target=serve)
    thread.start()
    assert exchange(connection, data) == b"OK"
    thread.join()
    assert bytes(read) == data


@pytest.mark.parametrize("size", [5, 5_000_000], ids=["no answer", "not taken"])
def test_an_exchange_ends_in_time(ends: tuple[Connection, socket.socket], size: int) -> None:
    connection, server = ends
    server.sendall(b"+one\r\n")
    assert exchange(connection, b"first") == b"one"
    began = time.monotonic()
    assert isinstance(exchange(connection, b"x" * size, wait=0.05), Fault)
    assert time.monotonic() - began < 4.0


@pytest.mark.parametrize("of_two", [False, True], ids=["in parts", "the second of two"])
def test_an_answer_that_comes_bit_by_bit_does_not_put_off_the_end(
    ends: tuple[Connection, socket.socket], of_two: bool
) -> None:
    connection, server = ends
    is_over = threading.Event()

    def dribble() -> None:
        server.sendall(b"+one\r\n" if of_two else b"$1000\r\n")
        while not is_over.wait(0.02):
            server.sendall(b"$1000\r\n" if of_two and not sent else b"x")
            sent.append(1)

    sent: list[int] = []
    thread = threading.Thread(target=dribble)
    thread.start()
    began = time.monotonic()
    fault = connection.exchange(b"call", deadline=began + 0.2, answers=2 if of_two else 1)
    took = time.monotonic() - began
    is_over.set()
    thread.join()
    assert isinstance(fault, Fault)
    assert fault.lost
    assert took < 5.0  # the answer is whole after twenty seconds


def test_a_socket_that_was_used_without_waiting_waits_again(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    connection.sock.settimeout(0)
    timer = threading.Timer(0.05, server.sendall, [b"+late\r\n"])
    timer.start()
    assert exchange(connection, b"first") == b"late"
    timer.join()


def test_a_connection_that_ended_is_a_fault_before_sending(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    server.close()
    fault = exchange(connection, b"first")
    assert isinstance(fault, Fault)
    assert not fault.lost
