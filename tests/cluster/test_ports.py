"""A port is given once."""

from __future__ import annotations

import subprocess
import sys

from cluster.ports import free_port

MANY = 300


def test_no_port_is_given_twice() -> None:
    """The server that had it may be dead, and be started again."""
    ports = [free_port() for _ in range(MANY)]
    program = f"from cluster.ports import free_port; print(*(free_port() for _ in range({MANY})))"
    others = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert len({*ports, *map(int, others)}) == 2 * MANY
