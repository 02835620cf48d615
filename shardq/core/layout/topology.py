"""The topology as a value: how many shards there are, which counts came before, and the settings of the engine and of
its topics.

A new topology is a new value with a higher epoch and a new ``Stamp``. The ``topology`` hash of the control slot has one
field for each attribute, and one for each of ``settings``: ``epoch`` is the stamp, ``shards`` decimal, the others are
JSON. Fields of other makers are left alone: they are not read here, and a writer sets fields and does not replace the
hash. Another hash, ``settings``, has one field for each topic, so a change writes the topics that it changes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import mmh3
import msgspec

from shardq.core.layout import destinations, formats
from shardq.core.layout.keys import END_SLOTS
from shardq.core.layout.lanes import hashed_part, lane_of
from shardq.core.layout.slots import BUCKETS, MAX_SHARDS, table
from shardq.core.layout.words import FOREIGN, UNDECODABLE, raw, text_of
from shardq.errors import ShardqError

_MASK = BUCKETS - 1

_encode = msgspec.json.Encoder(enc_hook=str).encode  # of a subclass of str the text


class UnreadableTopology(ShardqError):
    """The stored topology, or a copy of it, is of another version, or of another program."""


class Stamp(str):
    """The mark by which a topology is told from every other one, as scripts are given it: ``EPOCH:WORD:ENGINE``. The
    epoch orders the changes of one engine; the word is the change's own, as two have one epoch where a server lost the
    first; the id is made when the engine is created. ``0`` stands for none.

    >>> Stamp.of(b"7:1f:a0").epoch, Stamp.of(b"7:1f:a0").engine, Stamp.of("7").epoch, Stamp.of(None).epoch
    (7, 'a0', 0, 0)
    """

    __slots__ = ()

    @classmethod
    def of(cls, text: bytes | str | None) -> Stamp:
        """Reads a stored one; that of epoch 0 where there is none, or another program has written something else."""
        known = text.decode("latin-1") if isinstance(text, bytes) else text or ""
        return cls(known if _STAMP.fullmatch(known) else "0")

    @property
    def epoch(self) -> int:
        return int(self.partition(":")[0])

    @property
    def word(self) -> str:
        return self.partition(":")[2].partition(":")[0]

    @property
    def engine(self) -> str:
        return self.partition(":")[2].partition(":")[2]


_STAMP = re.compile(r"\d{1,16}:\w{1,64}:\w{1,64}", re.ASCII)


def new_word() -> str:
    """A word for a change, or an id for an engine."""
    return secrets.token_hex(6)


class Route(msgspec.Struct, frozen=True):
    """Where a topic's payloads go, in place of our consumers."""

    to: str
    """The name of a list, ``stream:NAME``, or a URL; ``destinations`` reads it. A URL may hold a password."""
    side: Literal["right", "left"] = "right"
    """The end of a list that they are put on: RPUSH or LPUSH."""
    maxlen: int | None = None
    """About how many entries a stream keeps: older ones are trimmed. None: all."""

    def __repr__(self) -> str:
        return f"Route(to={self.shown!r}, side={self.side!r}, maxlen={self.maxlen!r})"

    @property
    def is_here(self) -> bool:
        """True for a list or a stream of this engine's servers."""
        return destinations.is_here(self.to)

    @property
    def key(self) -> str:
        """The name of the list or of the stream here."""
        return destinations.key_of(self.to)

    @property
    def way(self) -> Literal["right", "left", "stream"]:
        """How payloads are put there: the end of a list, or as entries of a stream."""
        return "stream" if destinations.is_stream(self.to) else self.side

    @property
    def shown(self) -> str:
        """The destination without its secrets."""
        return destinations.masked(self.to)

    @property
    def masked(self) -> Route:
        """The same route, for people."""
        return msgspec.structs.replace(self, to=self.shown)

    @property
    def named(self) -> str:
        """The destination without its secrets, as a sentence names it."""
        return destinations.named(self.shown)


def _none() -> None:
    """A default that is stored, and shown, all the same."""


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of a topic, over the whole fleet. ``lua/open.lua`` reads those of each key off the stored text."""

    rate: float | None = msgspec.field(default_factory=_none)
    """Tasks a second."""
    concurrency: int | None = msgspec.field(default_factory=_none)
    """Tasks at once."""
    per_key: int | None = None
    """Tasks of each key at once; None: one."""
    per_key_rate: float | None = None
    """Tasks a second of each key."""
    on_failure: Literal["wait", "skip"] | None = None
    """With one task of each key at once: a key waits for the retry of its failed task, or skips it. None: it waits."""

    @property
    def is_of_topic(self) -> bool:
        """True if it limits the topic itself, and not only each of its keys."""
        return self.rate is not None or self.concurrency is not None


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one topic. One without any is not stored."""

    route: Route | None = None
    paused: bool = False
    """True if nothing of the topic is given out."""
    paused_until: int = 0
    """The instant at which the pause ends by itself, in epoch ms; 0: only ``resume`` ends it."""
    limit: Limit | None = None
    done_age: float | None = None
    """The seconds for which its ends are kept, at most the engine's; 0: none are. None: the engine's."""

    @property
    def keeps_no_ends(self) -> bool:
        """True for a topic that is forwarded here: its tasks leave, and nobody is told when they end."""
        return self.route is not None and self.route.is_here

    @property
    def uncounted(self) -> int | None:
        """The limit on tasks at once, if nothing can keep it: tasks that are forwarded here leave, and are then not
        counted. None if the settings go together.
        """
        return self.limit.concurrency if self.limit and self.route and self.route.is_here else None

    def to_text(self) -> bytes:
        """The field of the hash; empty if there is nothing to store."""
        return b"" if self == NO_SETTINGS else _encode(self)


NO_SETTINGS = TopicSettings()


DEFAULT_ATTEMPTS = 25  # with a worker's backoff they take some seven hours; without, they still end

DEFAULT_DEAD_AGE_S = 30 * 86_400.0
DEFAULT_DONE_COUNT = 100_000  # some 16 MB

ENDED_SLACK_MS = 60_000
"""Clocks of hosts may differ by so much."""

MOST_ENDS_OF_A_SHARD = 80_000
"""A page of ends looks through an eighth of them."""

DEFAULT_DEAD_COUNT = 100_000  # enough for every incident that is looked into, some 50 MB of ordinary tasks


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an engine, which all of its processes go by. ``engine.configure`` changes them.

    >>> print(engine.stats().settings.max_attempts)
    """

    max_attempts: int = DEFAULT_ATTEMPTS
    """The attempts of a task that brings no limit of its own, and whose handler has none."""
    dead_age: float = DEFAULT_DEAD_AGE_S
    """The seconds for which dead tasks are kept."""
    dead_count: int = DEFAULT_DEAD_COUNT
    """The dead tasks that are kept at most, over all shards: in each its part."""
    done_age: float = 0.0
    """The seconds for which the ends of tasks that are done or cancelled are kept; 0: none are."""
    done_count: int = DEFAULT_DONE_COUNT
    """The ends that are kept at most, likewise."""


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One state of the engine's layout."""

    epoch: int
    shards: int
    priors: tuple[int, ...] = ()  # earlier counts, oldest first, whose tasks have not all been moved yet
    pending: int | None = None  # the count that comes in force next: its shards are served already, and get no task yet
    since: int = 1  # the epoch in which shards came in force
    move_rate: float | None = None  # tasks a second that the fleet may move; None: as fast as it can
    topics: Mapping[str, TopicSettings] = {}  # topic → its settings; without those that have none
    format: int = formats.FORMAT  # the number of the format in which the engine is stored
    features: tuple[str, ...] = ()  # what the engine uses that other builds which read the format do not know
    settings: EngineSettings = EngineSettings()
    # word → identity: the stores beside Redis in which the engine has tasks, for those who were not given them
    links: Mapping[str, str] = {}
    # true if tasks may have keys: scripts know of lanes then, which an engine without keys pays nothing for
    is_keyed: bool = msgspec.field(default=False, name="keyed")
    word: str = "0"  # of a topology that is stored nowhere, as the next
    engine: str = "0"
    # number of shards, and the instant in ms until which ends may lie in these: earlier ones, the oldest first
    ended: tuple[tuple[int, int], ...] = ()
    created: int = 0  # when the engine was created, by the clock of the control slot's master, in ms

    @cached_property
    def stamp(self) -> Stamp:
        """The mark that tells it from every other one."""
        return Stamp(f"{self.epoch}:{self.word}:{self.engine}")

    @property
    def dead_age_ms(self) -> int:
        """The ms for which dead tasks are kept."""
        return round(self.settings.dead_age * 1000)

    @property
    def dead_in_a_shard(self) -> int:
        """The dead tasks that one shard keeps: its part by the fewest shards of the present and earlier counts, because
        while tasks move, dead tasks of many shards may be in few.
        """
        return -(-self.settings.dead_count // min((self.shards, *self.priors)))

    @cached_property
    def ends_rule(self) -> str:
        """The rule by which a shard keeps ends, ``AGE:MOST``: the age in ms, and the most of one slot of its ring.
        Empty if none are kept.
        """
        settings = self.settings
        if not settings.done_age or not settings.done_count:
            return ""
        slots = END_SLOTS * min((self.shards, *self.priors))
        return f"{round(settings.done_age * 1000)}:{-(-settings.done_count // slots)}"

    @cached_property
    def _done_ages_ms(self) -> Mapping[str, int]:
        """Topic → for how many ms its ends are kept, of topics for which that is not the engine's age."""
        ages = {
            topic: 0 if known.keeps_no_ends else round((known.done_age or 0) * 1000)
            for topic, known in self.topics.items()
            if known.done_age is not None or known.keeps_no_ends
        }
        return {topic: min(age, self.done_age_ms) for topic, age in ages.items()}

    @property
    def done_age_ms(self) -> int:
        """The ms for which ends are kept; 0: none are."""
        return round(self.settings.done_age * 1000) if self.settings.done_count else 0

    def ends_age_ms(self, topic: str) -> int:
        """The ms for which the ends of a topic are kept; 0: none are."""
        return self._done_ages_ms.get(topic, self.done_age_ms)

    @cached_property
    def routes(self) -> Mapping[str, Route]:
        """Topic → where its payloads go."""
        return {topic: known.route for topic, known in self.topics.items() if known.route is not None}

    @cached_property
    def paused(self) -> frozenset[str]:
        """The topics of which nothing is given out."""
        return frozenset(topic for topic, known in self.topics.items() if known.paused)

    @cached_property
    def pauses(self) -> Mapping[str, int]:
        """Topic → the instant at which its pause ends by itself, in ms."""
        return {topic: known.paused_until for topic, known in self.topics.items() if known.paused_until}

    @cached_property
    def limits(self) -> Mapping[str, Limit]:
        """Topic → its limits, of topics that have one of their own."""
        return {
            topic: known.limit
            for topic, known in self.topics.items()
            if known.limit is not None and known.limit.is_of_topic
        }

    @cached_property
    def open_routes(self) -> Mapping[str, Route]:
        """The routes that pollers serve: to lists and streams here, of topics that are not paused."""
        return {topic: route for topic, route in self.routes.items() if topic not in self.paused and route.is_here}

    def hands_over(self, topic: str) -> bool:
        """Returns True for a topic whose keys give one task at a time, without a rate, to whoever claims it."""
        known = self.settings_of(topic)
        limit = known.limit
        is_narrow = limit is None or (limit.per_key in (None, 1) and limit.per_key_rate is None)
        return is_narrow and known.route is None and not known.paused

    def settings_of(self, topic: str) -> TopicSettings:
        """The settings of a topic."""
        return self.topics.get(topic, NO_SETTINGS)

    def with_topics(self, changes: Mapping[str, TopicSettings]) -> Topology:
        """This topology with other settings of some topics."""
        topics = {**self.topics, **changes}
        for topic in [topic for topic, known in changes.items() if known == NO_SETTINGS]:
            del topics[topic]
        return msgspec.structs.replace(self, topics=topics)

    def with_topic(self, topic: str, **changes: Any) -> Topology:
        """This topology with other settings of one topic: those that are named."""
        return self.with_topics({topic: msgspec.structs.replace(self.settings_of(topic), **changes)})

    def edited_since(self, before: Topology) -> dict[str, TopicSettings]:
        """The settings of the topics in which it differs from an earlier topology."""
        was, now = before.topics, self.topics
        if was is now:
            return {}
        edited = {topic: known for topic, known in now.items() if was.get(topic) != known}
        return edited | dict.fromkeys(was.keys() - now.keys(), NO_SETTINGS)

    def shard_of(self, id: str) -> int:
        """The shard that a new task of this id goes to. The whole id counts, its topic included."""
        # words.raw, without a call: this is done for each push
        if self.is_keyed:
            id = lane_of(id) or id
        return table(self.shards)[mmh3.hash(id.encode(errors=FOREIGN)) & _MASK]

    def shards_of(self, ids: Iterable[str | bytes]) -> list[int]:
        """``shard_of`` for many ids, in their order: checked ones, or ``words.raw`` of stored ones."""
        # the low bits of the hash are the same whether it is taken as signed or not
        owners = table(self.shards)
        if self.is_keyed:
            ids = map(hashed_part, ids)
        return [owners[hashed & _MASK] for hashed in map(mmh3.hash, ids)]

    def share_of(self, members: int) -> float | None:
        """The tasks a second that each thread of so many processes may move: two of each, where tasks may have keys."""
        return None if self.move_rate is None else self.move_rate / max(1, members) / (1 + self.is_keyed)

    def marked(self, words: list[Any], width: int) -> list[Any]:
        """The words of tasks, ``width`` of each, as they are pushed to their homes: a lane that has another shard by an
        earlier number has to be moved there first.
        """
        if not self.priors or not self.is_keyed:
            return words
        marked = list(words)
        for at in range(0, len(words), width):
            if lane_of(words[at]) is not None and len(self.homes(words[at])) > 1:
                marked[at + 1] = f"{words[at + 1]} "
        return marked

    def homes(self, id: str) -> list[int]:
        """The shards in which to look for an existing id, in the direction in which tasks move, the present one last.

        Between two look-ups a task moves on, never back; a shard that occurs twice keeps its last place.
        """
        bucket = mmh3.hash(hashed_part(raw(id)) if self.is_keyed else raw(id)) & _MASK
        backwards = [table(count)[bucket] for count in (self.shards, *reversed(self.priors))]
        return list(dict.fromkeys(backwards))[::-1]

    def homes_of(self, ids: Sequence[str]) -> list[tuple[int, ...]]:
        """``homes`` for many checked ids, in their order."""
        if self.priors:
            return [tuple(self.homes(id)) for id in ids]
        return [(shard,) for shard in self.shards_of(ids)]

    def ends_homes(self, id: str) -> list[int]:
        """The shards in which the end of a task may lie: ends stay where they were written."""
        lane = hashed_part(raw(id)) if self.is_keyed else raw(id)
        buckets = {mmh3.hash(part) & _MASK for part in (lane, raw(id))}  # by the whole id, where keys came later
        counts = (self.shards, *self.priors, *(count for count, _ in self.ended))
        return sorted({table(count)[bucket] for count in counts for bucket in buckets})

    def with_ended(self, now_ms: int) -> tuple[tuple[int, int], ...]:
        """The numbers of shards by which ends may lie once the priors are forgotten."""
        until_ms = now_ms + self.done_age_ms + ENDED_SLACK_MS
        known = {count: at for count, at in self.ended if at > now_ms}
        return tuple((known | (dict.fromkeys(self.priors, until_ms) if self.ends_rule else {})).items())

    def ends_span(self) -> range:
        """All shards in which ends may lie."""
        return range(max((len(self.span()), *(count for count, _ in self.ended))))

    def span(self) -> range:
        """All shards that may hold tasks, under the present count, an earlier one or the next."""
        return range(max((self.shards, self.pending or 0, *self.priors)))

    def downstream(self) -> list[int]:
        """The span in an order in which tasks move: each shard before all those to which its tasks may go.

        A count takes buckets for its new shards only from those before them. So what is in a shard past the present
        count goes to one within it; and what is in a shard within it stays, or goes to one of a higher number.
        """
        span = len(self.span())
        return [*range(self.shards, span), *range(self.shards)]

    def to_fields(self) -> dict[bytes, bytes]:
        """The fields of the hash: all but the settings of topics."""
        values = self._stored() | {"pending": self.pending or 0}
        values |= msgspec.structs.asdict(values.pop("settings"))
        del values["word"], values["engine"]
        return {name.encode(): _encode(value) for name, value in values.items()} | {b"epoch": self.stamp.encode()}

    def _stored(self) -> dict[str, Any]:
        """The values that are stored: links where the engine has some."""
        values = dict(zip(self.__struct_encode_fields__, msgspec.structs.astuple(self), strict=True))
        del values["topics"]
        if not self.links:
            del values["links"]
        return values

    def following(self, **changes: Any) -> Topology:
        """The next topology: this one with these changes, under the next epoch."""
        return msgspec.structs.replace(self, **{"epoch": self.epoch + 1, "word": new_word()} | changes)

    def widened(self, numbers: Iterable[int], **changes: Any) -> Topology:
        """The next topology, under which all shards are swept again: tasks may lie by these numbers, too."""
        more = [number for number in dict.fromkeys(numbers) if number not in (self.shards, *self.priors)]
        since = changes.get("epoch", self.epoch + 1)
        return self.following(priors=(*more, *self.priors), since=since, **changes)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of shards by which tasks may lie, oldest first."""
        return (*self.priors, self.shards)

    def in_force(self) -> Topology:
        """The topology after an announced count: made of this one alone, so that any process may complete it."""
        assert self.pending is not None, "only an announced count can come in force"
        epoch, word = self.epoch + 1, hashlib.sha256(self.word.encode()).hexdigest()[:12]
        return self.following(
            since=epoch, shards=self.pending, priors=(*self.priors, self.shards), pending=None, word=word
        )

    def with_change(self, before: Topology, after: Topology) -> Topology:
        """This topology with what ``after`` changed of ``before``: a pause, a limit, a route, a setting."""
        changes: dict[str, Any] = {}
        for name in _EDITED:
            was, now, here = (getattr(topology, name) for topology in (before, after, self))
            if was == now:
                continue
            if isinstance(now, tuple):
                came, went = set(now) - set(was), set(was) - set(now)
                changes[name] = tuple(sorted((set(here) | came) - went))
            else:
                changes[name] = now
        edited: dict[str, TopicSettings] = {}
        for topic, settings in after.edited_since(before).items():
            was = before.settings_of(topic)
            changed = [name for name in settings.__struct_fields__ if getattr(settings, name) != getattr(was, name)]
            edited[topic] = msgspec.structs.replace(
                self.settings_of(topic), **{name: getattr(settings, name) for name in changed}
            )
        return msgspec.structs.replace(self.with_topics(edited), **changes)

    @classmethod
    def from_text(cls, text: bytes) -> Topology:
        """Reads a shard's copy."""
        _check_format(text)
        try:
            return _checked(msgspec.json.decode(text, type=cls))
        except UNDECODABLE as exc:
            raise _unreadable(str(exc)) from exc

    def to_text(self) -> str:
        """The copy that every shard's meta keeps; the settings of topics stand beside it."""
        return _encode(self._stored()).decode()

    def with_stored(self, settings: Mapping[bytes, bytes]) -> Topology:
        """This topology with what is stored of some topics; empty: no settings."""
        try:
            read = {text_of(topic): _topic.decode(text) if text else NO_SETTINGS for topic, text in settings.items()}
        except UNDECODABLE as exc:
            raise _unreadable(str(exc)) from exc
        _check([bounds for each in read.values() for bounds in _bounds_of(each)])
        return self.with_topics(read)

    @classmethod
    def from_fields(cls, fields: Mapping[bytes, bytes]) -> Topology:
        """Reads the hash; fields unknown here are ignored. The settings of topics are elsewhere."""
        told = {name: msgspec.Raw(fields[name.encode()]) for name in ("format", "features") if name.encode() in fields}
        _check_format(msgspec.json.encode(told | {name: 0 for name in ("epoch", "shards") if name.encode() in fields}))
        try:
            stamp = Stamp.of(fields[b"epoch"])
            values = {
                name: msgspec.json.decode(fields[name.encode()])
                for name in (*cls.__struct_encode_fields__, *EngineSettings.__struct_fields__)
                if name not in ("epoch", "topics") and name.encode() in fields
            }
            values |= {
                "epoch": stamp.epoch,
                "word": stamp.word,
                "engine": stamp.engine,
                "shards": int(fields[b"shards"]),
            }
            values |= {"pending": values.get("pending") or None, "settings": values}
            topology = msgspec.convert(values, cls)
        except KeyError as exc:
            raise _unreadable(f"it has no field {exc.args[0].decode()!r}") from exc
        except UNDECODABLE as exc:
            raise _unreadable(str(exc)) from exc
        return _checked(topology)


_EDITED = ("features", "settings", "links", "is_keyed")
"""Fields that one change sets, whatever the others are. So does it of topics, one by one."""

_topic = msgspec.json.Decoder(TopicSettings)


class _Format(msgspec.Struct):
    format: int = 0  # none has what another program wrote, or a build of before the first release
    features: tuple[str, ...] = ()
    epoch: msgspec.Raw = msgspec.Raw()
    shards: msgspec.Raw = msgspec.Raw()


def _check_format(text: bytes) -> None:
    """Raises IncompatibleVersion for what only other builds can read, before anything else of it is read."""
    try:
        told = msgspec.json.decode(text, type=_Format)
    except UNDECODABLE as exc:
        raise _unreadable(str(exc)) from exc
    for name in ("epoch", "shards"):
        if not bytes(getattr(told, name)):
            raise _unreadable(f"it has no field {name!r}")
    formats.check(told.format, told.features)


_MOST = (1 << 53) - 1
"""The largest whole number of a script."""


def _checked(topology: Topology) -> Topology:
    """The same, if it is one that the engine's own commands can have made: all processes act by it, without a look."""
    ended = [count for count, _ in topology.ended]
    counts = (topology.shards, *topology.priors, *ended, *([] if topology.pending is None else [topology.pending]))
    if not all(1 <= count <= MAX_SHARDS for count in counts):
        raise _unreadable(f"it has a shard count outside 1..{MAX_SHARDS}")
    settings = topology.settings
    _check(
        [
            *(bounds for known in topology.topics.values() for bounds in _bounds_of(known)),
            ("epoch", 1, topology.epoch),
            ("since", 1, topology.since),
            ("max_attempts", 1, settings.max_attempts),
            ("dead_age", 0, settings.dead_age * 1000),
            ("dead_count", 0, settings.dead_count),
            ("done_age", 0, settings.done_age * 1000),
            ("done_count", 0, settings.done_count),
            ("rate", sys.float_info.min, topology.move_rate),
        ]
    )
    return topology


_Bounds = tuple[str, float, float | None]


def _bounds_of(settings: TopicSettings) -> Iterator[_Bounds]:
    if settings.limit is not None:
        yield "concurrency", 1, settings.limit.concurrency
        yield "rate", sys.float_info.min, settings.limit.rate
        yield "per_key", 1, settings.limit.per_key
        yield "per_key_rate", sys.float_info.min, settings.limit.per_key_rate
    if settings.route is not None:
        yield "maxlen", 0, settings.route.maxlen
    if settings.done_age is not None:
        yield "done_age", 0, settings.done_age * 1000


def _check(bounded: Iterable[_Bounds]) -> None:
    for name, least, value in bounded:
        if value is not None and not least <= value <= _MOST:
            raise _unreadable(f"its {name} is {value:g}")


def _unreadable(why: str) -> UnreadableTopology:
    return UnreadableTopology(
        f"the stored topology can't be read: {why:.300}; epoch must be EPOCH:WORD:ENGINE, shards decimal, priors "
        "and the settings of topics JSON: if something else wrote under this name, use another name"
    )
