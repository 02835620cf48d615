"""How every kind of fault is done."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.nemesis import fleets, forgetting, programs, roles, servers, slots
from tests.chaos.nemesis.nemesis import LeftOut, Nemesis, Way
from tests.chaos.plan import Fault, FaultKind


def _kill_sink(nemesis: Nemesis, fault: Fault) -> str:
    return _broken(nemesis, fault, "kill")


def _freeze_sink(nemesis: Nemesis, fault: Fault) -> str:
    return _broken(nemesis, fault, "freeze")


def _broken(nemesis: Nemesis, fault: Fault, how: str) -> str:
    """Breaks what tasks are forwarded to."""
    if nemesis.sinks is None:
        raise LeftOut("nothing is forwarded in this round")
    with nemesis.one([f"sink {number}" for number in range(2)], fault) as sink:
        mend = getattr(nemesis.sinks, how)(int(sink[-1]))
        nemesis.lasts(fault.seconds)
        mend()
        return str(sink)


WAYS: Mapping[FaultKind, Way] = {
    **programs.WAYS,
    **servers.WAYS,
    **roles.WAYS,
    **slots.WAYS,
    **fleets.WAYS,
    **forgetting.WAYS,
    "kill sink": _kill_sink,
    "freeze sink": _freeze_sink,
}
