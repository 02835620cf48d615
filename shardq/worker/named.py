"""Functions that are pushed by name: the payload that a producer pushes, and the function that a worker calls for
it.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from shardq.core.consumer.policy import Snooze
from shardq.core.model.task import Delivery, OnConflict, Task
from shardq.core.producer.durable import Durability
from shardq.errors import BadInput, InvalidOption

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
"""The result of a push: a Receipt, or a coroutine that returns one."""

UNKNOWN_S = 30.0
"""The pause of a call whose function a worker does not know. Short enough for a worker beside it, of a newer version,
which has the next try; long enough for a hundred thousand of them that wait for a deploy.
"""

SHOWN = 20
"""Names shown in a message."""

MOST_NAME = 200
"""Characters of a name in a payload that are shown."""


class NamedTask(Generic[P, R, T]):
    """A function that can be called as before, and pushed to be called by a worker: ``send.push("ann", "hello")``.

    With an ``AsyncEngine`` a push is awaited.

    >>> @engine.task(topic="mail")
    ... def send(to: str, text: str): ...
    >>> send.push("ann@example.org", "hello")
    """

    def __init__(
        self, push: Callable[..., T], function: Callable[P, R], name: str, topic: str, max_attempts: int | None
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._push = push
        self._signature = _signature(function)
        self._max_attempts = max_attempts
        self.function = function
        self.name = name
        self.topic = topic

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<NamedTask {self.name} on topic {self.topic!r}>"

    def push(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Pushes a call with these arguments, which must be what the codec can encode. Due now; see ``options``.

        >>> send.push("ann@example.org", text="hello")
        """
        return self.options().push(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Returns a call with these arguments as a Task, for what takes tasks: ``push_many``, or an outbox.

        >>> engine.push_many([send.call("ann@example.org", text="hello")])
        """
        return self.options().call(*args, **kwargs)

    def options(
        self,
        *,
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
        topic: str | None = None,
        id: str | None = None,
        on_conflict: OnConflict = "keep",
        dedup: float | dt.timedelta | None = None,
        headers: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        expires: float | dt.timedelta | dt.datetime | None = None,
        window: float | dt.timedelta | None = None,
        throttle: float | dt.timedelta | None = None,
        tags: Sequence[str] | None = None,
        durability: Durability | None = None,
    ) -> Pusher[P, T]:
        """The task with the options of ``engine.push``: ``send.options(delay=60).push("ann", "hello")``.

        ``topic``: another one than the task's, where a task of the same name is declared, too. ``max_attempts``: the
        function's, if none is given.

        >>> send.options(delay=60, id="welcome-ann").push("ann@example.org", "hello")
        """
        return Pusher(
            self,
            {
                "delay": delay,
                "at": at,
                "topic": self.topic if topic is None else topic,
                "id": id,
                "on_conflict": on_conflict,
                "dedup": dedup,
                "headers": headers,
                "max_attempts": self._max_attempts if max_attempts is None else max_attempts,
                "expires": expires,
                "window": window,
                "throttle": throttle,
                "tags": tags,
                "durability": durability,
            },
        )

    def _payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The payload of a call that the function can take: its name and its arguments."""
        if self._signature is not None:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as exc:
                raise InvalidOption(
                    f"{self.name} can't be pushed with these arguments: {exc}; it takes {self._signature}"
                ) from None
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
        given = {name: value for name, value in self._options.items() if value is not None}
        return f"<Pusher of {self._task.name}: {given}>"

    def push(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Pushes a call with these arguments, and with the options.

        >>> send.options(delay=60).push("ann@example.org", text="hello")
        """
        return self._task._push(self._task._payload(args, kwargs), **self._options)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Returns a call with these arguments, and with the options, as a Task.

        >>> engine.push_many([send.options(delay=60).call("ann@example.org", text="hello")])
        """
        options = dict(self._options)
        if options.pop("durability") is not None:
            raise InvalidOption("durability= is for pushes to the engine; what takes a Task has no use for it")
        return Task(self._task._payload(args, kwargs), **options)


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


class UnknownTask(Snooze):
    """The worker does not know the function that is called: the producer is newer, or this worker is. The call waits
    for another worker, which counts no attempt, so that nothing is dropped.
    """

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(UNKNOWN_S)
        self.task = task
        self.args = (reason,)


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


def name_in(delivery: Delivery) -> str:
    """The name in a call's payload; empty if it is no call."""
    payload = delivery.payload
    # exactly: a codec of the user's own may make something else of either, whose methods are the user's too
    name = payload.get("task") if type(payload) is dict else None
    return name if type(name) is str else ""


def task_name(function: Callable[..., Any], name: str | None) -> str:
    """The name under which a function is pushed: the same in every process that imports or runs it."""
    if name is not None:
        if not isinstance(name, str) or not name:
            raise InvalidOption(f"name={name!r} is not possible; give a str")
        return name
    module, own = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(own, str):
        raise InvalidOption(f"{function!r} has no name of its own, under which it could be pushed; give name=")
    if module in ("__main__", "__mp_main__"):
        module = _imported_as(function, module)
    return f"{module}.{own}"


def check_aliases(aliases: Sequence[str], name: str) -> None:
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        raise InvalidOption(f"aliases={aliases!r} is not possible; give a list or a tuple of names")
    for place, alias in enumerate(aliases):
        if not isinstance(alias, str) or not alias:
            raise InvalidOption(f"aliases={aliases!r} is not possible: {alias!r} is no name; give str")
        if alias == name or alias in aliases[:place]:
            raise InvalidOption(f"aliases={aliases!r} is not possible: {name} has the name {alias!r} already")


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
