"""Which function handles what. Registration; nothing runs here."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from shardq.errors import BadInput, InvalidOption
from shardq.model.checks import check_max_attempts, check_topic
from shardq.model.task import Delivery, Receipt
from shardq.worker.policy import Backoff, Retry

log = logging.getLogger("shardq.worker")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """What takes the deliveries of one topic."""

    topic: str
    run: Callable[[Delivery], Any]
    is_coroutine: Callable[[Delivery], bool]
    """Whether ``run`` gives an awaitable for this delivery."""
    type: Any = None
    """What payloads are decoded into; None: whatever they are."""
    timeout: float | None = None
    max_attempts: int
    backoff: Backoff


class _Named:
    """The functions of one topic by name."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}

    def _function(self, delivery: Delivery) -> Callable[..., Any]:
        payload = delivery.payload
        name = payload.get("task") if isinstance(payload, dict) else None
        function = self.functions.get(name) if isinstance(name, str) else None
        if function is None:
            raise Retry(reason=f"no function named {name!r} is known to this worker")
        return function

    def is_coroutine(self, delivery: Delivery) -> bool:
        try:
            return inspect.iscoroutinefunction(self._function(delivery))
        except Retry:
            return False

    def run(self, delivery: Delivery) -> Any:
        try:
            function = self._function(delivery)
        except Retry as exc:
            # a newer producer, or a worker not yet upgraded: another worker may know it, and nothing is dropped
            log.warning("task %s in attempt %d: %s", delivery.id, delivery.attempt, exc.reason)
            raise
        return function(*delivery.payload.get("args", ()), **delivery.payload.get("kwargs", {}))


class NamedTask(Generic[P, R]):
    """A function that can be called as before, and pushed to be called by a worker."""

    def __init__(self, push: Callable[..., Receipt], function: Callable[P, R], name: str, topic: str) -> None:
        self._push = push
        self._function = function
        self.name = name
        self.topic = topic
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<NamedTask {self.name} on topic {self.topic!r}>"

    def push(self, args: Any = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Receipt:
        """Pushes a call. ``args``: a tuple or list of arguments, or the only one; ``options`` as ``engine.push``."""
        return self._push(call_payload(self.name, args, kwargs), **{"topic": self.topic, **options})


class AsyncNamedTask(Generic[P, R]):
    """The same, pushed by an AsyncEngine."""

    def __init__(
        self, push: Callable[..., Awaitable[Receipt]], function: Callable[P, R], name: str, topic: str
    ) -> None:
        self._push = push
        self._function = function
        self.name = name
        self.topic = topic
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<AsyncNamedTask {self.name} on topic {self.topic!r}>"

    async def push(self, args: Any = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Receipt:
        """Pushes a call. ``args``: a tuple or list of arguments, or the only one; ``options`` as ``engine.push``."""
        return await self._push(call_payload(self.name, args, kwargs), **{"topic": self.topic, **options})


def call_payload(name: str, args: Any, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """A call as a payload: its name and its arguments."""
    positional = list(args) if isinstance(args, tuple | list) else [args]
    return {"task": name, "args": positional, "kwargs": dict(kwargs or {})}


class Registry:
    """All handlers of one worker, in the order of their registration: the order of priority."""

    def __init__(self, *, max_attempts: int, backoff: Backoff) -> None:
        self._max_attempts = max_attempts
        self._backoff = backoff
        self._named: dict[str, _Named] = {}
        self.handlers: dict[str, Handler] = {}

    def on(
        self,
        topic: str,
        run: Callable[[Delivery], Any],
        *,
        type: Any,
        timeout: float | None,
        max_attempts: int | None,
        backoff: Backoff | None,
    ) -> None:
        if topic in self.handlers:
            raise BadInput(f"the topic {topic!r} has a handler already: {self.handlers[topic].run!r}; it can have one")
        self._add(topic, run, _always(inspect.iscoroutinefunction(run)), type, timeout, max_attempts, backoff)

    def name(
        self,
        name: str,
        topic: str,
        function: Callable[..., Any],
        *,
        timeout: float | None,
        max_attempts: int | None,
        backoff: Backoff | None,
    ) -> None:
        named = self._named.get(topic)
        if named is None:
            if topic in self.handlers:
                raise BadInput(f"the topic {topic!r} has a handler already; give the function a topic of its own")
            named = self._named[topic] = _Named()
            self._add(topic, named.run, named.is_coroutine, None, timeout, max_attempts, backoff)
        if name in named.functions:
            raise BadInput(f"a function named {name!r} is registered already; give name= another")
        named.functions[name] = function

    def _add(
        self,
        topic: str,
        run: Callable[[Delivery], Any],
        is_coroutine: Callable[[Delivery], bool],
        type: Any,
        timeout: float | None,
        max_attempts: int | None,
        backoff: Backoff | None,
    ) -> None:
        check_topic(topic)
        if not callable(run):
            raise InvalidOption(f"a handler can't be {run!r}; give a function or a coroutine function")
        if max_attempts is not None:
            check_max_attempts(max_attempts)
        if timeout is not None and not 0 < timeout < float("inf"):
            raise InvalidOption(f"timeout={timeout!r} is not possible; give seconds, more than 0")
        self.handlers[topic] = Handler(
            topic=topic,
            run=run,
            is_coroutine=is_coroutine,
            type=type,
            timeout=timeout,
            max_attempts=self._max_attempts if max_attempts is None else max_attempts,
            backoff=backoff or self._backoff,
        )


def _always(answer: bool) -> Callable[[Delivery], bool]:
    return lambda _: answer
