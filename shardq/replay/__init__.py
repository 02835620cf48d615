"""The replay after a failover: what a new master lacks of the last seconds is sent again by id."""

from shardq.replay.journal import DEFAULT_BYTES, Journal, check_replay
from shardq.replay.replayer import Replayer, ReplayStats

__all__ = ["DEFAULT_BYTES", "Journal", "ReplayStats", "Replayer", "check_replay"]
