"""Flask: reminders over HTTP, from an application factory, under gunicorn with the application loaded before it forks.

    export SHARDQ_URL=redis://127.0.0.1:6379/0
    cd tests/examples
    gunicorn --preload --workers 2 --threads 4 'flask_service:create_app()'
    shardq run --name example-flask --quiet      # moves what is due

    curl --json '{"text": "tea", "delay": 5}' http://127.0.0.1:8000/reminders

What is due is given out by `shardq work`, as in fastapi_service.py and worker.py.
"""

import msgspec
from flask import Flask, current_app, request

import shardq


class Wanted(msgspec.Struct):
    text: str
    delay: float


class Reminders:
    """An extension of Flask: one engine for an application. It is open for all threads of a process.

    Each process opens it by itself, at its first use: also the child of a process that has it open.
    """

    def __init__(self, engine: shardq.Engine) -> None:
        self.engine = engine

    def init_app(self, app: Flask) -> None:
        app.extensions["reminders"] = self


def opened() -> shardq.Engine:
    reminders: Reminders = current_app.extensions["reminders"]
    return reminders.engine


def create_app(engine: shardq.Engine | None = None) -> Flask:
    """``engine``: another than the service's own, for tests."""
    app = Flask(__name__)
    # Short: while Redis is away, a request is answered with 503 after two seconds, not after thirty.
    reminders = Reminders(engine or shardq.Engine(name="example-flask", shards=4, timeout=2.0))
    reminders.init_app(app)
    reminders.engine.open()  # a server that can't be reached ends the start, and not each request

    @app.post("/reminders")
    def create() -> tuple[dict[str, str], int]:
        wanted = msgspec.json.decode(request.get_data(), type=Wanted)
        id = opened().push({"text": wanted.text}, delay=wanted.delay, topic="reminders")
        return {"id": id}, 201  # stored, whatever becomes of this process

    @app.get("/reminders/<path:id>")
    def show(id: str) -> tuple[dict[str, str], int]:
        task = opened().get(id)
        if task is None:
            return {"error": "given out already, or cancelled"}, 404
        return {"state": task.state, "due": str(task.due)}, 200

    @app.delete("/reminders/<path:id>")
    def remove(id: str) -> tuple[dict[str, str], int]:
        outcome = opened().cancel(id)
        return {"outcome": outcome}, 200 if outcome else 409

    @app.errorhandler(msgspec.MsgspecError)
    @app.errorhandler(shardq.errors.BadInput)
    def refused(exc: Exception) -> tuple[dict[str, str], int]:
        return {"error": str(exc)}, 400  # says what is missing, or allowed

    @app.errorhandler(shardq.Unavailable)
    @app.errorhandler(shardq.Unanswered)
    def unavailable(exc: Exception) -> tuple[dict[str, str], int, dict[str, str]]:
        return {"error": "try again"}, 503, {"Retry-After": "5"}

    return app
