"""The registry of handlers, and the plan that a worker makes of them. Nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardq.core.consumer import policy
from shardq.core.consumer.policy import Backoff
from shardq.core.fleet.lateness import OTHERS
from shardq.core.model.checks import check_max_attempts, is_seconds
from shardq.core.model.printable import quoted
from shardq.core.model.task import Delivery
from shardq.delivery.functions import ChoosingHandler, is_coroutine_function, name_of
from shardq.delivery.handler import Batching, Handler, UnknownTask, name_in
from shardq.delivery.hooks import Hooks
from shardq.errors import BadInput, InvalidOption
from shardq.features.schedules.every import Every
from shardq.worker.functions import Arguments, calling, reading, typed

SHOWN = 20
"""Names shown in a message."""

MOST_NAME = 200
"""Characters of a name in a payload that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """The attempts of a function's tasks; None: as the worker says."""

    timeout: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not (is_seconds(self.timeout) and self.timeout > 0):
            raise InvalidOption(f"timeout={quoted(self.timeout)} is not possible; give seconds, more than 0")
        if self.max_attempts is not None:
            check_max_attempts(self.max_attempts)
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidOption(
                f"backoff={quoted(self.backoff)} is not possible; give a Backoff, such as Backoff(base=1, cap=3600)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFunction:
    """A function that handles all tasks of a topic: ``@worker.on``."""

    topic: str
    function: Callable[[Any], Any]
    type: Any
    """The type of its payloads; None: any."""
    attempts: Attempts
    batching: Batching | None = None
    """None: it takes one delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFunction:
    """A function that handles the tasks of a topic that are pushed by its name: ``@engine.task``, ``@worker.task``."""

    topic: str
    name: str
    aliases: tuple[str, ...]
    """Its earlier names."""
    function: Callable[..., Any]
    arguments: Arguments
    attempts: Attempts
    every: Every | None = None
    """Its recurrence, if it recurs."""
    key: str | None = None
    """The key of that."""


Registered = TopicFunction | TaskFunction


class Registry:
    """Handlers by topic, in the order of their registration, which is the order of priority.

    An engine has one of its tasks, and each worker one of its own.
    """

    def __init__(
        self, registered: Iterable[Registered] = (), *, max_attempts: int | None, backoff: Backoff | None
    ) -> None:
        own = Attempts(max_attempts=max_attempts, backoff=backoff)
        self._max_attempts = max_attempts
        self._backoff = policy.DEFAULT if own.backoff is None else own.backoff
        self._named: dict[str, dict[str, Handler]] = {}
        """Topic → the handlers of its named tasks."""
        self.around: Callable[[Handler], Handler] | None = None
        """Changes every handler that the engine's workers run; for an engine's registry."""
        self.registered: list[Registered] = []
        self.handlers: dict[str, Handler] = {}
        for each in registered:
            self.add(each)

    def add(self, registered: Registered) -> None:
        self.check(registered)
        self.registered = [each for each in self.registered if not _is_again(each, registered)]
        if isinstance(registered, TopicFunction):
            self._add_topic(registered)
        else:
            self._add_task(registered)
        self.registered.append(registered)

    def check(self, registered: Registered) -> None:
        """Raises BadInput where a function can't be registered beside those that are."""
        if any(_is_again(each, registered) for each in self.registered):
            return
        topic = registered.topic
        named = self._named.get(topic)
        if isinstance(registered, TopicFunction):
            if named is not None:
                raise BadInput(
                    f"the topic {topic!r} has tasks, which are handled by name: {shown(named)}; give the handler a "
                    "topic of its own"
                )
            if topic in self.handlers:
                raise BadInput(
                    f"the topic {topic!r} has a handler already: {self.handlers[topic].run!r}; it can have one"
                )
        elif named is None:
            if topic in self.handlers:
                raise BadInput(f"the topic {topic!r} has a handler already; give the function a topic of its own")
        elif registered.name in named:
            raise BadInput(f"a function named {registered.name!r} is registered already; give name= another")
        elif taken := [alias for alias in registered.aliases if alias in named]:
            raise BadInput(
                f"the alias {taken[0]!r} of {registered.name} is a name of another function of topic {topic!r}; leave "
                "it to one of them"
            )

    def joined(self, others: Iterable[Registered]) -> Registry:
        """These handlers and then others: both registries stay as they are."""
        return Registry([*self.registered, *others], max_attempts=self._max_attempts, backoff=self._backoff)

    def _add_topic(self, registered: TopicFunction) -> None:
        run, topic, attempts = registered.function, registered.topic, registered.attempts
        if isinstance(run, ChoosingHandler):
            parts = {"is_coroutine": run.is_coroutine, "has_coroutines": run.has_coroutines, "name": run.title}
            self.handlers[topic] = self._handler(topic, run, attempts, **parts)
        elif (batching := registered.batching) is not None:
            read = None if registered.type is None else reading(run, registered.type)
            handler = self._of_function(topic, run, attempts, run, name_of(run))
            self.handlers[topic] = replace(handler, batching=replace(batching, read=read))
        else:
            own = run if registered.type is None else typed(run, registered.type)
            self.handlers[topic] = self._of_function(topic, own, attempts, run, name_of(run))

    def _add_task(self, registered: TaskFunction) -> None:
        topic, name = registered.topic, registered.name
        if topic not in self._named:
            named = self._named[topic] = {}
            self.handlers[topic] = self._handler(
                topic,
                UnknownCalls(named),
                Attempts(),
                is_coroutine=lambda _: False,
                has_coroutines=lambda: any(each.has_coroutines() for each in named.values()),
                name=lambda delivery: name_in(delivery)[:MOST_NAME],
                named=named,
            )
        # Its max_attempts is in each task that is pushed by name: a lease that runs out counts by it, too.
        attempts = replace(registered.attempts, max_attempts=None)
        run = calling(registered.function, registered.arguments, name)
        handler = self._of_function(topic, run, attempts, registered.function, name)
        self._named[topic] |= dict.fromkeys((name, *registered.aliases), handler)

    def _of_function(
        self, topic: str, run: Callable[[Delivery], Any], attempts: Attempts, function: Callable[..., Any], name: str
    ) -> Handler:
        coroutine = is_coroutine_function(function)
        parts = {"is_coroutine": lambda _: coroutine, "has_coroutines": lambda: coroutine, "name": lambda _: name}
        return self._handler(topic, run, attempts, **parts)

    def _handler(self, topic: str, run: Callable[[Delivery], Any], attempts: Attempts, **parts: Any) -> Handler:
        return Handler(
            topic=topic,
            run=run,
            timeout=attempts.timeout,
            max_attempts=self._max_attempts if attempts.max_attempts is None else attempts.max_attempts,
            backoff=self._backoff if attempts.backoff is None else attempts.backoff,
            **parts,
        )


def _is_again(known: Registered, new: Registered) -> bool:
    """True if both are of one cell of a notebook, or of a console, that was run twice."""
    place: Mapping[str, Any] = getattr(new.function, "__globals__", {})
    return (
        place.get("__name__") == "__main__"
        and "__file__" not in place
        and type(known) is type(new)
        and known.topic == new.topic
        and getattr(known, "name", "") == getattr(new, "name", "")
        and getattr(known.function, "__globals__", None) is place
        and getattr(known.function, "__qualname__", "") == getattr(new.function, "__qualname__", None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The orders of a processor. The order of handlers is the order of priority, unless there are weights."""

    handlers: Mapping[str, Handler]
    functions: Sequence[Registered]
    """The functions behind the handlers."""
    hooks: Hooks
    weights: Mapping[str, int] | None
    concurrency: int
    lease: float
    name: str | None

    def of(self, topics: Sequence[str]) -> Plan:
        """The plan for some of the topics alone, in this order of priority."""
        return replace(
            self,
            handlers={topic: self.handlers[topic] for topic in topics},
            functions=[each for each in self.functions if each.topic in topics],
            weights=None if self.weights is None else {topic: self.weights[topic] for topic in topics},
        )

    @property
    def tasks(self) -> list[str]:
        """The names of tasks that it knows, those of earlier versions too; ``*`` where it has no named tasks, as its
        handlers may take any call.
        """
        tasks = [each for each in self.functions if isinstance(each, TaskFunction)]
        return [name for each in tasks for name in (each.name, *each.aliases)] or [OTHERS]

    @property
    def attempts(self) -> dict[str, int]:
        """Topic → the attempts of tasks that bring no limit of their own, where the handler or the worker says so."""
        return {topic: most for topic, handler in self.handlers.items() if (most := handler.max_attempts) is not None}


class UnknownCalls:
    """The handler of calls in a topic whose names no function of this worker has. ``named``: those that it has."""

    def __init__(self, named: Collection[str]) -> None:
        self._named = named

    def __call__(self, delivery: Delivery) -> None:
        name = name_in(delivery)[:MOST_NAME]
        missing = f"no function named {name!r} is" if name else "the payload names no function that is"
        known = shown(self._named)
        raise UnknownTask(
            name, f"{missing} known to this worker, which has: {known}; start one that has it, or push one of these"
        )


def shown(names: Collection[str]) -> str:
    """Names in a message."""
    return ", ".join(sorted(names)[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def recurring(functions: Iterable[Registered]) -> list[tuple[TaskFunction, Every]]:
    """The tasks that recur."""
    return [(each, each.every) for each in functions if isinstance(each, TaskFunction) and each.every is not None]
