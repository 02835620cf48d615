"""Starlette: everything in one process. It serves HTTP and the dashboard, moves what is due, and handles it.

    uvicorn --app-dir tests/examples starlette_service:app
    curl -d '{"text": "tea", "delay": 5}' http://127.0.0.1:8000/reminders

    http://127.0.0.1:8000/queue/sign-in#token=a+long+secret+of+yours    in a browser

The server is $SHARDQ_URL; without it, an embedded one that keeps its data in your data directory. With more processes
(``--workers 2``) each does all of this, and they share the shards; fastapi_service.py has a process for each.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

import shardq

# Short: while Redis is away, a request is answered with 503 after two seconds, not after thirty.
engine = shardq.AsyncEngine(name="example-starlette", shards=4, timeout=2.0)
worker = engine.worker(grace=10)


@worker.on("reminders")
async def remind(delivery: shardq.Delivery) -> None:
    print("reminder:", delivery.payload["text"])


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with engine, asyncio.TaskGroup() as group:
        await engine.start()
        group.create_task(worker.run(signals=False))  # uvicorn hears them, and ends the lifespan
        yield
        worker.stop()  # handlers may finish, and then the engine is closed


class Wanted(msgspec.Struct):
    text: str
    delay: float


async def create(request: Request) -> JSONResponse:
    try:
        wanted = msgspec.json.decode(await request.body(), type=Wanted)
        id = await engine.push({"text": wanted.text}, delay=wanted.delay, topic="reminders")
    except (msgspec.MsgspecError, shardq.errors.BadInput) as exc:  # the error says what is missing, or allowed
        return JSONResponse({"error": str(exc)}, 400)
    return JSONResponse({"id": id}, 201)


async def count(request: Request) -> JSONResponse:
    stats = await engine.stats()
    return JSONResponse({"scheduled": stats.scheduled, "leased": stats.leased})


async def unavailable(request: Request, exc: Exception) -> JSONResponse:
    return JSONResponse({"error": "try again"}, 503, headers={"Retry-After": "5"})


dashboard = shardq.dashboard.app(engine, token="a long secret of yours")
app = Starlette(
    routes=[
        Route("/reminders", create, methods=["POST"]),
        Route("/reminders", count, methods=["GET"]),
        Mount("/queue", dashboard),
    ],
    lifespan=lifespan,
    exception_handlers={shardq.Unavailable: unavailable, shardq.Unanswered: unavailable},
)
