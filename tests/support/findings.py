"""What an engine's verdict names."""

from __future__ import annotations

from shardq import Health
from shardq.engine.findings import reds


def red(health: Health) -> list[str]:
    """The names of the findings that make it false."""
    return [finding.name for finding in reds(health.findings)]
