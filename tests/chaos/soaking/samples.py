"""What is sampled of processes and servers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

import psutil

from bench.chaos import Series
from cluster.server import Server

Sample = tuple[str, str, float]
"""The kind of a series, its name, and a value."""

COUNTED_BY = {"zset": "ZCARD", "hash": "HLEN", "list": "LLEN", "set": "SCARD", "string": "STRLEN", "stream": "XLEN"}

OF_ENGINE = re.compile(r"shardq:\{[^}:]*(:?)[^}]*\}:(.+)")


def of_processes(pids: Mapping[str, int]) -> Iterator[Sample]:
    """``pids``: by name. A process that is gone is left out."""
    for name, pid in pids.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                yield "rss", name, float(process.memory_info().rss)
                yield "threads", name, float(process.num_threads())
                yield "descriptors", name, float(process.num_fds())
        except psutil.Error:
            continue


def of_server(name: str, server: Server, counts: Counter[str], entries: Counter[str]) -> Iterator[Sample]:
    """``counts`` and ``entries``: to which its keys, and what is in them, are added by kind."""
    with closing(server.client(decode=True)) as client:
        ask: Callable[..., Any] = client.execute_command
        told = ask("INFO", "memory")
        yield "used memory", name, float(told["used_memory"])
        yield "script memory", name, float(told["used_memory_vm_total"])
        for key in client.scan_iter(count=1000):
            kind = ask("TYPE", key)
            if kind in COUNTED_BY:
                what = kind_of(key)
                counts[what] += 1
                entries[what] += int(ask(COUNTED_BY[kind], key))


def kind_of(key: str) -> str:
    """What a key is for, without the shard, or the process, that it belongs to.

    >>> kind_of("shardq:{chaos:0.035z}:ready/mail"), kind_of("shardq:{chaos}:limits/rate/mail")
    ('ready/mail', 'limits/rate/mail')
    """
    found = OF_ENGINE.fullmatch(key)
    return found[2] if found else key


class Samples:
    """All series of a run."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def add(self, at_s: float, samples: Iterable[Sample]) -> None:
        for kind, name, value in samples:
            series = self._series.setdefault((kind, name), Series(kind, name))
            series.points.append((round(at_s, 1), round(value, 3)))

    @property
    def series(self) -> list[Series]:
        return list(self._series.values())
