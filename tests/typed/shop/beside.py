"""What stands beside the engines: errors, and the packages of the extras."""

import datetime as dt
from typing import assert_type

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import shardq
from shardq.testing import AsyncClock, Clock, StoredTask

engine = shardq.Engine()
loops = shardq.AsyncEngine()
print(shardq.__version__)


def failures(error: shardq.ShardqError) -> None:
    match error:
        case shardq.errors.BadInput():
            wrong: list[type[ValueError]] = [
                shardq.BadInput,
                shardq.errors.InvalidDelay,
                shardq.errors.NaiveDatetime,
                shardq.errors.DelayAndAt,
                shardq.errors.DedupWithoutId,
                shardq.errors.InvalidName,
                shardq.errors.InvalidTopic,
                shardq.errors.InvalidId,
                shardq.errors.InvalidOption,
                shardq.errors.PayloadTooLarge,
                shardq.errors.PayloadNotEncodable,
                shardq.errors.InvalidShardCount,
                shardq.errors.InvalidUrl,
            ]
            print(wrong)
        case shardq.ServerFault():
            assert_type(error.node, str)
            faults: list[type[shardq.ServerFault]] = [
                shardq.errors.ServerTooOld,
                shardq.Unavailable,
                shardq.errors.TooManyOpenFiles,
                shardq.Unanswered,
                shardq.errors.OutOfMemory,
                shardq.errors.ReadOnly,
                shardq.errors.AccessDenied,
                shardq.errors.DurabilityUnavailable,
                shardq.errors.SettleError,
            ]
            print(faults)
        case shardq.PushError():
            assert_type(error.stored, list[str])
            assert_type(error.failed, dict[str, shardq.ShardqError])
            print(shardq.PushError.merged([error]))
        case shardq.errors.MissingPackage():
            assert_type(error.name, str | None)
        case shardq.LeaseLost():
            assert_type(error.ids, list[str])
        case shardq.Conflict():
            assert_type(error.id, str)
        case shardq.errors.UnknownSchedule():
            assert_type(error.name, str)
        case shardq.errors.ChangeUnderWay():
            assert_type(error.pending, int)
        case (
            shardq.errors.NotReplicated()
            | shardq.errors.SpoolFull()
            | shardq.errors.SpoolFault()
            | shardq.errors.PayloadNotDecodable()
        ):
            print(error)
        case shardq.errors.EmbeddedFault() | shardq.errors.EngineClosed():
            print(error)


def dashboards() -> None:
    assert_type(shardq.http.app(engine, tokens="tokens", read_only=True), shardq.http.Door)
    assert_type(shardq.http.app(loops), shardq.http.Door)


def measuring() -> None:
    assert_type(shardq.metrics.collector(engine), shardq.metrics.Collector)
    assert_type(shardq.metrics.collector(loops), shardq.metrics.Collector)
    with shardq.metrics.serve(engine, "127.0.0.1:8000") as server:
        assert_type(server, shardq.metrics.ProbeServer)
        assert_type(server.url, str)
    print(shardq.metrics.Address.parsed("127.0.0.1:8000").port)


def tracing() -> None:
    traces: shardq.otel.Traces = "linked"
    assert_type(shardq.otel.instrument(engine, traces=traces), shardq.otel.Instrumentation)
    shardq.otel.instrument(loops)


def in_transactions(database: sa.Engine, session: Session) -> None:
    shardq.outbox.create(database)
    assert_type(shardq.outbox.push(session, {"order": 42}, delay=60, topic="mail"), str)
    assert_type(shardq.outbox.push_many(session, [shardq.Task(1)]), list[str])
    assert_type(shardq.outbox.cancel(session, "a"), bool)
    assert_type(shardq.outbox.reschedule(session, "a", delay=5), bool)
    assert_type(shardq.outbox.sql("postgresql"), str)
    print(shardq.outbox.table.name, shardq.outbox.default_outbox)
    own = shardq.outbox.Outbox("own")
    relay = shardq.outbox.OutboxRelay(loops, database, outbox=own)
    assert_type(relay.stats(), shardq.outbox.RelayStats)
    relay.start()
    relay.close()


async def in_transactions_of_asyncio(session: AsyncSession) -> None:
    assert_type(await shardq.outbox.push(session, {"order": 42}), str)
    assert_type(await shardq.outbox.cancel(session, "a"), bool)
    assert_type(await shardq.outbox.reschedule(session, "a", delay=5), bool)


def testing(clock: Clock) -> None:
    adopted = clock.adopt(engine, shards=1)
    assert_type(adopted, shardq.Engine)
    clock.bind(engine.worker(), inline=True)
    assert_type(clock.advance(days=1), list[shardq.Delivery])
    clock.advance_to(dt.datetime.now(dt.UTC))
    assert_type(shardq.testing.assert_ready(engine, "hi"), StoredTask)
    assert_type(shardq.testing.assert_pushed(engine, "mail", delay=60), StoredTask)
    shardq.testing.assert_not_pushed(engine, "mail")
    assert_type(shardq.testing.tasks(engine), list[StoredTask])
    print(shardq.testing.drain(engine), clock.now())


async def testing_asyncio(clock: AsyncClock) -> None:
    assert_type(clock.adopt(loops), shardq.AsyncEngine)
    assert_type(await clock.advance(days=1), list[shardq.Delivery])
    assert_type(await shardq.testing.assert_ready(loops, "hi"), StoredTask)
    await shardq.testing.assert_not_pushed(loops, "mail")
