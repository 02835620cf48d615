"""Celery's ETAs through shardq: ``delay_through(app, engine)`` in the module of the app, and nothing else changes.

    >>> from shardq.integrations.celery import delay_through
    >>> delay_through(app, shardq.Engine("redis://127.0.0.1:6379/0", name="delays"), above=60)

``README.md`` beside this file says the rest. This puts calls into one app, decides, pushes and cancels; ``messages``
makes the message that the app's transport would have sent, and tells where it goes.

A message waits as a task whose id is Celery's, due at the instant of its ``eta`` header. A second message of the same
id for the same queue replaces the one that waits: so a retry takes the place of an earlier one, and never runs beside
it. One for another queue waits in another topic, beside it. In a topic that several exchanges and keys share that can't
be told: there a second message of an id that waits is left to Celery.

The hook is put into an app before it has read its configuration, and reads none: the classes of ``app.amqp`` and
``app.control`` are replaced by subclasses of theirs, of which Celery makes objects at the first use as always. They
stay for good, and change nothing once the delaying is removed, nor in an app that was pickled.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from shardq.errors import BadInput, Conflict, EngineClosed, InvalidOption, MissingPackage, PayloadTooLarge, ShardqError

try:
    from celery import Celery, signals
    from celery.app.amqp import AMQP
    from celery.app.control import Control
    from celery.utils.time import maybe_iso8601, maybe_make_aware
    from kombu import Exchange
    from kombu.exceptions import OperationalError
    from kombu.transport import native_delayed_delivery as native
    from kombu.utils.functional import maybe_list
    from kombu.utils.imports import symbol_by_name
except ImportError as _exc:
    raise MissingPackage("shardq.integrations.celery needs Celery: pip install 'shardq[celery]'") from _exc

from shardq import Engine
from shardq.core.layout.topology import Route
from shardq.core.model.checks import OnConflict
from shardq.core.model.ids import full_id
from shardq.integrations.celery.messages import (
    OWN_TOPICS,
    PREFIX,
    Place,
    Sent,
    announce_revoked,
    capturing,
    messages_of,
)
from shardq.integrations.delaying import Delaying, as_payload
from shardq.integrations.delaying import task_id as unique_of  # a signal has an argument of that name
from shardq.integrations.shadow import Shadow, ShadowReport

__all__ = ["CeleryDelaying", "delay_through"]

log: logging.Logger = logging.getLogger("shardq.integrations")

OPTION = "shardq"
"""``apply_async(…, shardq=False)``: this message goes as Celery sends it."""

Send = Callable[..., Any]
"""``app.amqp.send_task_message``: ``send(producer, name, message, **options)``."""

_delayings: WeakKeyDictionary[Any, CeleryDelaying | None] = WeakKeyDictionary()
"""The apps with a hook. None: it changes nothing."""


def delay_through(app: Any, engine: Engine, above: float = 60, shadow: bool = False) -> CeleryDelaying:
    """Delays the app's tasks through shardq: a message whose ETA is more than ``above`` seconds ahead waits in the
    engine, and is in its queue when it is due. Call it in the module that has the app, so that workers do, too.

    It reads no configuration and connects to nothing yet. The engine has the codec "json" or "raw", and a dispatcher
    somewhere: a process that has called ``engine.start()``, or ``shardq run``. Called again with the same arguments it
    returns what is there. ``shadow=True``: Celery delays them as before, and shardq is measured beside it.

    >>> delaying = delay_through(app, shardq.Engine("redis://127.0.0.1:6379/0", name="delays"), above=60)
    >>> add.apply_async((2, 2), countdown=3600)
    >>> delaying.remove()  # back to Celery's own
    """
    delaying = CeleryDelaying(app, engine, above, shadow)
    if app not in _delayings:
        _put_in(app, "amqp", HookedAmqp, _SendsThrough)
        _put_in(app, "control", HookedControl, _RevokesThrough)
    present = _delayings.get(app)
    if present is None:
        _delayings[app] = delaying
        if shadow:
            signals.task_prerun.connect(delaying._note_run, weak=False)
        return delaying
    if present._asked == delaying._asked:
        return present
    raise InvalidOption(
        f"the app {app.main!r} is delayed through {present!r} already; end that first with .remove(), or leave this out"
    )


class CeleryDelaying(Delaying):
    """The delays of an app that go through an engine. After ``remove()`` what waits in shardq still comes, but
    ``revoke`` reaches it no more: do it when all of that has come.

    >>> with delay_through(app, engine, above=60):
    ...     add.apply_async((2, 2), countdown=3600)
    """

    def __init__(self, app: Any, engine: Engine, above: float, shadow: bool) -> None:
        if not isinstance(app, Celery):
            raise InvalidOption(f"delay_through takes a celery.Celery app, not {type(app).__name__}")
        super().__init__(engine, above=above)
        self._app = app
        self._shadow = Shadow(engine, f"Celery's {app.main!r}") if shadow else None
        self._asked = self._options, above, shadow

    def _target(self) -> str:
        return f"{self._app.main!r}{', in shadow mode' if self._shadow else ''}"

    def _restore(self) -> None:
        if _delayings.get(self._app) is self:
            _delayings[self._app] = None
            signals.task_prerun.disconnect(self._note_run)

    # ---- sending

    def send(self, send: Send, producer: Any, name: str, message: Any, options: dict[str, Any]) -> Any:
        """Sends a message, or sees to it that it is sent in time."""
        eta = self._eta(message)
        if eta is None or (eta - dt.datetime.now(dt.UTC)).total_seconds() <= self.above:
            return send(producer, name, message, **options)

        def take(capture: Any, sent: Sent) -> bool:
            return self._push(capture, sent, eta) if self._shadow is None else self._expect(capture, sent, eta)

        if self._shadow is None:
            options = without_native_delay(options)
        return send(capturing(producer, take), name, message, **options)

    def _eta(self, message: Any) -> dt.datetime | None:
        """The instant of a message's ETA. What Celery's worker would refuse has none."""
        body = message.body
        return self._instant(message.headers.get("eta") or (body.get("eta") if isinstance(body, dict) else None))

    def _instant(self, eta: Any) -> dt.datetime | None:
        try:
            return maybe_make_aware(maybe_iso8601(eta), self._app.timezone) if eta else None
        except (TypeError, ValueError):
            return None

    def _push(self, producer: Any, sent: Sent, eta: dt.datetime) -> bool:
        """Stores a message. False if the broker must take it now: it has no room here, or nobody listens there."""
        id = sent.properties["correlation_id"]
        with _as_celery_says():
            places = messages_of(producer, sent, self._options)
            try:
                for place, data in places:
                    found = place.within(self._routes())
                    self._forward(found)
                    payload = as_payload(self._options, data)
                    rule: OnConflict = "reject" if found.is_shared else "replace"
                    self.engine.push(payload, at=eta, topic=found.topic, id=unique_of(id), on_conflict=rule)
            except PayloadTooLarge as exc:
                log.warning("task %s waits in Celery's worker, as its message is too large for shardq: %s", id, exc)
                return False
            except Conflict as exc:
                text = "task %s waits in Celery's worker: its id is taken in a topic that many queues share: %s"
                log.warning(text, id, exc.id)
                return False
        self.delayed += bool(places)
        return bool(places)

    def _forward(self, place: Place) -> None:
        """Forwards the topic, if it is not. A route that names a secret is the operator's, and stays."""
        present = self._routes().get(place.topic)
        if present is None or (present.to != place.to and "${" not in present.to):
            if place.is_shared:
                text = "%d exchanges and routing keys have topics of their own in the engine %r; all others share %r"
                log.warning(text, OWN_TOPICS, self.engine.name, place.topic)
            self.engine.forward(place.topic, to=place.to, side=place.side)

    def _routes(self) -> Mapping[str, Route]:
        """The routes as this process knows them."""
        try:
            return self.engine.topology.routes
        except EngineClosed:
            self.engine.get("nothing", decode=False)  # the first use opens it, or tells why it can't be opened
            return self.engine.topology.routes

    # ---- shadow mode

    def report(self, *, forget: bool = False) -> ShadowReport:
        """Compares Celery's own delays with shardq's, so far, over all processes. ``forget=True`` begins anew.

        >>> print(delaying.report())
        """
        if self._shadow is None:
            raise InvalidOption("there is nothing to compare: delay_through(…, shadow=True) does both")
        return self._shadow.report(forget=forget)

    def _expect(self, producer: Any, sent: Sent, eta: dt.datetime) -> bool:
        """Notes a message that the broker takes as before."""
        assert self._shadow is not None, "it is shadow mode"
        try:
            size = sum(len(data) for _, data in messages_of(producer, sent, self._options))
        except Exception as exc:  # noqa: BLE001  nothing of this may disturb the app
            log.warning("shadow mode: a message could not be made: %s: %s", type(exc).__name__, exc)
            size = 0
        self._shadow.expect(unique_of(sent.properties["correlation_id"]), eta, size=size)
        return False

    def _note_run(self, task_id: str, task: Any, **_: Any) -> None:
        if self._shadow is not None and task.app is self._app and not task.request.is_eager:
            due = self._instant(task.request.eta)
            if due is not None:
                self._shadow.ran(unique_of(task_id), due)

    # ---- cancelling

    def revoke(self, task_ids: Any) -> None:
        """Cancels what waits here. Called before the workers are told."""
        uniques = [unique_of(id) for id in maybe_list(task_ids) or []]
        if self._shadow is not None:
            for unique in uniques:
                self._shadow.cancelled(unique)
            return
        with _as_celery_says():
            if uniques:
                self.engine.get(uniques[0])  # the answer tells of topics that other processes have forwarded meanwhile
            ids = [full_id(topic, each) for topic in self._routes() if topic.startswith(PREFIX) for each in uniques]
            for id in ids:
                info = self.engine.get(id, decode=False)
                if info is not None and self.engine.cancel(id):
                    announce_revoked(self._app, bytes(info.payload))


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


# ---- the hook


def _put_in(app: Any, part: str, hooked: type, mixin: type) -> None:
    """``hooked`` is for Celery's own class: it has a name, by which an app can be pickled."""
    made = vars(app).get(part)
    base = symbol_by_name(getattr(app, f"{part}_cls")) if made is None else type(made)
    if not issubclass(base, mixin):
        hooked = hooked if base in hooked.__bases__ else type(base.__name__, (mixin, base), {})
        setattr(app, f"{part}_cls", hooked)
        if made is not None:
            made.__class__ = hooked
            vars(made).pop("send_task_message", None)  # cached by the class before


class _SendsThrough:
    app: Any

    def _create_task_sender(self) -> Send:
        send: Send = super()._create_task_sender()  # type: ignore[misc]  # of the class beside this one
        app = self.app

        def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
            delaying = _delayings.get(app)
            if options.pop(OPTION, True) is False or delaying is None:
                return send(producer, name, message, **options)
            return delaying.send(send, producer, name, message, options)

        return send_task_message


class _RevokesThrough:
    app: Any

    def revoke(self, task_id: Any, *args: Any, **options: Any) -> Any:
        delaying = _delayings.get(self.app)
        try:
            if delaying is not None:
                delaying.revoke(task_id)
        finally:
            answer = super().revoke(task_id, *args, **options)  # type: ignore[misc]  # as above
        return answer


class HookedAmqp(_SendsThrough, AMQP):
    """``app.amqp``."""


class HookedControl(_RevokesThrough, Control):
    """``app.control``."""
