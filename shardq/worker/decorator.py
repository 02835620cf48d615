"""The ``task`` decorator, which engines and workers share: it makes tasks that are pushed by name."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from shardq.core.consumer.policy import Backoff
from shardq.core.model.checks import check_topic
from shardq.features.schedules.every import Every
from shardq.worker.arguments import Arguments
from shardq.worker.handlers import Attempts, TaskFunction
from shardq.worker.kinds import check_function
from shardq.worker.named import NamedTask, check_aliases, check_called_without_arguments, task_name

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
"""The result of a push: a Receipt, or a coroutine that returns one."""


class TaskDecorator(ABC, Generic[T]):
    """The base of engines and workers that gives them ``task``."""

    @abstractmethod
    def _add_task(self, task: TaskFunction) -> None:
        """Registers the function. Raises BadInput where it can't be."""

    @abstractmethod
    def _push_task(self) -> Callable[..., T]:
        """Returns the engine's ``push``."""

    @overload
    def task(self, function: Callable[P, R], /) -> NamedTask[P, R, T]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        topic: str = "",
        name: str | None = None,
        aliases: Sequence[str] = (),
        timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        every: Every | str | float | dt.timedelta | None = None,
    ) -> Callable[[Callable[P, R]], NamedTask[P, R, T]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        topic: str = "",
        name: str | None = None,
        aliases: Sequence[str] = (),
        timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        every: Every | str | float | dt.timedelta | None = None,
    ) -> Any:
        """Decorates a function, or coroutine function, that is pushed by name, and called by a worker.

        >>> @engine.task(topic="mail")
        ... def send(to: str, text: str): ...
        >>> send.push("ann@example.org", "hello")
        >>> send.options(delay=60).push("ann@example.org", "hello")

        Every worker of an engine calls the engine's tasks, if ``topics=`` says nothing else; tasks of a worker are
        called by that worker alone. Name and arguments ride in the payload, so they must be what the codec can encode;
        the function gets them as its annotations say, or the attempt fails with the name of the parameter.
        The name is MODULE.FUNCTION, if none is given. ``aliases``: names that the function had before; calls that were
        pushed by them are its own. A topic may have any number of tasks; "" is the default one.

        ``timeout``, ``max_attempts`` and ``backoff`` are the function's own, as with ``@worker.on``; where none is
        given the worker's hold. ``max_attempts`` is stored with each task when it is pushed: another number holds for
        tasks that are pushed from then on.

        ``every``: the function also recurs, each time once over the whole fleet: a cron expression, seconds, a
        timedelta, or ``shardq.Every(…)``. Its schedule has the name of the task; characters that the name of a schedule
        can't have become dashes, with a hash of the name behind. A worker that serves the task declares it, and so does
        ``engine.start()``, which both end those of its aliases; it ends with ``engine.remove_schedule``.
        """
        check_topic(topic)
        recurrence = None if every is None else Every.of(every)
        attempts = Attempts(timeout=timeout, max_attempts=max_attempts, backoff=backoff)

        def register(function: Callable[..., Any]) -> NamedTask[..., Any, T]:
            if isinstance(function, NamedTask):
                function = function.function
            check_function(function, "a task")
            own = task_name(function, name)
            check_aliases(aliases, own)
            if recurrence is not None:
                check_called_without_arguments(function, own)
            self._add_task(
                TaskFunction(
                    topic=topic,
                    name=own,
                    aliases=tuple(aliases),
                    function=function,
                    arguments=Arguments(function, own),
                    attempts=attempts,
                    every=recurrence,
                )
            )
            return NamedTask(self._push_task(), function, own, topic, max_attempts)

        return register if function is None else register(function)
