"""The hook in one Celery app: every message of a task passes it on its way out, and every revoke.

It is put in before the app has read its configuration, and reads none: the classes of ``app.amqp`` and ``app.control``
are replaced by subclasses of theirs, which Celery makes at the first use as always. It stays in the app for good, and
without ``Hook.through`` it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from kombu.utils.imports import symbol_by_name

OPTION = "shardq"
"""``apply_async(…, shardq=False)``: this message goes as Celery sends it."""

Send = Callable[..., Any]
"""``app.amqp.send_task_message``: ``send(producer, name, message, **options)``."""


class Through(Protocol):
    """What takes the place of sending and of revoking."""

    def send(self, send: Send, producer: Any, name: str, message: Any, options: dict[str, Any]) -> Any:
        """Sends a message, or sees to it that it is sent in time."""

    def revoke(self, task_ids: Any) -> None:
        """Cancels what waits here. Called before the workers are told."""


class Hook:
    """The hook of one app."""

    def __init__(self) -> None:
        self.through: Through | None = None


_hooks: WeakKeyDictionary[Any, Hook] = WeakKeyDictionary()


def hook_of(app: Any) -> Hook:
    """The hook in this app, which is put in at the first call."""
    if app not in _hooks:
        _hooks[app] = hook = Hook()
        _put_in(app, "amqp", _hooked_amqp(_class_of(app, "amqp"), hook))
        _put_in(app, "control", _hooked_control(_class_of(app, "control"), hook))
    return _hooks[app]


def _class_of(app: Any, part: str) -> Any:
    made = vars(app).get(part)
    return symbol_by_name(getattr(app, f"{part}_cls")) if made is None else type(made)


def _put_in(app: Any, part: str, hooked: type) -> None:
    setattr(app, f"{part}_cls", hooked)
    made = vars(app).get(part)
    if made is not None:
        made.__class__ = hooked
        vars(made).pop("send_task_message", None)  # cached by the class before


def _hooked_amqp(base: Any, hook: Hook) -> type:
    class Amqp(base):
        def _create_task_sender(self) -> Send:
            send: Send = super()._create_task_sender()

            def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
                through = hook.through
                if options.pop(OPTION, True) is False or through is None:
                    return send(producer, name, message, **options)
                return through.send(send, producer, name, message, options)

            return send_task_message

    return Amqp


def _hooked_control(base: Any, hook: Hook) -> type:
    class Control(base):
        def revoke(self, task_id: Any, *args: Any, **options: Any) -> Any:
            if hook.through is None:
                return super().revoke(task_id, *args, **options)
            try:
                hook.through.revoke(task_id)
            finally:
                answer = super().revoke(task_id, *args, **options)
            return answer

    return Control
