"""Functions that are pushed by name: the ``task`` decorator, which engines and workers share, the payload that a
producer pushes, and the function that a worker calls for it.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypeVar, Unpack, overload

from shardq.core.consumer.policy import Backoff
from shardq.core.layout.lanes import of_key
from shardq.core.model.checks import check_key, check_topic
from shardq.core.model.ids import full_id
from shardq.core.model.printable import quoted
from shardq.core.model.record import Builtin
from shardq.core.model.task import OF_OTHERS, Task, refuse_unknown
from shardq.core.model.task_options import OPTIONS, PushOptions
from shardq.core.producer.durable import Durability
from shardq.delivery.functions import check_function
from shardq.errors import BadInput, InvalidOption, PayloadNotDecodable
from shardq.features.schedules.every import Every
from shardq.worker.functions import Arguments
from shardq.worker.handlers import Attempts, TaskFunction
from shardq.worker.task_key import TaskKey

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
"""The result of a push: a Receipt, or a coroutine that returns one."""


class CallOptions(PushOptions, total=False):
    """The options of ``Engine.push``."""

    durability: Durability | None


_CALL_OPTIONS = [*(option.name for option in OPTIONS), "durability"]
"""The same in the order in which they are told."""


AS_OURS = {
    "delay": "push(…), or options(delay=seconds).push(…)",
    "apply_async": "options(delay=seconds, …).push(…)",
    "send": "push(…)",
    "send_with_options": "options(…).push(…)",
    "enqueue": "push(…)",
    "schedule": "options(delay=seconds).push(…)",
    "s": "call(…)",
    "si": "call(…)",
}
"""A method of tasks of other queues → ours."""


class NamedTask(Generic[P, R, T]):
    """A function that can be called as before, and pushed to be called by a worker: ``send.push("ann", "hello")``.

    With an ``AsyncEngine`` a push is awaited.

    >>> @engine.task(topic="mail")
    ... def send(to: str, text: str): ...
    >>> send.push("ann@example.org", "hello")
    """

    def __init__(
        self,
        push: Callable[..., T],
        function: Callable[P, R],
        name: str,
        topic: str,
        max_attempts: int | None,
        arguments: Arguments,
        signature: inspect.Signature | None,
        key: TaskKey | None,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._push = push
        self._signature = signature
        self._key = key
        self._max_attempts = max_attempts
        self._arguments = arguments
        self.function = function
        self.name = name
        self.topic = topic

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<NamedTask {self.name} on topic {self.topic!r}>"

    if not TYPE_CHECKING:  # which know better what it has

        def __getattr__(self, name: str) -> Never:
            hint = f"(); write {AS_OURS[name]}" if name in AS_OURS else ""
            raise AttributeError(f"a task has no {name}{hint}", name=name, obj=self)

    def push(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Pushes a call with these arguments, which the codec can encode and the function's annotations allow.
        Due now; see ``options``.

        >>> send.push("ann@example.org", text="hello")
        """
        return self.options().push(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Returns a call with these arguments as a Task, for what takes tasks: ``push_many``, or an outbox.

        >>> engine.push_many([send.call("ann@example.org", text="hello")])
        """
        return self.options().call(*args, **kwargs)

    def cancel(self, id: str, *, key: str | None = None) -> Any:
        """Cancels the task that was pushed with this ``id=`` and ``key=``, or with the id that ``push`` returned, as
        ``engine.cancel`` does. With an ``AsyncEngine`` it is awaited.

        >>> send.options(delay=60, id="welcome-ann").push("ann@example.org", "hello")
        >>> send.cancel("welcome-ann")
        """
        engine: Any = getattr(self._push, "__self__", None)
        if not isinstance(id, str) or "/" in id:
            return engine.cancel(id)
        if key is not None:
            check_key(key)
            return engine.cancel(of_key(self.topic, key) + id)
        if self._key is not None:
            raise InvalidOption(
                f"{self.name} has key=, so the key is a part of its ids; give key= with id={quoted(id)}, or the id "
                "that push returned"
            )
        return engine.cancel(full_id(self.topic, id))

    def options(self, **options: Unpack[CallOptions]) -> Pusher[P, T]:
        """The task with the options of ``engine.push``: ``send.options(delay=60).push("ann", "hello")``.

        ``topic``: another one than the task's, where a task of the same name is declared, too. ``max_attempts``: the
        function's, if none is given. ``key``: instead of that by the task's ``key=``.

        >>> send.options(delay=60, id="welcome-ann").push("ann@example.org", "hello")
        """
        if unknown := options.keys() - set(_CALL_OPTIONS):
            refuse_unknown("options", unknown & OF_OTHERS.keys())
            raise TypeError(f"options() has no {unknown.pop()}=; it takes {', '.join(_CALL_OPTIONS)}")
        given = {name: value for name, value in options.items() if value is not None}
        return Pusher(self, {"topic": self.topic, "max_attempts": self._max_attempts} | given)

    def _payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The payload of a call that the function can take: its name and its arguments."""
        if self._signature is not None:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as exc:
                if taken := kwargs.keys() & (CallOptions.__annotations__.keys() | OF_OTHERS.keys()):
                    ours = sorted(OF_OTHERS.get(name, f"{name}=") for name in taken)
                    raise InvalidOption(
                        f"{self.name} can't be pushed with these arguments: {exc}; options of the push stand apart: "
                        f"{self.function.__name__}.options({', '.join(ours)}).push(…)"
                    ) from None
                raise InvalidOption(
                    f"{self.name} can't be pushed with these arguments: {exc}; it takes {self._signature}"
                ) from None
        engine: Any = getattr(self._push, "__self__", None)
        codec = engine._options.codec if engine is not None else None
        if isinstance(codec, Builtin):  # what another gives back can't be told here
            try:
                self._arguments.check_pushed(list(args), kwargs, codec)
            except PayloadNotDecodable as exc:
                raise InvalidOption(f"{self.name} can't be pushed with these arguments: {exc}") from None
        return call_of(self.name, *args, **kwargs)


class Pusher(Generic[P, T]):
    """A task with the options of its pushes; ``NamedTask.options`` returns it. May push many times.

    >>> later = send.options(delay=60)
    >>> later.push("ann@example.org", "hello")
    """

    def __init__(self, task: NamedTask[P, Any, T], options: Mapping[str, Any]) -> None:
        self._task = task
        self._options = options

    def __repr__(self) -> str:
        return f"<Pusher of {self._task.name}: {self._options}>"

    def push(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Pushes a call with these arguments, and with the options.

        >>> send.options(delay=60).push("ann@example.org", text="hello")
        """
        return self._task._push(self._task._payload(args, kwargs), **self._with_key(args, kwargs))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Returns a call with these arguments, and with the options, as a Task.

        >>> engine.push_many([send.options(delay=60).call("ann@example.org", text="hello")])
        """
        if "durability" in self._options:
            raise InvalidOption("durability= is for pushes to the engine; what takes a Task has no use for it")
        return Task(self._task._payload(args, kwargs), **self._with_key(args, kwargs))

    def _with_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        key = self._task._key
        if key is None or "key" in self._options:
            return self._options
        return {**self._options, "key": key.of(args, kwargs)}


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
        key: Callable[..., str] | None = None,
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
        key: Callable[..., str] | None = None,
        every: Every | str | float | dt.timedelta | None = None,
        **unknown: Never,
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

        ``key``: a function that tells the key of each call from its arguments, those that it names: the tasks of one
        key run one at a time, in order. ``options(key=…)`` comes first.

        >>> @engine.task(topic="ship", key=lambda customer: customer)
        ... def ship(order: int, customer: str): ...
        >>> ship.push(42, customer="customer-7")

        ``every``: the function also recurs, each time once over the whole fleet: a cron expression, seconds, a
        timedelta, or ``shardq.Every(…)``. Its schedule has the name of the task; characters that the name of a schedule
        can't have become dashes, with a hash of the name behind. A worker that serves the task declares it, and so does
        ``engine.start()``, which both end those of its aliases; it ends with ``engine.schedule(name).remove()``.
        """
        if batched := unknown.keys() & {"batch", "linger", "isolate"}:
            raise InvalidOption(
                f"{min(batched)}= is not for a task that is called by its name: each call has arguments of its own; a "
                'handler of a topic takes batches: @worker.on("events", batch=500)'
            )
        refuse_unknown("@task", unknown)
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
            arguments, signature = Arguments(function, own), _signature(function)
            of_calls = None if key is None else TaskKey(key, own, signature)
            self._add_task(
                TaskFunction(
                    topic=topic,
                    name=own,
                    aliases=tuple(aliases),
                    function=function,
                    arguments=arguments,
                    attempts=attempts,
                    every=recurrence,
                    key=None if of_calls is None or recurrence is None else of_calls.of((), {}),
                )
            )
            return NamedTask(self._push_task(), function, own, topic, max_attempts, arguments, signature, of_calls)

        return register if function is None else register(function)


def call_of(name: str, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The payload of a call of the function of that name."""
    return {"task": name, "args": list(args), "kwargs": kwargs}


def check_called_without_arguments(function: Callable[..., Any], name: str) -> None:
    """Raises InvalidOption if the function needs arguments."""
    signature = _signature(function)
    if signature is not None:
        try:
            signature.bind()
        except TypeError as exc:
            raise InvalidOption(
                f"{name} can't recur: {exc}; every= calls it without arguments, so give them defaults, or push it with "
                "engine.every(…)"
            ) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The arguments that a call takes, without annotations; None if it does not tell."""
    try:
        # Not of what it wraps: a decorator may add arguments of its own.
        found = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


def task_name(function: Callable[..., Any], name: str | None) -> str:
    """The name under which a function is pushed: the same in every process that imports or runs it."""
    if name is not None:
        if not isinstance(name, str) or not name:
            raise InvalidOption(f"name={quoted(name)} is not possible; give a str")
        return name
    module, own = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    # The name of a lambda is that of every other, too.
    if not isinstance(module, str) or not isinstance(own, str) or own.endswith("<lambda>"):
        raise InvalidOption(f"{quoted(function)} has no name of its own, under which it could be pushed; give name=")
    if "<locals>" in own and getattr(
        function, "__closure__", None
    ):  # a decorator's function has the decorated one's name
        raise InvalidOption(
            f"{own} is a closure: it uses variables of the function around it, which another process may not have; "
            "define it in the module, or give name= if every process makes it alike"
        )
    if module in ("__main__", "__mp_main__"):
        module = _imported_as(function, module)
    return f"{module}.{own}"


def check_aliases(aliases: Sequence[str], name: str) -> None:
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        raise InvalidOption(f"aliases={quoted(aliases)} is not possible; give a list or a tuple of names")
    for place, alias in enumerate(aliases):
        if not isinstance(alias, str) or not alias:
            raise InvalidOption(f"aliases={quoted(aliases)} is not possible: {quoted(alias)} is not a name; give str")
        if alias == name or alias in aliases[:place]:
            raise InvalidOption(
                f"aliases={quoted(aliases)} is not possible: {name} has the name {quoted(alias)} already"
            )


def _imported_as(function: Callable[..., Any], module: str) -> str:
    """The name under which others import the module that runs as the program."""
    found = getattr(inspect.unwrap(function), "__globals__", {})
    if found.get("__name__") != module:
        found = vars(sys.modules[module])
    spec, file = found.get("__spec__"), found.get("__file__")
    # python -m. The name of a folder or an archive that is run says nothing.
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    path = Path(file or "").resolve()
    # Standard input is no file, and neither is a module in an archive.
    if path.is_file():
        words = [path.stem]
        while (path.parent / "__init__.py").is_file():
            path = path.parent
            words.insert(0, path.name)
        if words != ["__main__"]:
            return ".".join(words)
    raise BadInput(
        f"nobody else can import {function.__qualname__} from where it is defined, so it has no name that another "
        'process knows; give one: @engine.task(name="…")'
    )
