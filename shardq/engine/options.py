"""The options of an engine: checked at once, before anything is opened."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from shardq import embedded
from shardq.dispatcher import Retention
from shardq.drivers.settings import Settings
from shardq.errors import InvalidOption, InvalidUrl
from shardq.layout.topology import Topology
from shardq.model.checks import check_max_attempts, check_name, check_shards, duration_ms
from shardq.model.record import Codec, codec_named
from shardq.replay.journal import check_replay

log = logging.getLogger("shardq")

DEFAULT_NAME = "default"
DEFAULT_SHARDS = 16
DEFAULT_ATTEMPTS = 25
"""The attempts of a task that brings no limit of its own. With a worker's backoff they take days; without, they still
end.
"""

DEFAULT_DEAD_AGE_S = 30 * 86_400.0
DEFAULT_DEAD_COUNT = 100_000
"""Over all shards: enough for every incident that somebody will look into, some 50 MB of ordinary tasks."""

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
    max_attempts: int
    dead_age: float
    dead_count: int
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
        max_attempts: int,
        dead_age: float,
        dead_count: int,
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
        check_max_attempts(max_attempts)
        if url is not None and not isinstance(url, str):
            raise InvalidUrl(f"url={url!r} is not possible; give a str such as redis://127.0.0.1:6379/0, or None")
        if not isinstance(max_payload, int) or isinstance(max_payload, bool) or not 1 <= max_payload <= 512 << 20:
            raise InvalidOption(f"max_payload={max_payload!r} is not possible; give bytes, from 1 to 512 MiB")
        duration_ms(dead_age, "dead_age")
        if not isinstance(dead_count, int) or isinstance(dead_count, bool) or not 0 <= dead_count <= 10**9:
            raise InvalidOption(f"dead_count={dead_count!r} is not possible; give an int from 0")
        if fsync not in ("everysec", "always"):
            raise InvalidOption(f"fsync={fsync!r} is not possible; use 'everysec' or 'always'")
        check_replay(replay, replay_bytes)
        options = cls(
            url=url or os.environ.get(ENVIRONMENT) or None,
            name=name,
            shards=shards,
            codec=codec_named(codec),
            max_payload=max_payload,
            max_attempts=max_attempts,
            dead_age=dead_age,
            dead_count=dead_count,
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

    def keep(self) -> Retention:
        """Returns the bounds of the dead tasks that dispatchers keep."""
        return Retention(age_ms=duration_ms(self.dead_age, "dead_age"), count=self.dead_count)

    @property
    def new_shards(self) -> int:
        """The number of shards for a name that is new."""
        return DEFAULT_SHARDS if self.shards is None else self.shards

    def compare(self, topology: Topology) -> None:
        """Logs a warning when a number of shards was asked for and another is stored."""
        if self.shards not in (None, topology.shards):
            log.warning(
                "%r has %d shards, not the %d asked for: the stored number counts",
                self.name,
                topology.shards,
                self.shards,
            )


def lease_ms(lease: float) -> int:
    return duration_ms(lease, "lease")
