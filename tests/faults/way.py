"""One way in or out of an engine, as the table of faults sees it: items are put in on one side, and arrive on the
other, whose server may be broken.

A new sink, store or integration is a class that derives from ``SinkWay`` in ``sinks`` or ``StoreWay`` in ``stores``,
and a line in ``conftest.WAYS``. What can't happen to it stands in ``not_here``, with the reason.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cluster.ports import free_port
from tests.faults.neighbours import Neighbour

OUTAGES = ("frozen", "dead", "full", "wrong password", "wrong address")
"""The faults of a neighbour as a whole."""

BAD_ITEMS = ("refusing one item", "timing out on one item")
"""The faults of one item."""

FAULTS = (*OUTAGES, "restarted", "killed while sending", *BAD_ITEMS, "slow on one item", "1 MiB", "odd ids")
"""The rows of the table in ``shardq/guide/guarantees.md``, in their order."""


class Way(ABC):
    """Items are named by their unique ids, without the topic."""

    kind: ClassVar[str]
    neighbour: Neighbour
    not_here: ClassVar[Mapping[str, str]] = {}
    """Fault → why it can't happen here."""
    patience: ClassVar[Mapping[str, float]] = {}
    """Constants of the package that are shorter here."""

    @abstractmethod
    def put(self, unique: str, **options: Any) -> None:
        """Puts an item in, with these options of a push."""

    @abstractmethod
    def prepare(self, uniques: Sequence[str]) -> None:
        """Does what must be done about items before the neighbour is broken."""

    @abstractmethod
    def put_bad(self, fault: str, unique: str) -> None:
        """Puts in an item that has the fault, and one attempt. ``slow on one item`` arrives late, others never do."""

    @abstractmethod
    def put_large(self, unique: str, size: int) -> None:
        """Puts in an item of about so many bytes."""

    @abstractmethod
    def arrived(self) -> Sequence[str]:
        """The ids on the other side, with repeats."""

    @abstractmethod
    def aside(self) -> Mapping[str, str]:
        """The id of each item that was put aside → the reason."""

    @abstractmethod
    def counted(self) -> int:
        """How many items were put aside, as ``engine.stats()`` counts them."""

    @abstractmethod
    def trouble(self) -> str:
        """What health says of this way; empty when all is well."""

    def said(self, records: Sequence[logging.LogRecord]) -> int:
        """How many of these lines of the log say an outage."""
        return sum(record.levelno >= logging.ERROR for record in records)

    @abstractmethod
    def send_to(self, address: str, login: str = "") -> None:
        """From now on this side uses this address; the ``login`` has its @."""

    def breaks(self, fault: str) -> str:
        """Breaks the neighbour. Returns the address that health is to name."""
        address = self.neighbour.address
        match fault:
            case "frozen":
                self.neighbour.freeze()
            case "dead":
                self.neighbour.kill()
            case "full":
                self.neighbour.fill()
            case "wrong password":
                self.send_to(address, "ann:wrong@")
            case "wrong address":
                address = f"127.0.0.1:{free_port()}"
                self.send_to(address)
        return address

    def mends(self, fault: str) -> None:
        """Undoes that."""
        match fault:
            case "frozen":
                self.neighbour.thaw()
            case "dead":
                self.neighbour.start()
            case "full":
                self.neighbour.make_room()
            case "wrong password" | "wrong address":
                self.send_to(self.neighbour.address)

    @abstractmethod
    def stop(self) -> None:
        """Ends this side. Does nothing if it has ended."""
