"""The registry of handlers. Nothing runs here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardq.core.consumer import policy
from shardq.core.consumer.policy import Backoff
from shardq.core.model.checks import check_max_attempts, check_topic, is_seconds
from shardq.core.model.ids import quoted_topic
from shardq.core.model.task import Delivery
from shardq.errors import BadInput, InvalidOption
from shardq.features.schedules.every import Every
from shardq.worker.arguments import Arguments, calling, payload_of, typed
from shardq.worker.kinds import ChoosingHandler, is_coroutine_function, name_of
from shardq.worker.logs import Once, tell
from shardq.worker.named import MOST_NAME, UnknownCalls, name_in, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """The attempts of a function's tasks; None: as the worker says."""

    timeout: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not (is_seconds(self.timeout) and self.timeout > 0):
            raise InvalidOption(f"timeout={self.timeout!r} is not possible; give seconds, more than 0")
        if self.max_attempts is not None:
            check_max_attempts(self.max_attempts)
        policy.check_backoff(self.backoff)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The handler of one topic, or of the calls of one named task in it."""

    topic: str
    run: Callable[[Delivery], Any]
    is_coroutine: Callable[[Delivery], bool]
    """True if ``run`` returns an awaitable for this delivery."""
    has_coroutines: Callable[[], bool]
    """True if it does so for some delivery, or a named task does."""
    name: Callable[[Delivery], str]
    """The name of the function for this delivery, in logs and errors."""
    named: Mapping[str, Handler] = field(default_factory=dict)
    """Name → the handler of these calls. The handler itself then has those of all other names."""
    timeout: float | None = None
    max_attempts: int | None
    """The limit of tasks that bring none of their own; None: the engine's."""
    backoff: Backoff
    once: Once = field(default_factory=Once, repr=False, compare=False)

    def of(self, delivery: Delivery) -> Handler:
        """The handler of this delivery: that of the named task, in a topic that has some."""
        return self.named.get(name_in(delivery), self) if self.named else self

    def delay_ms(self, attempt: int) -> int:
        """The delay by the backoff, or by the default one if that fails. Never raises."""
        try:
            return policy.delay_ms(self.backoff, attempt)
        except BaseException as exc:  # noqa: BLE001  the user's code, SystemExit too: the task is settled
            if self.once.new("backoff"):
                what = "the backoff of %r, handler of topic %s, fails: its tasks wait as by Backoff() (said once)"
                tell(logging.ERROR, what, self.run, quoted_topic(self.topic), exc=exc)
            return policy.delay_ms(policy.DEFAULT, attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFunction:
    """A function that handles all tasks of a topic: ``@worker.on``."""

    topic: str
    function: Callable[[Delivery], Any]
    type: Any
    """The type of its payloads; None: any."""
    attempts: Attempts


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
        if isinstance(registered, TopicFunction):
            self._add_topic(registered)
        else:
            self._add_task(registered)
        self.registered.append(registered)

    def check(self, registered: Registered) -> None:
        """Raises BadInput where a function can't be registered beside those that are."""
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
            self.handlers[topic] = self._handler(
                topic,
                run,
                attempts,
                is_coroutine=run.is_coroutine,
                has_coroutines=run.has_coroutines,
                name=run.title,
            )
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
        return self._handler(
            topic,
            run,
            attempts,
            is_coroutine=lambda _: coroutine,
            has_coroutines=lambda: coroutine,
            name=lambda _: name,
        )

    def _handler(self, topic: str, run: Callable[[Delivery], Any], attempts: Attempts, **parts: Any) -> Handler:
        return Handler(
            topic=topic,
            run=run,
            timeout=attempts.timeout,
            max_attempts=self._max_attempts if attempts.max_attempts is None else attempts.max_attempts,
            backoff=self._backoff if attempts.backoff is None else attempts.backoff,
            **parts,
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
        payload_of(type)
