"""The spans of pushes and handlers: how they hang together, and what they say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from shardq import (
    Backoff,
    BadInput,
    Batch,
    Bury,
    Conflict,
    Consumer,
    Delivery,
    Engine,
    Hold,
    PushError,
    Retry,
    Snooze,
    Task,
)
from shardq.errors import InvalidOption
from shardq.otel import MOST_LINKS, instrument
from tests.otel.conftest import Spans, Trace
from tests.support.engines import Engines
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until

AT_ONCE = Backoff(base=0.001, cap=0.001)
HANDLERS = pytest.mark.parametrize("kind", ["function", "coroutine"])


def handling(worker: Any, kind: str, handle: Callable[[Delivery], None], topic: str = "mail", **options: Any) -> None:
    """Registers a handler that is a function or a coroutine function."""
    if kind == "function":
        worker.on(topic, **options)(handle)
        return

    @worker.on(topic, **options)  # type: ignore[untyped-decorator]  # the worker is of either kind
    async def run(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        handle(delivery)


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    return context_of(span).span_id


def trace_of(span: ReadableSpan) -> int:
    return context_of(span).trace_id


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


@HANDLERS
def test_a_push_and_its_handler_are_one_trace(
    running: Engine, engines: Engines, spans: Spans, traced: Trace, kind: str
) -> None:
    traced(running)
    worker = running.worker()
    handling(worker, kind, lambda delivery: None)
    with engines.working(worker):
        receipt = running.push({"order": 42}, topic="mail", delay=0.05, headers={"mine": "stays"})
        [process] = spans.ended("process mail")
    [push] = spans.named("push mail")
    assert (push.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (parent_of(push), parent_of(process)) == (None, id_of(push))
    assert trace_of(process) == trace_of(push)
    assert told(push) == {
        "messaging.system": "shardq",
        "messaging.operation.name": "push",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": receipt,
        "shardq.engine": running.name,
        "shardq.delay": 0.05,
        "shardq.outcome": "pushed",
    }
    assert told(process) == {
        "messaging.system": "shardq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.destination.partition.id": str(running.topology.shard_of(receipt)),
        "messaging.message.id": receipt,
        "shardq.engine": running.name,
        "shardq.attempt": 1,
        "shardq.outcome": "done",
    }
    assert {push.status.status_code, process.status.status_code} == {StatusCode.UNSET}


@HANDLERS
def test_the_span_of_a_handler_is_current_in_it(
    running: Engine, engines: Engines, spans: Spans, traced: Trace, kind: str
) -> None:
    """And only there: each call has it anew."""
    traced(running)
    worker = running.worker(concurrency=1)
    tracer = spans.provider.get_tracer("test")
    seen: list[str] = []

    def handle(delivery: Delivery) -> None:
        seen.append(str(baggage.get_baggage("user")))
        with tracer.start_as_current_span("inner"):
            pass

    handling(worker, kind, handle)
    with engines.working(worker):
        token = context.attach(baggage.set_baggage("user", "ann"))
        if getattr(running, "_target", None) is None:  # a loop in another thread has another context
            running.push("first", topic="mail")
        else:
            running.push("first", topic="mail", headers={"baggage": "user=ann"})
        context.detach(token)
        spans.ended("process mail")
        running.push("second", topic="mail")
        processes = spans.ended("process mail", 2)
    assert list(map(parent_of, spans.named("inner"))) == list(map(id_of, processes))
    assert seen == ["ann", "None"]
    assert trace_of(processes[0]) != trace_of(processes[1])


@HANDLERS
def test_every_attempt_has_a_span(running: Engine, engines: Engines, spans: Spans, traced: Trace, kind: str) -> None:
    traced(running)
    worker = running.worker()

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "asks" and delivery.attempt == 1:
            raise Retry(delay=0, reason="busy")
        if delivery.payload == "fails" and delivery.attempt == 1:
            raise KeyError("order")
        if delivery.payload == "buries":
            raise Bury("no such address")
        if delivery.payload == "snoozes":
            raise Snooze(3600)
        if delivery.key is not None:
            raise Hold(3600)

    handling(worker, kind, handle, backoff=AT_ONCE)
    with engines.working(worker):
        ids = {running.push(payload, topic="mail"): payload for payload in ("asks", "fails", "buries", "snoozes")}
        ids[running.push("holds", topic="mail", key="ann")] = "holds"
        spans.ended("process mail", 7)
    by_payload: dict[str, list[ReadableSpan]] = {payload: [] for payload in ids.values()}
    for span in spans.named("process mail"):
        by_payload[ids[told(span)["messaging.message.id"]]].append(span)
    shown = {
        payload: [(told(span)["shardq.attempt"], told(span)["shardq.outcome"]) for span in found]
        for payload, found in by_payload.items()
    }
    assert shown == {
        "asks": [(1, "retry"), (2, "done")],
        "fails": [(1, "failed"), (2, "done")],
        "buries": [(1, "bury")],
        "snoozes": [(1, "snooze")],
        "holds": [(1, "hold")],
    }
    assert all(len(set(map(parent_of, found))) == 1 for found in by_payload.values())
    asked, failed, buried = (by_payload[payload][0] for payload in ("asks", "fails", "buries"))
    assert (asked.status.status_code, told(asked)["shardq.reason"]) == (StatusCode.UNSET, "busy")
    (snoozed,) = by_payload["snoozes"]
    assert (snoozed.status.status_code, "error.type" in told(snoozed)) == (StatusCode.UNSET, False)
    assert (failed.status.status_code, told(failed)["error.type"]) == (StatusCode.ERROR, "KeyError")
    assert [event.name for event in failed.events] == ["exception"]
    assert (buried.status.status_code, buried.status.description) == (StatusCode.ERROR, "no such address")


@HANDLERS
def test_an_exception_without_a_text(running: Engine, engines: Engines, spans: Spans, traced: Trace, kind: str) -> None:
    """The task fails with it, as it does without traces."""
    traced(running)
    worker = running.worker()

    class Nasty(Exception):
        def __str__(self) -> str:
            raise SystemExit("no text")

    def handle(delivery: Delivery) -> None:
        raise Nasty

    handling(worker, kind, handle)
    with engines.working(worker):
        receipt = running.push("x", topic="mail", max_attempts=1)
        [process] = spans.ended("process mail")
        wait_until(lambda: state_of(running, receipt) == "dead", "it is dead")
    assert process.status.status_code == StatusCode.ERROR
    assert told(process)["error.type"].endswith("Nasty")
    task = running.get(receipt)
    assert task is not None
    assert "Nasty" in str(task.reason)


@HANDLERS
def test_a_handler_that_has_timed_out_has_a_span(
    running: Engine, engines: Engines, spans: Spans, traced: Trace, kind: str
) -> None:
    traced(running)
    worker = running.worker(["slow"])
    if kind == "function":
        again = threading.Event()

        def run(delivery: Delivery) -> None:
            if delivery.attempt == 1:
                again.wait(30)
            else:
                again.set()

        worker.on("slow", timeout=0.2, backoff=AT_ONCE)(run)
    else:

        @worker.on("slow", timeout=0.2, backoff=AT_ONCE)
        async def run_on(delivery: Delivery) -> None:
            if delivery.attempt == 1:
                await asyncio.sleep(3600)

    with engines.working(worker):
        running.push("x", topic="slow")
        processes = spans.ended("process slow", 2)
    by_attempt = {told(span)["shardq.attempt"]: told(span) for span in processes}
    assert by_attempt[2]["shardq.outcome"] == "done"
    if kind == "coroutine":
        assert by_attempt[1]["error.type"] == "asyncio.exceptions.CancelledError"


def test_named_tasks_declared_before(running: Engine, engines: Engines, spans: Spans, traced: Trace) -> None:
    @running.task(topic="mail", name="send")
    def send(to: str) -> None: ...

    worker = running.worker()
    traced(running)
    with engines.working(worker):
        engines.done(send.push("ann"))
        [process] = spans.ended("process mail")
    [push] = spans.named("push mail")
    assert parent_of(process) == id_of(push)


def test_many_tasks_share_the_span_of_their_push(
    running: Engine, engines: Engines, spans: Spans, traced: Trace
) -> None:
    traced(running)
    worker = running.worker()
    handling(worker, "function", lambda delivery: None)
    handling(worker, "function", lambda delivery: None, topic="")
    with engines.working(worker):
        running.push_many([Task(n, topic="mail") for n in range(5)])
        spans.ended("process mail", 5)
        list(running.push_iter(Task(n) for n in range(7)))
        spans.ended("process (default)", 7)
    [many], [stream] = spans.named("push_many mail"), spans.named("push_iter")
    assert {parent_of(span) for span in spans.named("process mail")} == {id_of(many)}
    assert {parent_of(span) for span in spans.named("process (default)")} == {id_of(stream)}
    assert (told(many)["messaging.batch.message_count"], told(stream)["messaging.batch.message_count"]) == (5, 7)
    assert "messaging.message.id" not in told(many)


def test_tasks_of_several_topics_name_none(engine: Engine, spans: Spans, traced: Trace) -> None:
    traced(engine)
    engine.push_many([Task(1, topic="mail", delay=FAR_S), Task(2, delay=FAR_S)])
    [many] = spans.named("push_many")
    assert "messaging.destination.name" not in told(many)


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_a_buffer_makes_spans(running: Engine, engines: Engines, spans: Spans, traced: Trace) -> None:
    traced(running)
    worker = running.worker()
    handling(worker, "function", lambda delivery: None)
    with engines.working(worker):
        with running.buffered() as buffer:
            buffer.push("x", topic="mail")
        [process] = spans.ended("process mail")
    [create] = spans.named("create mail")
    assert parent_of(process) == id_of(create)
    assert told(create)["messaging.operation.type"] == "create"


def test_linked_traces(running: Engine, engines: Engines, spans: Spans, traced: Trace) -> None:
    traced(running, "linked")
    worker = running.worker()
    handling(worker, "function", lambda delivery: None)
    with engines.working(worker):
        running.push("x", topic="mail")
        [process] = spans.ended("process mail")
    [push] = spans.named("push mail")
    assert parent_of(process) is None
    assert trace_of(process) != trace_of(push)
    assert [link.context.span_id for link in process.links] == [id_of(push)]


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def batches(worker: Any, kind: str, handle: Callable[[Batch[Any]], object], **options: Any) -> None:
    """Registers a handler of batches that is a function or a coroutine function."""
    if kind == "function":
        worker.on("mail", **options)(handle)
        return

    @worker.on("mail", **options)  # type: ignore[untyped-decorator]  # the worker is of either kind
    async def run(batch: Batch[Any]) -> object:
        await asyncio.sleep(0)
        return handle(batch)


def wait_for_ready(engine: Engine, count: int) -> None:
    """So that the next claim gets all of them."""
    wait_until(lambda: engine.stats().ready == count, f"{count} tasks are ready")


@HANDLERS
def test_a_call_of_a_handler_of_batches_has_one_span_with_links(
    running: Engine, engines: Engines, spans: Spans, traced: Trace, kind: str
) -> None:
    traced(running)
    worker, inside = running.worker(), list[int]()
    batches(worker, kind, lambda batch: inside.append(trace.get_current_span().get_span_context().span_id), batch=10)
    running.push("a", topic="mail")
    running.push("b", topic="mail")
    running.push_many([Task(n, topic="mail") for n in range(3)])
    running.push("no trace", topic="mail", headers={"traceparent": "of another system"})
    wait_for_ready(running, 6)
    with engines.working(worker):
        [process] = spans.ended("process mail")
    assert (process.kind, parent_of(process), process.status.status_code) == (
        SpanKind.CONSUMER,
        None,
        StatusCode.UNSET,
    )
    pushes = [*spans.named("push mail")[:2], *spans.named("push_many mail")]
    assert {link.context.span_id for link in process.links} == {id_of(push) for push in pushes}
    assert len(process.links) == 3
    assert told(process) == {
        "messaging.system": "shardq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.batch.message_count": 6,
        "shardq.engine": running.name,
        "shardq.outcome": "done",
    }
    assert inside == [id_of(process)]


@HANDLERS
def test_each_call_of_a_halved_batch_has_a_span(
    running: Engine, engines: Engines, spans: Spans, traced: Trace, kind: str
) -> None:
    traced(running)
    worker = running.worker()

    def handle(batch: Batch[Any]) -> None:
        if "poison" in batch.payloads:
            raise Retry(reason="busy") if len(batch) == 1 else KeyError("order")

    batches(worker, kind, handle, batch=10, backoff=Backoff(base=FAR_S, cap=FAR_S))
    running.push("poison", topic="mail")
    running.push_many([Task(n, topic="mail") for n in range(3)])
    wait_for_ready(running, 4)
    with engines.working(worker):
        found = spans.ended("process mail", 5)
    calls = [(told(span)["messaging.batch.message_count"], told(span)["shardq.outcome"]) for span in found]
    assert sorted(calls) == [(1, "done"), (1, "retry"), (2, "done"), (2, "failed"), (4, "failed")]
    for span in found:
        is_failed = told(span)["shardq.outcome"] == "failed"
        assert span.status.status_code == (StatusCode.ERROR if is_failed else StatusCode.UNSET)
        assert told(span).get("error.type") == ("KeyError" if is_failed else None)


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_a_span_has_as_many_links_as_are_kept(running: Engine, engines: Engines, spans: Spans, traced: Trace) -> None:
    traced(running)
    worker = running.worker()
    batches(worker, "function", lambda batch: None, batch=200)
    # as from as many pushes
    parents = [{"traceparent": f"00-{n:032x}-{n:016x}-01"} for n in range(1, MOST_LINKS + 3)]
    running.push_many([Task("x", topic="mail", headers=headers) for headers in parents])
    wait_for_ready(running, MOST_LINKS + 2)
    with engines.working(worker):
        [process] = spans.ended("process mail")
    assert told(process)["messaging.batch.message_count"] == MOST_LINKS + 2
    assert (len(process.links), process.dropped_links) == (MOST_LINKS, 0)


@HANDLERS
@pytest.mark.parametrize(("returned", "outcome"), [([], "failed"), ([ValueError("one of them")], "done")])
def test_what_a_handler_of_batches_returns(
    running: Engine, engines: Engines, spans: Spans, traced: Trace, kind: str, returned: list[Any], outcome: str
) -> None:
    """A list that does not fit is a failure of the call; an exception in it is one of that delivery."""
    traced(running)
    worker = running.worker()
    batches(worker, kind, lambda batch: returned, batch=10)
    with engines.working(worker):
        receipt = running.push("x", topic="mail", max_attempts=1)
        [process] = spans.ended("process mail")
        wait_until(lambda: state_of(running, receipt) == "dead", "it is dead")
    assert told(process)["shardq.outcome"] == outcome


def test_a_consumer_of_the_programs_own(running: Engine, consumer: Consumer, spans: Spans, traced: Trace) -> None:
    tracing = traced(running)
    tracer = spans.provider.get_tracer("test")
    running.push("first")
    running.push("second")
    running.push("third", headers=tracing.headers())
    [first, second, third] = claim(consumer, 3)
    with tracing.process(first):
        pass
    with tracer.start_as_current_span("loop") as loop:
        with tracing.process(second), tracer.start_as_current_span("inner"):
            assert trace.get_current_span().is_recording()
        assert trace.get_current_span() is loop
    with pytest.raises(KeyError), tracing.process(third):
        raise KeyError("x")
    alone, under, failed = spans.named("process (default)")
    pushes = {told(span)["messaging.message.id"]: span for span in spans.named("push (default)")}
    assert parent_of(alone) == id_of(pushes[first.id])
    assert alone.links == ()
    [outer], [inner] = spans.named("loop"), spans.named("inner")
    assert (parent_of(under), parent_of(inner)) == (id_of(outer), id_of(under))
    assert [link.context.span_id for link in under.links] == [id_of(pushes[second.id])]
    assert failed.status.status_code == StatusCode.ERROR


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_pushes_belong_to_the_span_around_them(engine: Engine, spans: Spans, traced: Trace) -> None:
    traced(engine)
    with spans.provider.get_tracer("test").start_as_current_span("checkout"):
        engine.push("x", delay=FAR_S)
        engine.push_many([Task("y", delay=FAR_S)])
    [checkout] = spans.named("checkout")
    for name in ("push (default)", "push_many (default)"):
        [span] = spans.named(name)
        assert parent_of(span) == id_of(checkout)


def test_pushes_that_fail(engine: Engine, servers: Servers, name: str, spans: Spans, traced: Trace) -> None:
    traced(engine)
    engine.push("x", id="one", delay=FAR_S)
    with pytest.raises(Conflict):
        engine.push("x", id="one", on_conflict="reject")
    with pytest.raises(BadInput):
        engine.push("x", delay=-1)
    with pytest.raises(BadInput):
        engine.push("x", headers={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(BadInput):
        engine.push_many([Task("x"), "no task"])  # type: ignore[list-item]
    for keys in keys_of(name, engine.topology.shards):
        servers.ask(keys.slot, "DEL", keys.due)
        servers.ask(keys.slot, "SET", keys.due, "not a sorted set")
    with pytest.raises(PushError):
        engine.push_many([Task("x") for _ in range(10)])
    found = [told(span).get("error.type") for span in spans.named("push (default)")]
    assert found == [None, "shardq.errors.Conflict", "shardq.errors.InvalidDelay", "shardq.errors.InvalidOption"]
    found = [told(span).get("error.type") for span in spans.named("push_many (default)")]
    assert found == ["shardq.errors.BadInput", "shardq.errors.PushError"]


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_headers_of_the_callers_own_come_first(engine: Engine, traced: Trace) -> None:
    traced(engine)
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    task = engine.get(engine.push("x", delay=FAR_S, headers={"traceparent": own}))
    assert task is not None
    assert task.headers == {"traceparent": own}
    token = context.attach(baggage.set_baggage("much", "x" * 5000))
    large = {"mine": "y" * 5000}
    task = engine.get(engine.push("x", delay=FAR_S, headers=large))
    context.detach(token)
    assert task is not None
    assert set(task.headers) == {"mine", "traceparent"}


def test_what_can_not_be_traced() -> None:
    with pytest.raises(InvalidOption, match=r"can't be traced; give a shardq\.Engine"):
        instrument("redis://")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="use 'one' or 'linked'"):
        instrument(Engine("redis://127.0.0.1:1"), traces="two")  # type: ignore[arg-type]
