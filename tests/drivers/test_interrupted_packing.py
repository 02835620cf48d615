"""Ctrl-C while a command is being packed is an exception like any other."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import signal, time
from shardq.core.calls.request import Command

class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

signal.signal(signal.SIGALRM, interrupt)
command = Command(-1, ["SET", *range(5000), *(n / 3 for n in range(1000))], decode=bytes)
until, times = time.monotonic() + 1.5, 0
while time.monotonic() < until:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        while True:
            command.packed()
    except Interrupted:
        times += 1
print(times)
"""


@pytest.mark.slow
def test_a_handler_that_raises_does_not_crash_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
