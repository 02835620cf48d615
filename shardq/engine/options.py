"""The options of an engine, and the arguments of its commands: checked at once, before anything is opened or sent."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from shardq.core import topology_upkeep
from shardq.core.drivers.clients import Access, is_client, read
from shardq.core.drivers.credentials import CredentialProvider, Provided
from shardq.core.drivers.settings import Settings
from shardq.core.layout import destinations
from shardq.core.layout.topology import EngineSettings, Limit, Route, Topology
from shardq.core.layout.words import is_foreign
from shardq.core.model.checks import (
    check_max_attempts,
    check_name,
    check_shards,
    check_topic,
    check_whole_id,
    due_spec,
    duration_ms,
    instant_ms,
)
from shardq.core.model.ids import quoted_topic
from shardq.core.model.printable import quoted
from shardq.core.model.record import Codec
from shardq.core.operation import Operation
from shardq.errors import BadInput, InvalidDelay, InvalidOption, InvalidShardCount, InvalidUrl
from shardq.features import embedded
from shardq.features.replay.journal import check_replay
from shardq.features.sinks import registry
from shardq.features.sinks.base import NO_MAXLEN
from shardq.features.sinks.egress import Egress

log: logging.Logger = logging.getLogger("shardq")

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
    access: Access
    """The settings that the URL has no words for."""
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
    egress: Egress
    """The servers that routes may reach from this process, and the secrets that they may use."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.shards is not None:
            check_shards(self.shards)
        size = self.max_payload
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 512 << 20:
            raise InvalidOption(f"max_payload={quoted(size)} is not possible; give bytes, from 1 to 512 MiB")
        if self.fsync not in ("everysec", "always"):
            raise InvalidOption(f"fsync={quoted(self.fsync)} is not possible; use 'everysec' or 'always'")
        check_replay(self.replay, self.replay_bytes)
        if self.is_embedded:
            self.embedded_path()
        else:
            self.settings(str(self.url))

    @property
    def is_embedded(self) -> bool:
        return self.url is None or self.url.startswith("embedded:")

    def embedded_path(self) -> Path | None:
        """Returns the directory of the embedded server's data; None for the user's data directory."""
        if self.url is None:
            return None
        parts = urlsplit(self.url)
        if parts.netloc or parts.query or parts.fragment:
            raise InvalidUrl(f"{quoted(self.url)} is not understood; write embedded:// or embedded:///absolute/path")
        return Path(os.fsdecode(unquote_to_bytes(parts.path))) if parts.path not in ("", "/") else None

    def settings(self, url: str) -> Settings:
        settings = Settings.from_url(
            url, timeout=self.timeout, connect_timeout=self.connect_timeout, protocol=self.protocol
        )
        return replace(settings, tls=self.access.tls or settings.tls, provided=self.access.provided)

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
        return topology_upkeep.create_topology(self.name, shards, EngineSettings(**self.given))

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


def server_given(url: object, credentials: CredentialProvider | None) -> tuple[str | None, Access]:
    """The URL of an engine, and what it can't say. ``url``: that, a client of redis-py, or None: the environment's."""
    if url is not None and not isinstance(url, str) and not is_client(url):
        raise InvalidUrl(
            f"url={quoted(url)} is not possible; give a str such as redis://127.0.0.1:6379/0, a client of redis-py: a "
            "Redis, a RedisCluster or a Sentinel's master_for(service); or None"
        )
    where, access = (url or os.environ.get(ENVIRONMENT) or None, Access()) if isinstance(url, str | None) else read(url)
    if access.own:
        names = ", ".join(access.own)
        log.info("the engine has its own in place of these settings of the client: %s", names)
    if credentials is None:
        return where, access
    if where is None or where.startswith("embedded:"):
        raise InvalidOption("credentials= is for servers with a url; an embedded one has no password")
    if access.provided is not None or Settings.from_url(where).login:
        other = "the URL has a user or a password" if isinstance(url, str | None) else "the client has credentials"
        raise InvalidOption(f"credentials= was given, and {other}: leave out one of them")
    return where, replace(access, provided=Provided(credentials))


def settings_given(
    max_attempts: int | None,
    dead_age: float | dt.timedelta | None,
    dead_count: int | None,
    done_age: float | dt.timedelta | None = None,
    done_count: int | None = None,
) -> dict[str, Any]:
    """The settings of an engine that are not None, by name."""
    given: dict[str, Any] = {}
    if max_attempts is not None:
        check_max_attempts(max_attempts)
        given["max_attempts"] = max_attempts
    if dead_age is not None:
        given["dead_age"] = duration_ms(dead_age, "dead_age") / 1000
    if done_age is not None:
        given["done_age"] = done_age_s(done_age)
    for name, count in (("dead_count", dead_count), ("done_count", done_count)):
        if count is None:
            continue
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 10**9:
            raise InvalidOption(f"{name}={quoted(count)} is not possible; give an int from 0 to {10**9:,}")
        given[name] = count
    return given


def done_age_s(age: Any) -> float:
    """Checks for how long ends are to be kept; 0: none are."""
    is_none = age in (0, dt.timedelta()) and not isinstance(age, bool)
    return 0.0 if is_none else duration_ms(age, "done_age") / 1000


def moved_due(delay: float | dt.timedelta | None, at: float | dt.datetime | None) -> int:
    """Returns the due word of a reschedule. A push without a time is due now; a reschedule without one is a mistake."""
    if delay is None and at is None:
        raise InvalidDelay("reschedule needs a time: give delay=seconds or at=instant; delay=0 makes it due now")
    return due_spec(delay, at)


MOST_OF_KEY = 1000
"""A dispatch counts those that are out."""


def check_rate(rate: float | None, name: str = "rate") -> None:
    # Every process must be able to read what is stored: a bool is no number there.
    if isinstance(rate, bool) or (rate is not None and not (isinstance(rate, int | float) and 0 < rate <= 1e9)):
        raise InvalidOption(
            f"{name}={quoted(rate)} is not possible; give tasks a second, more than 0, or None for no limit"
        )


OnFailure = Literal["wait", "skip"]
"""Of a key that has one task at once: it waits for the retry of one that failed, or goes on with the next."""


def limit_of(
    topic: str,
    rate: float | EllipsisType | None,
    concurrency: int | EllipsisType | None,
    *,
    per_key: int | None = None,
    per_key_rate: float | None = None,
    on_failure: OnFailure | None = None,
) -> Limit:
    check_topic(topic)
    if rate is ... and concurrency is ... and per_key is None:
        if per_key_rate is not None:
            raise InvalidOption(f"per_key_rate={quoted(per_key_rate)} needs per_key=: how many of a key at once")
        raise InvalidOption(
            "limit needs rate=, concurrency= or per_key=; limit(topic, None) lifts the limits of the topic"
        )
    rate, concurrency = None if rate is ... else rate, None if concurrency is ... else concurrency
    check_rate(rate)
    check_rate(per_key_rate, "per_key_rate")
    if per_key is None and per_key_rate is not None:
        raise InvalidOption(f"per_key_rate={quoted(per_key_rate)} needs per_key=: how many of a key at once")
    whole = isinstance(per_key, int) and not isinstance(per_key, bool)
    if per_key is not None and not (whole and 1 <= per_key <= MOST_OF_KEY):
        raise InvalidOption(
            f"per_key={quoted(per_key)} is not possible; give an int from 1 to {MOST_OF_KEY:,}: how many tasks of a "
            "key may be out at once"
        )
    if on_failure not in (None, "wait", "skip"):
        raise InvalidOption(f"on_failure={quoted(on_failure)} is not possible; use 'wait' or 'skip'")
    if on_failure is not None and per_key != 1:
        raise InvalidOption("on_failure= goes with per_key=1: with more at once a failed task holds up no other")
    if isinstance(concurrency, bool) or (
        concurrency is not None and not (isinstance(concurrency, int) and 1 <= concurrency <= 1_000_000)
    ):
        raise InvalidOption(
            f"concurrency={quoted(concurrency)} is not possible; give an int from 1, or None for no limit"
        )
    return Limit(rate, concurrency, per_key, per_key_rate, on_failure)


TOPIC_SETTINGS = (
    "rate",
    "concurrency",
    "per_key",
    "per_key_rate",
    "on_failure",
    "forward",
    "side",
    "maxlen",
    "pause",
    "done_age",
)
"""The settings of a topic that ``configure`` takes."""


_LIMITS = TOPIC_SETTINGS[:5]


def topics_given(topics: object, egress: Egress = registry.ANYWHERE) -> dict[str, dict[str, Any]]:
    """Topic → those of its ``TopicSettings`` that are given, checked. What is None or false ends."""
    if not isinstance(topics, Mapping):
        raise InvalidOption(f"topics={quoted(topics)} is not possible; give a dict of topics, each with its settings")
    given: dict[str, dict[str, Any]] = {}
    for topic, settings in topics.items():
        check_topic(topic)
        try:
            given[topic] = _topic_given(topic, settings, egress)
        except BadInput as exc:
            raise InvalidOption(f"topic {quoted_topic(topic)}: {exc}") from exc
    return given


def _topic_given(topic: str, settings: object, egress: Egress) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise InvalidOption(f"{quoted(settings)} is not possible; give a dict of {', '.join(TOPIC_SETTINGS)}")
    for name in settings:
        if name not in TOPIC_SETTINGS:
            raise InvalidOption(f"there is no setting {quoted(name)}; there is {', '.join(TOPIC_SETTINGS)}")
    values = {name: None if value is False else value for name, value in settings.items()}
    given: dict[str, Any] = {}
    if not values.keys().isdisjoint(_LIMITS):
        of_keys = {name: values.get(name) for name in _LIMITS[2:]}
        limit = limit_of(topic, values.get("rate"), values.get("concurrency"), **of_keys)
        given["limit"] = None if limit == Limit() else limit
    if "forward" in values:
        to, side = values["forward"], values.get("side") or "right"
        given["route"] = route_of(topic, to, side, values.get("maxlen"), egress=egress)
    elif "side" in values or "maxlen" in values:
        raise InvalidOption("side and maxlen go with forward")
    if "done_age" in settings:
        age = settings["done_age"]
        given["done_age"] = None if age is None else done_age_s(age)
    if "pause" in values:
        pause = settings["pause"]
        if not isinstance(pause, bool | dt.datetime):
            raise InvalidOption(f"pause={quoted(pause)} is not possible; give True, False, or an aware datetime")
        given["paused"] = pause is not False
        given["paused_until"] = 0 if isinstance(pause, bool) else instant_ms(pause, "pause")
    return given


def check_resize(shards: int | None, rate: float | None, *, dry_run: bool) -> None:
    if not isinstance(dry_run, bool):
        raise InvalidOption(f"dry_run={quoted(dry_run)} is not possible; give True to change nothing")
    if shards is not None:
        check_shards(shards)
    elif not dry_run:
        raise InvalidShardCount(
            "resize needs the number of shards, from 1 to 1024; resize(dry_run=True) returns the change under way"
        )
    check_rate(rate)
    if dry_run and rate is not None:
        raise InvalidOption("rate= is for a change that moves tasks: leave it out with dry_run=True")


def checked_id(id: str) -> str:
    """Returns the id if it is a whole one, as push returned it: TOPIC/UNIQUE or UNIQUE."""
    check_whole_id(id)
    return id


MAX_LENGTH = 10**15

_MISSPELT_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(//|:/[^/])")
"""A name that is meant as a URL: http//x, http:/x."""


def route_of(
    topic: str,
    to: str | None,
    side: str,
    maxlen: int | None = None,
    *,
    egress: Egress = registry.ANYWHERE,
) -> Route | None:
    """Checks where a topic is to be forwarded, and whether this process may send there. None: it no longer is."""
    check_topic(topic)
    if isinstance(maxlen, bool) or (maxlen is not None and not (isinstance(maxlen, int) and 1 <= maxlen <= MAX_LENGTH)):
        raise InvalidOption(f"maxlen={quoted(maxlen)} is not possible; give an int from 1, or None to keep all entries")
    if side not in ("right", "left"):
        raise InvalidOption(f"side={quoted(side)} is not possible; use 'right' (RPUSH) or 'left' (LPUSH)")
    if to is None:
        return None
    if callable(to):
        raise InvalidOption(
            f"to={quoted(to)} is not possible: a topic is not forwarded to a function; decorate it with "
            f"@worker.on({topic!r}, batch=100): as a handler of batches it gets up to 100 tasks in one call"
        )
    if not isinstance(to, str) or not destinations.key_of(to) or is_foreign(to):
        raise InvalidOption(
            f"to={quoted(to)} is not possible; give the name of a list, stream:NAME, a URL, or None to stop forwarding"
        )
    if destinations.key_of(to).startswith("shardq:{"):
        raise InvalidOption(f"to={quoted(to)} is a key of shardq's own; give the name of another list")
    if side == "left" and destinations.is_stream(to):
        raise InvalidOption("side='left' is for lists; leave it out")
    if _MISSPELT_URL.match(to):
        raise InvalidOption(f"to={quoted(to)} is not possible: a URL has :// behind its scheme, as https://host/path")
    route = Route(to=to, side="left" if side == "left" else "right", maxlen=maxlen)
    if maxlen is not None and route.is_here and not destinations.is_stream(to):
        raise InvalidOption(NO_MAXLEN)
    if not route.is_here:
        registry.check(route, egress)
    return route


def check_reason(reason: str | None) -> None:
    if reason is not None and not (isinstance(reason, str) and reason.strip()):
        raise InvalidOption(
            f"reason={quoted(reason)} is not possible; give the reason as pages group it, such as "
            "'TimeoutError: no answer in # s', or None for any"
        )
