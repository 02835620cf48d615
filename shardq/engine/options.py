"""The options of an engine: checked at once, before anything is opened."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from shardq.core import recovery
from shardq.core.drivers.settings import Settings
from shardq.core.layout.topology import EngineSettings, Topology
from shardq.core.model.checks import check_max_attempts, check_name, check_shards, duration_ms
from shardq.core.model.record import Codec, codec_named
from shardq.core.operation import Operation
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features import embedded
from shardq.features.replay.journal import check_replay

log = logging.getLogger("shardq")

DEFAULT_NAME = "default"
DEFAULT_SHARDS = 16
DEFAULT_TIMEOUT_S = 30.0
DEFAULT_CONNECT_TIMEOUT_S = 5.0
STATS_TIMEOUT_S = 3.0
"""The time for a look at all of an engine: it reports a failover instead of waiting for its end."""

DEFAULT_LEASE_S = 30.0

DEFAULT_SPOOL_BYTES = 256 << 20
"""A million ordinary commands."""

ENVIRONMENT = "SHARDQ_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything about an engine that does not change."""

    url: str | None
    """None: an embedded server in the user's data directory."""
    name: str
    shards: int | None
    """The number for a name that is new; None: no number was asked for."""
    codec: Codec
    max_payload: int
    given: Mapping[str, Any]
    """The settings of the engine that the caller has named: they are those of a new engine."""
    timeout: float
    connect_timeout: float
    protocol: int
    fsync: embedded.Fsync
    replay: float | None
    replay_bytes: int

    @classmethod
    def checked(
        cls,
        url: str | None,
        *,
        name: str,
        shards: int | None,
        codec: str | Codec,
        max_payload: int,
        max_attempts: int | None,
        dead_age: float | dt.timedelta | None,
        dead_count: int | None,
        timeout: float,
        connect_timeout: float,
        protocol: int,
        fsync: embedded.Fsync,
        replay: float | None,
        replay_bytes: int,
    ) -> Options:
        check_name(name)
        if shards is not None:
            check_shards(shards)
        if url is not None and not isinstance(url, str):
            raise InvalidUrl(f"url={url!r} is not possible; give a str such as redis://127.0.0.1:6379/0, or None")
        if not isinstance(max_payload, int) or isinstance(max_payload, bool) or not 1 <= max_payload <= 512 << 20:
            raise InvalidOption(f"max_payload={max_payload!r} is not possible; give bytes, from 1 to 512 MiB")
        if fsync not in ("everysec", "always"):
            raise InvalidOption(f"fsync={fsync!r} is not possible; use 'everysec' or 'always'")
        check_replay(replay, replay_bytes)
        options = cls(
            url=url or os.environ.get(ENVIRONMENT) or None,
            name=name,
            shards=shards,
            codec=codec_named(codec),
            max_payload=max_payload,
            given=settings_given(max_attempts, dead_age, dead_count),
            timeout=timeout,
            connect_timeout=connect_timeout,
            protocol=protocol,
            fsync=fsync,
            replay=replay,
            replay_bytes=replay_bytes,
        )
        if not options.is_embedded:
            options.settings(str(options.url))
        else:
            options.embedded_path()
        return options

    @property
    def is_embedded(self) -> bool:
        return self.url is None or self.url.startswith("embedded:")

    def embedded_path(self) -> Path | None:
        """Returns the directory of the embedded server's data; None for the user's data directory."""
        if self.url is None:
            return None
        parts = urlsplit(self.url)
        if parts.netloc or parts.query or parts.fragment:
            raise InvalidUrl(f"{self.url!r} is not understood; write embedded:// or embedded:///absolute/path")
        return Path(os.fsdecode(unquote_to_bytes(parts.path))) if parts.path not in ("", "/") else None

    def settings(self, url: str) -> Settings:
        return Settings.from_url(
            url, timeout=self.timeout, connect_timeout=self.connect_timeout, protocol=self.protocol
        )

    def enter(self) -> tuple[Settings, embedded.Embedded | None]:
        """Returns the settings of connections, and the embedded server, found or started, if one is used."""
        if not self.is_embedded:
            return self.settings(str(self.url)), None
        if self.url is None and embedded.never():
            raise InvalidUrl(
                f"no server is named: give a url, or set ${ENVIRONMENT}; {embedded.ENVIRONMENT}={embedded.NEVER} "
                "forbids the embedded server that is used without one (the url embedded:// asks for it, and is "
                "still possible)"
            )
        server = embedded.enter(self.embedded_path(), fsync=self.fsync, timeout=self.timeout)
        log.info(
            "%s embedded server with its data in %s", "started an" if server.started else "sharing the", server.path
        )
        return self.settings_of(server), server

    def settings_of(self, server: embedded.Embedded) -> Settings:
        """Returns the settings of connections to the embedded server, which find it again after a restart."""
        return replace(self.settings(server.url), locate=server.locate)

    @property
    def safe_url(self) -> str:
        """The URL for messages, with its passwords hidden."""
        return self.url or "embedded://" if self.is_embedded else self.settings(str(self.url)).safe_url

    def create_topology(self) -> Operation[Topology]:
        """Returns the stored topology of this name; where there is none, a new one by these options."""
        shards = DEFAULT_SHARDS if self.shards is None else self.shards
        return recovery.create_topology(self.name, shards, EngineSettings(**self.given))

    def compare(self, topology: Topology) -> None:
        """Logs a warning when a number of shards, or a setting, was asked for and another is stored."""
        stored = msgspec.to_builtins(topology.settings)
        others = [name for name, value in self.given.items() if value != stored[name]]
        if others:
            log.warning(
                "%r has %s, not %s as asked for: the stored settings count, and configure() changes them for all",
                self.name,
                ", ".join(f"{name}={stored[name]}" for name in others),
                ", ".join(f"{name}={self.given[name]}" for name in others),
            )
        if self.shards not in (None, topology.shards):
            log.warning(
                "%r has %d shards, not the %d asked for: the stored number counts",
                self.name,
                topology.shards,
                self.shards,
            )


def settings_given(
    max_attempts: int | None, dead_age: float | dt.timedelta | None, dead_count: int | None
) -> dict[str, Any]:
    """The settings of an engine that are not None, by name."""
    given: dict[str, Any] = {}
    if max_attempts is not None:
        check_max_attempts(max_attempts)
        given["max_attempts"] = max_attempts
    if dead_age is not None:
        given["dead_age"] = duration_ms(dead_age, "dead_age") / 1000
    if dead_count is not None:
        if not isinstance(dead_count, int) or isinstance(dead_count, bool) or not 0 <= dead_count <= 10**9:
            raise InvalidOption(f"dead_count={dead_count!r} is not possible; give an int from 0 to {10**9:,}")
        given["dead_count"] = dead_count
    return given


def lease_ms(lease: float) -> int:
    return duration_ms(lease, "lease")
