"""The fleet: the processes of an engine, dispatchers and workers, and what each of them says of itself.

``report`` is what a process stores about itself with its heartbeat, and how; ``reporter`` sends a worker's, the
dispatcher's ``membership`` that of a dispatcher. ``member`` reads them all, ``serving`` tells who serves which shard.
``lateness`` is the histograms in the reports.
"""

from shardq.core.fleet.lateness import Lateness
from shardq.core.fleet.member import Member

__all__ = ["Lateness", "Member"]
