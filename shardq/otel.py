"""OpenTelemetry: one trace from a push over its dispatch to its handler, in the headers of the task.

    >>> engine = shardq.Engine()
    >>> shardq.otel.instrument(engine)

It needs opentelemetry-api: ``pip install 'shardq[otel]'``. ``metrics/README.md`` says which spans there are.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, get_args

import msgspec

from shardq.core import forks
from shardq.core.consumer.policy import Bury, Hold, Retry, Snooze, alone
from shardq.core.model.checks import check_headers, check_headers_size
from shardq.core.model.ids import shown_topic
from shardq.core.model.task import Delivery, Receipt, Task
from shardq.core.model.task_options import URL_HEADER
from shardq.delivery.batch import Batch
from shardq.delivery.calling import checked_results
from shardq.delivery.functions import check_result
from shardq.delivery.handler import Handler
from shardq.engine.around import EngineAccess, EngineBase
from shardq.errors import BadInput, InvalidOption, MissingPackage
from shardq.version import __version__

try:
    from opentelemetry import context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as _exc:
    if (_exc.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise MissingPackage("shardq.otel needs opentelemetry-api: pip install 'shardq[otel]'") from _exc

__all__ = ["Instrumentation", "Traces", "instrument"]

Attributes = Mapping[str, AttributeValue]
"""The attributes of OpenTelemetry's conventions for messaging, and shardq's own, named ``shardq.…``."""

Traces = Literal["one", "linked"]
"""one: a handling belongs to the trace of its push. linked: it begins a trace of its own, with a link to the push."""

MOST_LINKS = 128
"""The links of a span, at most: what OpenTelemetry's SDKs keep unless they are told otherwise."""


def instrument(
    engine: EngineBase, *, tracer_provider: TracerProvider | None = None, traces: Traces = "one"
) -> Instrumentation:
    """Traces what is pushed through this engine from now on, and what its workers handle that run from now on. Works
    for both kinds of engine.

    ``tracer_provider``: none is OpenTelemetry's global one, also if that is set later. ``traces``: "one", so that a
    handling belongs to the trace of its push, or "linked", so that each is a trace of its own with a link to the push:
    for delays longer than a backend keeps a trace together.

    >>> shardq.otel.instrument(engine)
    """
    if not isinstance(engine, EngineBase):
        raise InvalidOption(f"{engine!r} can't be traced; give a shardq.Engine or a shardq.AsyncEngine")
    if traces not in get_args(Traces):
        raise InvalidOption(f"traces={traces!r} is not possible; use 'one' or 'linked'")
    instrumentation = Instrumentation(engine.name, tracer_provider, traces)
    EngineAccess(engine).trace_by(instrumentation)
    return instrumentation


class Instrumentation:
    """The spans of one engine; ``instrument`` makes it."""

    def __init__(self, engine: str, tracer_provider: TracerProvider | None, traces: Traces) -> None:
        self._engine = engine
        self._traces = traces
        self._tracer = trace.get_tracer("shardq", __version__, tracer_provider)

    def __repr__(self) -> str:
        return f"<Instrumentation of {self._engine!r}, traces {self._traces}>"

    # ---- for programs

    def headers(self) -> dict[str, str]:
        """The present trace as headers, for tasks that the engine does not push itself, as those of the outbox.

        >>> headers = tracing.headers()
        """
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier

    @contextmanager
    def process(self, delivery: Delivery) -> Iterator[Span]:
        """The span of handling one delivery: for programs with a consumer of their own. Workers have it by themselves.

        Where another span is current, that is the parent, and the push is linked.

        >>> for delivery in consumer.claim(100, wait=1.0):
        ...     with tracing.process(delivery), consumer.settling(delivery):
        ...         print(delivery.payload)
        """
        present = trace.get_current_span()
        pushed = trace.get_current_span(propagate.extract(delivery.headers, Context())).get_span_context()
        around = propagate.extract(delivery.headers)  # baggage, too
        links = []
        if present.get_span_context().is_valid or self._traces == "linked":
            around = trace.set_span_in_context(present, around)
            links = [Link(pushed)] if pushed.is_valid else []
        about: Attributes = {
            "messaging.destination.partition.id": str(delivery.shard),
            "messaging.message.id": delivery.id,
            "shardq.attempt": delivery.attempt,
        }
        with self._processing(delivery.topic, around, about, links) as span:
            yield span

    # ---- for the engine

    def process_batch(self, batch: Batch[Any]) -> AbstractContextManager[Span]:
        """The span of one call of a handler of batches. The pushes are linked, as many as a span may have links."""
        links: dict[tuple[int, int], Link] = {}
        last: Mapping[str, str] | None = None
        for delivery in batch:
            if len(links) == MOST_LINKS:
                break
            if delivery.headers == last:
                continue  # of one push of many, as most are: a link is not looked for again
            last = delivery.headers
            pushed = trace.get_current_span(propagate.extract(delivery.headers, Context())).get_span_context()
            if pushed.is_valid:
                links.setdefault((pushed.trace_id, pushed.span_id), Link(pushed))
        about: Attributes = {"messaging.batch.message_count": len(batch)}
        return self._processing(batch.topic, context.get_current(), about, list(links.values()))

    @contextmanager
    def _processing(self, topic: str, around: Context, about: Attributes, links: Sequence[Link]) -> Iterator[Span]:
        shown = shown_topic(topic)
        found = {**self._operation("process", "process"), "messaging.destination.name": shown, **about}
        span = self._tracer.start_span(f"process {shown}", around, SpanKind.CONSUMER, found, links)
        depth = forks.depth()
        token = context.attach(trace.set_span_in_context(span, around))
        try:
            yield span
            span.set_attribute("shardq.outcome", "done")
        except BaseException as exc:
            _note_failure(span, exc)
            raise
        finally:
            context.detach(token)
            if forks.depth() == depth:  # the child of a fork leaves the span to its parent
                span.end()

    def push(self, task: Task) -> AbstractContextManager[Sending]:
        """The span of a push of one task."""
        return self._sending("push", [task], _due_of(task))

    def push_many(self, tasks: Sequence[Task]) -> AbstractContextManager[Sending]:
        """The span of a push of many tasks, which share it."""
        return self._sending("push_many", tasks, {"messaging.batch.message_count": len(tasks)})

    def stream(self, tasks: Iterator[Task]) -> Iterator[Task]:
        """The tasks of an endless push, which share a span: from the first to the last that is read."""
        span = self._begun("push_iter", "send", "", {})
        count = 0
        try:
            for count, task in enumerate(tasks, 1):  # noqa: B007  used at the end
                yield _with_headers(task, span)
        except Exception as exc:
            _note_failure(span, exc)
            raise
        finally:
            span.set_attribute("messaging.batch.message_count", count)
            span.end()

    def create(self, task: Task) -> Task:
        """A task that a buffer sends later. It has a span of its own, which ends at once."""
        span = self._begun("create", "create", _destination_of([task]), _due_of(task))
        span.end()
        return _with_headers(task, span)

    def handler(self, handler: Handler) -> Handler:
        """The handler with a span around each call, also of its named tasks."""
        named = {name: self.handler(each) for name, each in handler.named.items()}
        return dataclasses.replace(handler, run=TracedRun(self, handler), named=named)

    @contextmanager
    def _sending(self, name: str, tasks: Sequence[Task], found: Attributes) -> Iterator[Sending]:
        span = self._begun(name, "send", _destination_of(tasks), found)
        try:
            yield Sending(span, [_with_headers(task, span) for task in tasks])
        except BaseException as exc:
            _note_failure(span, exc)
            raise
        finally:
            span.end()

    def _operation(self, name: str, kind: str) -> dict[str, AttributeValue]:
        return {
            "messaging.system": "shardq",
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "shardq.engine": self._engine,
        }

    def _begun(self, name: str, kind: str, where: str, found: Attributes) -> Span:
        operation = self._operation(name, kind)
        if where:
            operation["messaging.destination.name"] = where
        return self._tracer.start_span(
            f"{name} {where}" if where else name, kind=SpanKind.PRODUCER, attributes={**operation, **found}
        )


class Sending:
    """The span of a push that is under way."""

    def __init__(self, span: Span, tasks: Sequence[Task]) -> None:
        self._span = span
        self.tasks = tasks

    def pushed(self, receipts: list[Receipt]) -> list[Receipt]:
        """Notes the outcome of a single task. Returns the same."""
        if len(receipts) == 1:
            receipt = receipts[0]
            self._span.set_attributes({"messaging.message.id": str(receipt), "shardq.outcome": str(receipt.outcome)})
        return receipts


class TracedRun:
    """The function of a handler, with a span around each call."""

    def __init__(self, instrumentation: Instrumentation, handler: Handler) -> None:
        self._instrumentation = instrumentation
        self._handler = handler

    def __repr__(self) -> str:
        return repr(self._handler.run)

    def __call__(self, given: Delivery | Batch[Any]) -> Any:
        if self._handler.is_coroutine(_first(given)):
            return self._awaited(given)
        with self._process(given):
            return self._checked(given, self._handler.run(given))

    async def _awaited(self, given: Delivery | Batch[Any]) -> Any:
        with self._process(given):
            return self._checked(given, await self._handler.run(given))

    def _process(self, given: Delivery | Batch[Any]) -> AbstractContextManager[Span]:
        traces = self._instrumentation
        return traces.process_batch(given) if isinstance(given, Batch) else traces.process(given)

    def _checked(self, given: Delivery | Batch[Any], result: Any) -> Any:
        """Within the span: a handler that returns work undone has failed."""
        if result is not None:
            name = self._handler.name(_first(given))
            if isinstance(given, Batch):
                checked_results(result, len(given), name)
            else:
                check_result(result, name, "handler")
        return result


def _first(given: Delivery | Batch[Any]) -> Delivery:
    """The delivery by which a handler is chosen."""
    return given[0] if isinstance(given, Batch) else given


def _destination_of(tasks: Sequence[Task]) -> str:
    """The topic of all tasks, if they have one topic. What is no task is refused later."""
    topics = {str(getattr(task, "topic", "")) for task in tasks}
    return shown_topic(topics.pop()) if len(topics) == 1 else ""


def _due_of(task: Task) -> Attributes:
    """The due time of a task that is about to be pushed. Wrong options are left to the push, which says so."""
    found: dict[str, AttributeValue] = {}
    delay = task.delay.total_seconds() if isinstance(task.delay, dt.timedelta) else task.delay
    if isinstance(delay, int | float):
        found["shardq.delay"] = float(delay)
    at = task.at.isoformat() if isinstance(task.at, dt.datetime) else task.at
    if isinstance(at, str | int | float):
        found["shardq.at"] = at
    return found


def _with_headers(task: Task, span: Span) -> Task:
    """The task with the span in its headers. Headers of the caller's own stay as they are; of ours those that fit."""
    try:
        check_headers({} if task.headers is None else task.headers)
    except (BadInput, AttributeError):
        return task  # the push says what is wrong with it
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    headers = dict(task.headers or {})
    own = {} if task.url is None else {URL_HEADER: task.url}
    for name, value in carrier.items():
        if name not in headers:
            try:
                check_headers_size({**headers, **own, name: value})
            except (BadInput, TypeError):
                continue
            headers[name] = value
    return msgspec.structs.replace(task, headers=headers)


def _note_failure(span: Span, exc: BaseException) -> None:
    """Notes how a push or a handling ended: a handler that asks for another try, or for a later call, has not failed.
    Never raises, though attributes and texts of exceptions may.
    """
    try:
        match alone(exc):
            case Retry() as decided:
                span.set_attributes({"shardq.outcome": "retry", "shardq.reason": str(decided.reason)})
            case Hold():
                span.set_attribute("shardq.outcome", "hold")
            case Snooze():
                span.set_attribute("shardq.outcome", "snooze")
            case Bury() as decided:
                span.set_attributes({"shardq.outcome": "bury", "error.type": "shardq.Bury"})
                span.set_status(Status(StatusCode.ERROR, str(decided.reason)))
            case _:
                kind = type(exc)
                own = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
                span.set_attributes({"shardq.outcome": "failed", "error.type": own})
                span.set_status(Status(StatusCode.ERROR, f"{kind.__name__}: {exc}"))
                span.record_exception(exc)
    except BaseException:  # noqa: BLE001  its attributes are the user's code, SystemExit too
        span.set_status(Status(StatusCode.ERROR, "the text of the exception can't be had"))
