"""The key of a call, computed from its arguments: ``@engine.task(key=lambda order, to: to)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from shardq.core.model.checks import check_key
from shardq.core.model.printable import quoted
from shardq.errors import InvalidKey, InvalidOption

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class TaskKey:
    """The function that tells the key of each call of a task. It gets those arguments of the call that it names, by
    their names in the task; one that the call leaves out has its default.
    """

    def __init__(self, function: Callable[..., str], task: str, signature: inspect.Signature | None) -> None:
        self._function, self._task = function, task
        if not callable(function):
            raise InvalidOption(
                f"key={quoted(function)} of {task} is not possible; give a function of its arguments, such as "
                "key=lambda order: str(order), or the key of one push by options(key=…)"
            )
        if inspect.iscoroutinefunction(function):
            raise InvalidOption(f"key= of {task} can't be a coroutine function: a push calls it; give a plain one")
        if signature is None:
            raise InvalidOption(f"key= is not possible: {task} does not tell its parameters; use options(key=…)")
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            raise InvalidOption(
                f"key={quoted(function)} of {task} does not tell its parameters; give a lambda that calls it"
            ) from None
        self._signature = signature
        self._by_place = [name for name, each in parameters.items() if each.kind is each.POSITIONAL_ONLY]
        self._by_name = [name for name in parameters if name not in self._by_place]
        has = ", ".join(signature.parameters) or "none"
        for name, each in parameters.items():
            if each.kind in _VARIADIC or name not in signature.parameters:
                named = str(each).partition("=")[0]
                raise InvalidOption(
                    f"key= of {task} has the parameter {named}, which {task} does not have; name those of its "
                    f"parameters that make the key ({has})"
                )

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The key of a call that the task can take. Raises InvalidKey, and what the function raises."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        by_name = {name: given[name] for name in self._by_name}
        key = self._function(*[given[name] for name in self._by_place], **by_name)
        try:
            check_key(key)
        except InvalidKey as exc:
            raise InvalidKey(f"key= of {self._task} returned {quoted(key)}: {exc}") from None
        return key
