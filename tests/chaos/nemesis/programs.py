"""Faults of programs."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import psutil

from shardq.relay.file import RESERVE_BYTES
from tests.chaos.nemesis.nemesis import LeftOut, Nemesis, Way, effective
from tests.chaos.plan import Fault, FaultKind, ProgramKind
from tests.chaos.program import HEAVY_BYTES
from tests.chaos.proxy import HOST
from tests.judge.verdict import Loss
from tests.judge.witness import monotonic_us

CLOCKED: tuple[ProgramKind, ...] = (
    "dispatch", "flow", "drain", "produce", "consume", "work", "operate", "administer", "watch", "send",
)  # fmt: skip
"""Programs whose own clock means nothing. In a spool and in an outbox a delay counts by the clock of the process."""


def _kill(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.program(fault) as process:
        nemesis.processes.kill(process)
        nemesis.lasts(fault.seconds)
        nemesis.processes.start(process.program)
        return process.who


def _end(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.program(fault) as process:
        nemesis.processes.stop(process)
        nemesis.processes.start(process.program)
        return process.who


def _freeze(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.program(fault) as process:
        from_us = monotonic_us()
        with nemesis.losing(process.who):
            process.signal(signal.SIGSTOP)
            try:
                nemesis.lasts(fault.seconds)
                is_still = psutil.Process(process.popen.pid).status() == psutil.STATUS_STOPPED
            finally:
                process.signal(signal.SIGCONT)
        nemesis.facts.frozen.append(Loss(from_us, monotonic_us(), process.who))
        effective(is_still)
        return process.who


def _cut(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.program(fault) as process, nemesis.losing(process.who):
        if not (count := nemesis.ground.proxies.cut_peers(process.ports())):
            raise LeftOut("it has no connection")
        return f"{count} connections of {process.who}"


def _set_clock(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.program(fault, CLOCKED) as process:
        nemesis.processes.stop(process)
        nemesis.processes.start(process.program, clock_s=fault.seconds)
        return process.who


def _fill_disk_of_spool(nemesis: Nemesis, fault: Fault) -> str:
    """The servers are away meanwhile: else nothing goes to the file."""
    with ExitStack() as stack:
        process = stack.enter_context(nemesis.program(fault, ("spool",)))
        masters = [stack.enter_context(nemesis.one([each], fault)) for each in nemesis.masters()]
        ports = [nemesis.ground.ports[each] for each in masters]
        stack.enter_context(nemesis.losing())
        for port in ports:
            stack.callback(nemesis.ground.proxies.flow, port)
            nemesis.ground.proxies.hold(port, [HOST])
        with files_of(process.popen.pid, most=RESERVE_BYTES):
            nemesis.lasts(fault.seconds)
        path = process.spec.spool
        effective(path.exists() and path.stat().st_size > RESERVE_BYTES - 2 * HEAVY_BYTES)
        return process.who


@contextmanager
def files_of(pid: int, *, most: int) -> Iterator[None]:
    """For a block a process can let no file grow beyond so many bytes: it gets an error, as of a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


WAYS: Mapping[FaultKind, Way] = {
    "kill program": _kill,
    "end program": _end,
    "freeze program": _freeze,
    "cut program": _cut,
    "set clock of program": _set_clock,
    "fill disk of spool": _fill_disk_of_spool,
}
