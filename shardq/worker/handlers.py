"""The registry of handlers. Nothing runs here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shardq.consumer import policy
from shardq.consumer.policy import Backoff
from shardq.errors import BadInput, InvalidOption
from shardq.model.checks import check_max_attempts, check_topic
from shardq.model.task import Delivery
from shardq.schedules.every import Every
from shardq.worker.kinds import ChoosingHandler, is_coroutine_function, name_of
from shardq.worker.logs import Once, tell
from shardq.worker.named import NamedTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """The attempts of a topic's tasks; None: as the worker says."""

    timeout: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not (policy.is_seconds(self.timeout) and self.timeout > 0):
            raise InvalidOption(f"timeout={self.timeout!r} is not possible; give seconds, more than 0")
        if self.max_attempts is not None:
            check_max_attempts(self.max_attempts)
        policy.check_backoff(self.backoff)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The handler of one topic."""

    topic: str
    run: Callable[[Delivery], Any]
    is_coroutine: Callable[[Delivery], bool]
    """True if ``run`` returns an awaitable for this delivery."""
    has_coroutines: Callable[[], bool]
    """True if it does so for some delivery."""
    name: Callable[[Delivery], str]
    """The name of the function for this delivery, in logs and errors."""
    type: Any = None
    """The type that payloads are decoded into; None: any."""
    timeout: float | None = None
    max_attempts: int
    backoff: Backoff
    once: Once = field(default_factory=Once, repr=False, compare=False)

    def delay_ms(self, attempt: int) -> int:
        """The delay by the backoff, or by the default one if that fails. Never raises."""
        try:
            return policy.delay_ms(self.backoff, attempt)
        except BaseException as exc:  # noqa: BLE001  the user's code, SystemExit too: the task is settled
            if self.once.new("backoff"):
                what = "the backoff of %r, handler of topic %r, fails: its tasks wait as by Backoff() (said once)"
                tell(logging.ERROR, what, self.run, self.topic, exc=exc)
            return policy.delay_ms(policy.DEFAULT, attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFunction:
    """A function that handles all tasks of a topic: ``@worker.on``."""

    topic: str
    function: Callable[[Delivery], Any]
    type: Any
    attempts: Attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFunction:
    """A function that handles the tasks of a topic that are pushed by its name: ``@engine.task``, ``@worker.task``."""

    topic: str
    name: str
    function: Callable[..., Any]
    attempts: Attempts
    every: Every | None = None
    """Its recurrence, if it recurs."""


Registered = TopicFunction | TaskFunction


class Registry:
    """Handlers by topic, in the order of their registration, which is the order of priority.

    An engine has one of its tasks, and each worker one of its own.
    """

    def __init__(self, registered: Iterable[Registered] = (), *, max_attempts: int, backoff: Backoff | None) -> None:
        own = Attempts(max_attempts=max_attempts, backoff=backoff)
        self._max_attempts = max_attempts
        self._backoff = policy.DEFAULT if own.backoff is None else own.backoff
        self._named: dict[str, tuple[NamedTasks, Attempts]] = {}
        self.around: Callable[[Handler], Handler] | None = None
        """Changes every handler that the engine's workers run; for an engine's registry."""
        self.registered: list[Registered] = []
        self.handlers: dict[str, Handler] = {}
        for each in registered:
            self.add(each)

    def add(self, registered: Registered) -> None:
        self.check(registered)
        if isinstance(registered, TopicFunction):
            self._add_topic(registered)
        else:
            self._add_task(registered)
        self.registered.append(registered)

    def check(self, registered: Registered) -> None:
        """Raises BadInput where a function can't be registered beside those that are."""
        topic, attempts = registered.topic, registered.attempts
        if isinstance(registered, TopicFunction):
            if topic in self._named:
                raise BadInput(
                    f"the topic {topic!r} has tasks, which are handled by name: {self._named[topic][0]!r}; give the "
                    "handler a topic of its own"
                )
            if topic in self.handlers:
                raise BadInput(
                    f"the topic {topic!r} has a handler already: {self.handlers[topic].run!r}; it can have one"
                )
            return
        if topic not in self._named:
            if topic in self.handlers:
                raise BadInput(f"the topic {topic!r} has a handler already; give the function a topic of its own")
            return
        names, first = self._named[topic]
        if attempts not in (first, Attempts()):
            raise BadInput(
                f"the functions of topic {topic!r} share timeout, max_attempts and backoff, and {attempts} is not what "
                f"its first was given, {first}; give the same, or none, or a topic of its own"
            )
        if registered.name in names.functions:
            raise BadInput(f"a function named {registered.name!r} is registered already; give name= another")

    def joined(self, others: Iterable[Registered]) -> Registry:
        """These handlers and then others: both registries stay as they are."""
        return Registry([*self.registered, *others], max_attempts=self._max_attempts, backoff=self._backoff)

    def _add_topic(self, registered: TopicFunction) -> None:
        run, topic, attempts = registered.function, registered.topic, registered.attempts
        if isinstance(run, ChoosingHandler):
            self._add_choosing(topic, run, type=registered.type, attempts=attempts)
            return
        coroutine, name = is_coroutine_function(run), name_of(run)
        self._add(
            topic,
            run,
            is_coroutine=lambda _: coroutine,
            has_coroutines=lambda: coroutine,
            name=lambda _: name,
            type=registered.type,
            attempts=attempts,
        )

    def _add_choosing(self, topic: str, run: ChoosingHandler, *, type: Any = None, attempts: Attempts) -> None:
        self._add(
            topic,
            run,
            is_coroutine=run.is_coroutine,
            has_coroutines=run.has_coroutines,
            name=run.title,
            type=type,
            attempts=attempts,
        )

    def _add_task(self, registered: TaskFunction) -> None:
        topic = registered.topic
        if topic not in self._named:
            names = NamedTasks()
            self._add_choosing(topic, names, attempts=registered.attempts)
            self._named[topic] = names, registered.attempts
        self._named[topic][0].add(registered.name, registered.function)

    def _add(
        self,
        topic: str,
        run: Callable[[Delivery], Any],
        *,
        is_coroutine: Callable[[Delivery], bool],
        has_coroutines: Callable[[], bool],
        name: Callable[[Delivery], str],
        type: Any,
        attempts: Attempts,
    ) -> None:
        self.handlers[topic] = Handler(
            topic=topic,
            run=run,
            is_coroutine=is_coroutine,
            has_coroutines=has_coroutines,
            name=name,
            type=type,
            timeout=attempts.timeout,
            max_attempts=self._max_attempts if attempts.max_attempts is None else attempts.max_attempts,
            backoff=self._backoff if attempts.backoff is None else attempts.backoff,
        )


def recurring(functions: Iterable[Registered]) -> list[tuple[TaskFunction, Every]]:
    """The tasks that recur."""
    return [(each, each.every) for each in functions if isinstance(each, TaskFunction) and each.every is not None]


def check_on(topic: str, type: Any) -> None:
    """Checks the options of ``@worker.on``, apart from attempts."""
    if callable(topic):
        raise InvalidOption(f'@worker.on needs a topic: write @worker.on("…") above {topic!r}; "" is the default one')
    check_topic(topic)
    if type is not None:
        try:
            msgspec.json.Decoder(type)
        except TypeError as exc:
            raise InvalidOption(
                f"type={type!r} is not possible: {exc}; give a msgspec Struct, dataclass, TypedDict or the like"
            ) from exc
