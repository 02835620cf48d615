"""A function of this process as a sink: it is called with a batch of deliveries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardq.consumer.policy import Bury, alone, reason_of
from shardq.model.task import Delivery
from shardq.sinks.base import SENT, Failed, Refused, Result, Sink, Unsent

BatchFunction = Callable[[list[Delivery]], Any]
"""Takes deliveries. Returns None when it has taken all; or a list with None, or an exception, for each."""

FAILURES = 5
"""So many tasks in a row that fail one by one, and none that does not: the rest waits."""


class FunctionSink(Sink):
    """Calls the function. A batch for which it raises is handed to it again, one delivery at a time: so one that can't
    be handled holds up no others, and each failure is told of its own task.
    """

    takes_deliveries = True

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def send(self, batch: Sequence[Any]) -> Sequence[Result]:
        together = self._call(list(batch))
        if len(batch) == 1 or not isinstance(together, Failed | Refused):
            return together if isinstance(together, list) else [together] * len(batch)
        results: list[Result] = []
        for delivery in batch:
            if len(results) >= FAILURES and not any(isinstance(each, type(SENT)) for each in results):
                results.append(Unsent(together.reason))
                continue
            one = self._call([delivery])
            results += one if isinstance(one, list) else [one]
        return results

    def _call(self, batch: list[Delivery]) -> list[Result] | Result:
        """The results, or the one that holds for all."""
        try:
            answers = self._function(batch)
        except BaseException as exc:  # noqa: BLE001  the user's code may raise anything, and the relay goes on
            return _result(exc)
        if answers is None:
            return SENT
        if not isinstance(answers, list | tuple) or len(answers) != len(batch):
            return Failed(
                f"the function returned {type(answers).__name__}; return None, or a list of one for each delivery"
            )
        return [SENT if answer is None else _result(answer) for answer in answers]


def _result(answer: object) -> Result:
    if not isinstance(answer, BaseException):
        return Failed(f"the function answered {type(answer).__name__} for it; answer None, or an exception")
    exc = alone(answer)
    if isinstance(exc, Bury):
        return Refused(exc.reason)
    if isinstance(exc, OSError):  # also ConnectionError and TimeoutError
        return Unsent(reason_of(exc))
    return Failed(reason_of(exc))
