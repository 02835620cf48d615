"""The delays of one app: which messages wait in shardq, and their cancellation.

A message waits as a task whose id is Celery's, due at the instant of its ``eta`` header. A second message of the same
id for the same queue replaces the one that waits: so a retry takes the place of an earlier one, and never runs beside
it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import msgspec
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import Exchange
from kombu.exceptions import OperationalError
from kombu.transport import native_delayed_delivery as native
from kombu.utils.functional import maybe_list

from shardq.engine import Engine
from shardq.errors import BadInput, EngineClosed, InvalidId, InvalidOption, PayloadTooLarge, ShardqError
from shardq.integrations.celery.brokers import PREFIX, Place
from shardq.integrations.celery.capture import Sent, capturing, messages_of
from shardq.integrations.celery.hooks import Hook, Send, hook_of
from shardq.integrations.celery.revoked import mark_revoked
from shardq.layout.topology import Route
from shardq.model.checks import check_id, check_seconds
from shardq.model.ids import full_id

log = logging.getLogger("shardq.celery")

LONGEST_S = 366 * 86_400


def delay_through(app: Any, engine: Engine, above: float = 60) -> Delays:
    """Delays the app's tasks through shardq: a message whose ETA is more than ``above`` seconds ahead waits in the
    engine, and is in its queue when it is due. Call it in the module that has the app, so that workers do, too.

    It reads no configuration and connects to nothing yet. The engine has the codec "json" or "raw", and a dispatcher
    somewhere: a process that has called ``engine.start()``, or ``shardq run``. Called again with the same arguments it
    returns what is there.

    >>> delays = delay_through(app, shardq.Engine("redis://127.0.0.1:6379/0", name="delays"), above=60)
    >>> add.apply_async((2, 2), countdown=3600)
    >>> delays.remove()  # back to Celery's own
    """
    delays = Delays(app, engine, above)
    hook = hook_of(app)
    present = hook.through
    if present is None:
        hook.through = delays
        return delays
    assert isinstance(present, Delays), "nothing else is put in"
    if present.same(delays):
        return present
    raise InvalidOption(
        f"the app {app.main!r} is delayed through {present!r} already; end that first with .remove(), or leave this out"
    )


class Delays:
    """What ``delay_through`` has put into an app, until ``remove()`` or the end of a ``with`` block.

    >>> with delay_through(app, engine, above=60):
    ...     add.apply_async((2, 2), countdown=3600)
    """

    def __init__(self, app: Any, engine: Engine, above: float) -> None:
        if not isinstance(engine, Engine):
            raise InvalidOption(f"engine={engine!r} is not possible; give a shardq.Engine")
        codec = engine.options.codec.name
        if codec not in ("json", "raw"):
            raise InvalidOption(
                f"an engine with the codec {codec!r} can't carry Celery's messages as they are; "
                'give one with codec="json", the default, or "raw"'
            )
        check_seconds(above, "above", most=LONGEST_S)
        self._app = app
        self._engine = engine
        self._above = dt.timedelta(seconds=above)
        self._hook: Hook = hook_of(app)

    def __repr__(self) -> str:
        return f"<Delays of {self._app.main!r} above {self._above.total_seconds():g} s through {self._engine!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Ends it in this process: what is sent from now on is Celery's alone. What waits in shardq still comes, but
        ``revoke`` reaches it no more: do it when all of that has come.
        """
        if self._hook.through is self:
            self._hook.through = None

    def same(self, other: Delays) -> bool:
        """True if the other would do the same."""
        return (self._engine.options, self._above) == (other._engine.options, other._above)

    # ---- sending

    def send(self, send: Send, producer: Any, name: str, message: Any, options: dict[str, Any]) -> Any:
        eta = self._eta(message)
        if eta is None or eta - dt.datetime.now(dt.UTC) <= self._above:
            return send(producer, name, message, **options)

        def take(capture: Any, sent: Sent) -> bool:
            return self._push(capture, sent, eta)

        return send(capturing(producer, take), name, message, **without_native_delay(options))

    def _eta(self, message: Any) -> dt.datetime | None:
        """The instant of a message's ETA. What Celery's worker would refuse has none."""
        at = message.headers.get("eta") or (message.body.get("eta") if isinstance(message.body, dict) else None)
        try:
            return maybe_make_aware(maybe_iso8601(at), self._app.timezone) if at else None
        except (TypeError, ValueError):
            return None

    def _push(self, producer: Any, sent: Sent, eta: dt.datetime) -> bool:
        """Stores a message. False if the broker must take it now: it has no room here, or nobody listens there."""
        id = sent.properties["correlation_id"]
        with _as_celery_says():
            places = messages_of(producer, sent, self._engine.options)
            try:
                for place, data in places:
                    self._forward(place)
                    self._engine.push(
                        self._payload(data), at=eta, topic=place.topic, id=unique_of(id), on_conflict="replace"
                    )
            except PayloadTooLarge as exc:
                log.warning("task %s waits in Celery's worker, as its message is too large for shardq: %s", id, exc)
                return False
        return bool(places)

    def _payload(self, data: bytes) -> Any:
        return msgspec.Raw(data) if self._engine.options.codec.name == "json" else data

    def _forward(self, place: Place) -> None:
        """Forwards the topic, if it is not. A route that refers to the environment is the operator's, and stays."""
        present = self._routes().get(place.topic)
        if present is None or (present.to != place.to and "${" not in present.to):
            self._engine.forward(place.topic, to=place.to, side=place.side)

    def _routes(self) -> Mapping[str, Route]:
        """The routes as this process knows them: none before the engine is open."""
        try:
            return self._engine.topology.routes
        except EngineClosed:
            return {}

    # ---- cancelling

    def revoke(self, task_ids: Any) -> None:
        uniques = [unique_of(id) for id in maybe_list(task_ids) or []]
        with _as_celery_says():
            self._cancel(uniques)

    def _cancel(self, uniques: list[str]) -> None:
        if uniques:
            self._engine.get(uniques[0])  # the answer tells this process of topics that others have forwarded meanwhile
        for topic in [topic for topic in self._routes() if topic.startswith(PREFIX)]:
            for unique in uniques:
                id = full_id(topic, unique)
                info = self._engine.get(id, decode=False)
                if info is not None and self._engine.cancel(id):
                    mark_revoked(self._app, bytes(info.payload))


def unique_of(task_id: str) -> str:
    """The part of shardq's id after the topic: Celery's id, or a digest of one that shardq does not take."""
    try:
        check_id(task_id)
    except InvalidId:
        return "~" + hashlib.blake2b(str(task_id).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return task_id


@contextmanager
def _as_celery_says() -> Iterator[None]:
    """Raises what Celery raises when its broker can't be reached. The engine has tried again for its ``timeout``."""
    try:
        yield
    except BadInput:
        raise
    except ShardqError as exc:
        raise OperationalError(f"shardq: {exc}") from exc


_DELAYED = re.compile(rf"((?:.*_)?)celery_delayed_{native.MAX_LEVEL}")
_DELAY = re.compile(rf"(?:[01]\.){{{native.MAX_NUMBER_OF_BITS_TO_USE}}}")


def without_native_delay(options: dict[str, Any]) -> dict[str, Any]:
    """The options, where Celery has set RabbitMQ's delayed delivery for quorum queues: the message goes to the exchange
    behind all delays.
    """
    exchange, key = options.get("exchange"), options.get("routing_key") or ""
    found = _DELAYED.fullmatch(getattr(exchange, "name", "")) if isinstance(exchange, Exchange) else None
    if found is None or not _DELAY.match(key):
        return options
    behind = Exchange(f"{found[1]}{native.CELERY_DELAYED_DELIVERY_EXCHANGE}", type="topic")
    return {**options, "exchange": behind, "routing_key": _DELAY.sub(lambda bits: bits[0].replace("1", "0"), key, 1)}
