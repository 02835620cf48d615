"""The hooks around each call of a handler: the user's middleware."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from shardq.core import forks
from shardq.core.model.printable import quoted
from shardq.core.model.task import Delivery
from shardq.delivery.functions import check_function, check_result, is_coroutine_function, name_of
from shardq.delivery.logs import tell
from shardq.errors import InvalidOption

NAMES = ("before", "after", "error")


class Hooks:
    """before(delivery), after(delivery) on success or a snooze, error(delivery, exception) on failure. Called where the
    handler runs; an exception of theirs is logged and changes nothing.
    """

    def __init__(self) -> None:
        self._called: dict[str, list[Callable[..., Any]]] = {name: [] for name in NAMES}
        self._before, self._after, _ = self._called.values()

    def use(self, middleware: object) -> None:
        found = {name: hook for name in NAMES if callable(hook := getattr(middleware, name, None))}
        if not found:
            raise InvalidOption(
                f"{quoted(middleware)} has none of the methods {', '.join(NAMES)}; give it at least one"
            )
        for name, hook in found.items():
            check_function(hook, f"the hook {name}")
            if is_coroutine_function(hook):
                raise InvalidOption(
                    f"the hook {name} of {quoted(middleware)} is a coroutine function, which nobody would await where "
                    "handlers run on threads; make it a plain function, quick enough to be called between tasks"
                )
            self._called[name].append(hook)

    @property
    def any_before(self) -> bool:
        """True if anything is called before a handler."""
        return bool(self._before)

    @property
    def any_after(self) -> bool:
        """True if anything is called after a handler that has not failed."""
        return bool(self._after)

    def before(self, delivery: Delivery) -> None:
        if self._before:
            self._call("before", delivery)

    def after(self, delivery: Delivery) -> None:
        if self._after:
            self._call("after", delivery)

    def error(self, delivery: Delivery, exc: BaseException) -> None:
        self._call("error", delivery, exc)

    def _call(self, name: str, *args: Any) -> None:
        for hook in self._called[name]:
            depth = forks.depth()
            failure: BaseException | None = None
            try:
                if (result := hook(*args)) is not None:
                    check_result(result, name_of(hook), "hook")
            except BaseException as exc:  # noqa: BLE001  SystemExit too: the task must still be settled
                failure = exc
            if forks.depth() != depth:
                forks.leave(failure)
            if failure is not None:
                tell(logging.ERROR, "a %s hook failed: %r", name, hook, exc=failure)
