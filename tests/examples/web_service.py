"""A web service: reminders are set, looked at and cancelled by HTTP, and given out in time, until Ctrl-C.

    python tests/examples/web_service.py 8080
    curl -d '{"text": "tea", "delay": 5}' http://127.0.0.1:8080/reminders
    curl http://127.0.0.1:8080/reminders/ID
    curl -X DELETE http://127.0.0.1:8080/reminders/ID

The server is $SHARDQ_URL; without it, an embedded one that keeps its data in your data directory. Start it several
times, on several ports: each process takes its share of the reminders.
"""

import contextlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import shardq

engine = shardq.Engine(name="example-web", shards=4)


class Reminders(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            id = engine.push({"text": wanted["text"]}, delay=wanted["delay"])
        except shardq.errors.BadInput as exc:  # a delay that can't be: the error says what is allowed
            self.answer(400, {"error": str(exc)})
        else:
            self.answer(201, {"id": id})  # stored: it is given out, whatever becomes of this process

    def do_GET(self) -> None:
        task = engine.get(self.path.rpartition("/")[2])
        if task is None:
            self.answer(404, {"error": "given out already, or cancelled"})
        else:
            self.answer(200, {"state": task.state, "due": str(task.due), "payload": task.payload})

    def do_DELETE(self) -> None:
        outcome = engine.cancel(self.path.rpartition("/")[2])
        self.answer(200 if outcome else 409, {"outcome": outcome})

    def answer(self, status: int, body: dict[str, object]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() + b"\n")

    def log_message(self, format: str, *args: object) -> None:
        pass  # a line for each request is too much here


def remind(consumer: shardq.Consumer) -> None:
    for delivery in consumer:  # acked when the loop comes back; ends when the consumer is closed
        print("reminder:", delivery.payload["text"])


def main(port: int) -> None:
    with engine, ThreadingHTTPServer(("127.0.0.1", port), Reminders) as server:
        engine.start()
        consumer = engine.consumer()
        reminding = threading.Thread(target=remind, args=[consumer])
        reminding.start()
        print(f"listening on http://127.0.0.1:{server.server_port}/reminders")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
        consumer.close()
        reminding.join()
    print("stopped")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8080)
