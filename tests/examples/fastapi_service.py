"""FastAPI: reminders are set, looked at, moved and cancelled over HTTP, by any number of server processes.

    export SHARDQ_URL=redis://127.0.0.1:6379/0
    cd tests/examples
    uvicorn fastapi_service:app --workers 2      # pushes, and asks
    shardq run --name example-fastapi --quiet    # moves what is due
    shardq work fastapi_service:engine           # handles it

    curl --json '{"text": "tea", "delay": 5}' http://127.0.0.1:8000/reminders

Pollers and workers have processes of their own: a server that is reloaded, scaled or busy then holds nothing up. Where
one process is enough for all, call `await engine.start()` in the lifespan, too.
"""

import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import shardq

# Short: while Redis is away, a request is answered with 503 after two seconds, not after thirty.
engine = shardq.AsyncEngine(name="example-fastapi", shards=4, timeout=2.0)


@engine.task(topic="reminders")
async def remind(text: str) -> None:
    print("reminder:", text)


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine:  # in each server process, and in its loop; closed before that ends
        yield


app = FastAPI(lifespan=lifespan)


async def opened() -> shardq.AsyncEngine:
    return engine


Opened = Annotated[shardq.AsyncEngine, Depends(opened)]
"""The engine as the argument of an endpoint. A test gives another with ``app.dependency_overrides[opened]``."""


class Wanted(BaseModel):
    text: str
    delay: float


class Reminder(BaseModel):
    state: str
    due: dt.datetime | None


@app.post("/reminders", status_code=201)
async def create(wanted: Wanted) -> dict[str, str]:
    # mypy knows the arguments of remind. Stored when this returns, whatever becomes of this process.
    return {"id": await remind.options(delay=wanted.delay).push(wanted.text)}


@app.get("/reminders/{id:path}")
async def show(id: str, engine: Opened) -> Reminder:
    task = await engine.get(id)
    if task is None:
        raise HTTPException(404, "given out already, or cancelled")
    return Reminder(state=task.state, due=task.due)


@app.patch("/reminders/{id:path}")
async def move(id: str, delay: float, engine: Opened) -> dict[str, str]:
    return answered(await engine.reschedule(id, delay=delay))


@app.delete("/reminders/{id:path}")
async def remove(id: str, engine: Opened) -> dict[str, str]:
    return answered(await engine.cancel(id))


def answered(outcome: shardq.Outcome) -> dict[str, str]:
    if not outcome:  # it runs, or is gone
        raise HTTPException(409, outcome)
    return {"outcome": outcome}


@app.exception_handler(shardq.errors.BadInput)
async def refused(request: Request, exc: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(exc)}, 422)  # says what is allowed


@app.exception_handler(shardq.Unavailable)  # nothing was stored
@app.exception_handler(shardq.Unanswered)  # it may have been: with an id= of the client's, it is safe to try again
async def unavailable(request: Request, exc: Exception) -> JSONResponse:
    return JSONResponse({"detail": "try again"}, 503, headers={"Retry-After": "5"})
