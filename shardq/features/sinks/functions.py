"""Functions of this process as sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardq.core.consumer.policy import Bury, alone, reason_of
from shardq.core.model.task import Delivery
from shardq.features.sinks.base import SENT, Failed, Refused, Result, Sink, Unsent

BatchFunction = Callable[[list[Delivery]], Any]
"""Takes deliveries. Returns None when it has taken all; or a list with None, or an exception, for each."""


class FunctionSink(Sink):
    """Calls a function with a batch of deliveries. Where it raises for several, the sender calls it again for each."""

    takes_deliveries = True

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def send(self, batch: Sequence[Any]) -> Sequence[Result]:
        try:
            answers = self._function(list(batch))
        except BaseException as exc:  # noqa: BLE001  the user's code may raise anything, and the sender goes on
            return self._of_all(_result(exc), len(batch))
        if answers is None:
            return [SENT] * len(batch)
        if not isinstance(answers, list | tuple) or len(answers) != len(batch):
            text = f"the function returned {type(answers).__name__}; return None, or a list of one for each delivery"
            return self._of_all(Failed(text), len(batch))
        return [SENT if answer is None else _result(answer) for answer in answers]

    def _of_all(self, result: Refused | Failed | Unsent, count: int) -> list[Result]:
        return [result] if count == 1 else [Unsent(result.reason)] * count


def _result(answer: object) -> Refused | Failed | Unsent:
    if not isinstance(answer, BaseException):
        return Failed(f"the function answered {type(answer).__name__} for it; answer None, or an exception")
    exc = alone(answer)
    if isinstance(exc, Bury):
        return Refused(exc.reason)
    if isinstance(exc, OSError):  # also ConnectionError and TimeoutError
        return Unsent(reason_of(exc))
    return Failed(reason_of(exc))
