"""``shardq.Webhooks``: hooks to URLs of your database, from a handler of an engine's worker."""

from __future__ import annotations

from typing import Any

from shardq.core.model.checks import is_seconds
from shardq.core.model.printable import quoted
from shardq.core.model.record import Builtin, record_encoder
from shardq.core.model.task import Delivery
from shardq.engine.access import EngineAccess
from shardq.engine.base import EngineBase
from shardq.errors import InvalidOption
from shardq.features.sinks.base import Message
from shardq.features.sinks.egress import WEBHOOK
from shardq.features.webhooks.poster import Poster

SHORTEST_S, LONGEST_S = 0.1, 600.0


class Webhooks:
    """Posts tasks to the URLs of your customers, signed as Standard Webhooks has it. Make one for an engine, and call
    ``post`` in coroutine handlers.

    >>> hooks = shardq.Webhooks(engine)
    >>> @worker.on("hooks")
    ... async def send(delivery):
    ...     row = await endpoint(delivery.key)
    ...     await hooks.post(delivery, url=row.url, secret=row.secret)
    """

    def __init__(self, engine: EngineBase, *, timeout: float = 15, http: bool = False) -> None:
        """``engine``: an Engine or an AsyncEngine, whose codec and ``sinks=`` count. ``timeout``: seconds for a whole
        request. ``http``: also URLs without TLS. Raises InvalidOption.
        """
        if not isinstance(engine, EngineBase):
            raise InvalidOption(f"Webhooks can't be made of {quoted(engine)}; give an Engine or an AsyncEngine")
        if not (is_seconds(timeout, most=LONGEST_S) and timeout >= SHORTEST_S):
            raise InvalidOption(
                f"timeout can't be {quoted(timeout)}; give seconds as a number, from {SHORTEST_S:g} to {LONGEST_S:g}"
            )
        if not isinstance(http, bool):
            raise InvalidOption(f"http can't be {quoted(http)}; give True if URLs may be http://, or False")
        options = EngineAccess(engine).options
        sinks = options.egress.sinks
        if sinks is not None and not any(scheme == WEBHOOK for scheme, _ in sinks):
            raise InvalidOption(
                f"sinks= of the engine allows no webhooks; add {WEBHOOK}://* for all public hosts, or those that you "
                f"mean: {WEBHOOK}://*.example.org"
            )
        self._encode = record_encoder(options.codec)
        self._codec = options.codec.name if isinstance(options.codec, Builtin) else "own"
        self._poster = Poster(options.egress, timeout_s=timeout, http=http)

    async def post(self, delivery: Delivery[Any], *, url: str, secret: str | None) -> None:
        """Posts a task. ``secret``: ``whsec_…``, or two with a blank between, by which both sign; None: unsigned.

        Returns if the endpoint has taken it. Otherwise it raises ``Retry``, ``Hold``, ``Snooze`` or ``Bury``, which say
        what becomes of the task: let them pass.

        >>> hooks = shardq.Webhooks(engine)
        >>> @worker.on("hooks")
        ... async def send(delivery):
        ...     await hooks.post(delivery, url="https://customer.example/in", secret=SECRET)
        """
        message = Message(
            id=delivery.id,
            topic=delivery.topic,
            payload=self._encode(delivery.payload, None, delivery.id)[1:],  # behind the byte that names the codec
            codec=self._codec,
            headers=delivery.headers,
            attempt=delivery.attempt,
            failures=delivery.failures,
        )
        await self._poster.post(message, url, secret)

    async def close(self) -> None:
        """Closes the connections that were opened in the running event loop. Call it when the worker ends, by
        ``@worker.on_shutdown``.

        >>> hooks = shardq.Webhooks(engine)
        >>> worker.on_shutdown(hooks.close)
        """
        await self._poster.close()
