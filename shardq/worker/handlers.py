"""Which function handles what. Registration; nothing runs here."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shardq.errors import BadInput, InvalidOption
from shardq.model.checks import check_max_attempts, check_topic
from shardq.model.task import Delivery
from shardq.worker import policy
from shardq.worker.logs import Once, tell
from shardq.worker.named import Names
from shardq.worker.policy import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """How the tasks of a topic are tried; None: as the worker says."""

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
    once: Once = field(default_factory=Once, repr=False, compare=False)

    def delay_ms(self, attempt: int) -> int:
        """The delay by the backoff; where that fails, by the default one. Never raises."""
        try:
            return policy.delay_ms(self.backoff, attempt)
        except BaseException as exc:  # noqa: BLE001  the user's code, SystemExit too: the task is settled
            if self.once.new("backoff"):
                what = "the backoff of %r, handler of topic %r, fails: its tasks wait as by Backoff() (said once)"
                tell(logging.ERROR, what, self.run, self.topic, exc=exc)
            return policy.delay_ms(policy.DEFAULT, attempt)


class Registry:
    """All handlers of one worker, in the order of their registration: the order of priority."""

    def __init__(self, *, max_attempts: int, backoff: Backoff | None) -> None:
        own = Attempts(max_attempts=max_attempts, backoff=backoff)
        self._max_attempts = max_attempts
        self._backoff = policy.DEFAULT if own.backoff is None else own.backoff
        self._named: dict[str, tuple[Names, Attempts]] = {}
        self.handlers: dict[str, Handler] = {}

    def on(self, topic: str, run: Callable[[Delivery], Any], *, type: Any, attempts: Attempts) -> None:
        if topic in self.handlers:
            raise BadInput(f"the topic {topic!r} has a handler already: {self.handlers[topic].run!r}; it can have one")
        check_function(run, "a handler")
        self._add(topic, run, _always(inspect.iscoroutinefunction(run)), type, attempts)

    def name(self, name: str, topic: str, function: Callable[..., Any], *, attempts: Attempts) -> None:
        if topic not in self._named:
            if topic in self.handlers:
                raise BadInput(f"the topic {topic!r} has a handler already; give the function a topic of its own")
            names = Names()
            self._add(topic, names, names.is_coroutine, None, attempts)
            self._named[topic] = names, attempts
        names, first = self._named[topic]
        if attempts not in (first, Attempts()):
            raise BadInput(
                f"the functions of topic {topic!r} share timeout, max_attempts and backoff, and {attempts} is not what "
                f"its first was given, {first}; give the same, or none, or a topic of its own"
            )
        if name in names.functions:
            raise BadInput(f"a function named {name!r} is registered already; give name= another")
        names.functions[name] = function

    def _add(
        self,
        topic: str,
        run: Callable[[Delivery], Any],
        is_coroutine: Callable[[Delivery], bool],
        type: Any,
        attempts: Attempts,
    ) -> None:
        self.handlers[topic] = Handler(
            topic=topic,
            run=run,
            is_coroutine=is_coroutine,
            type=type,
            timeout=attempts.timeout,
            max_attempts=self._max_attempts if attempts.max_attempts is None else attempts.max_attempts,
            backoff=self._backoff if attempts.backoff is None else attempts.backoff,
        )


def check_on(topic: str, type: Any) -> None:
    """Checks the options that ``@worker.on`` is given, apart from attempts."""
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


def check_function(function: object, what: str) -> None:
    if not callable(function):
        raise InvalidOption(f"{what} can't be {function!r}; give a function or a coroutine function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"{what} can't be {function!r}: with a yield in it a call runs nothing; take that out")


def _always(answer: bool) -> Callable[[Delivery], bool]:
    return lambda _: answer
