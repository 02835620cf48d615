"""Webhooks of 5,000 customers: each customer's events in order and one at a time. One that answers 429 is left alone.

    python tests/examples/webhooks.py

The server is $SHARDQ_URL; without it, an embedded one that keeps its data in your data directory. The customers' own
servers are a small HTTP server in this program. It ends when each customer has all of its events.
"""

import asyncio
import http.client
import threading
import time
from collections import Counter, defaultdict

import shardq

CUSTOMERS = [f"customer-{number}" for number in range(5_000)]
EVENTS = ["created", "paid", "shipped"]  # of an order of each
BUSY, RETRY_AFTER_S = "customer-7", 2


class Endpoints:
    """The servers of all customers. Notes what each was sent."""

    def __init__(self) -> None:
        self.received: defaultdict[str, list[str]] = defaultdict(list)
        self.most_at_once = 0
        self.refused_at = self.asked_again_at = 0.0
        self.meanwhile = 0  # events that others got between these two
        self._open: Counter[str] = Counter()

    async def start(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of a connection: POST /CUSTOMER, with the event as the body."""
        while request := await reader.readline():
            customer, length = request.split()[1].decode()[1:], 0
            while header := (await reader.readline()).strip().lower():
                if header.startswith(b"content-length:"):
                    length = int(header.partition(b":")[2])
            event = (await reader.readexactly(length)).decode()
            self._open[customer] += 1
            self.most_at_once = max(self.most_at_once, self._open[customer])
            await asyncio.sleep(0.002)  # the customer's work
            self._open[customer] -= 1
            writer.write(self._answer(customer, event))
        writer.close()

    def _answer(self, customer: str, event: str) -> bytes:
        if customer == BUSY and not self.refused_at:
            self.refused_at = time.monotonic()
            return b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: %d\r\nContent-Length: 0\r\n\r\n" % RETRY_AFTER_S
        if customer == BUSY:
            self.asked_again_at = self.asked_again_at or time.monotonic()
        elif self.refused_at and not self.asked_again_at:
            self.meanwhile += 1
        self.received[customer].append(event)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


endpoints = Endpoints()
loop = asyncio.new_event_loop()
engine = shardq.Engine(name="example-webhooks", shards=4)
worker = engine.worker(concurrency=16)
of_thread = threading.local()
sent = threading.Semaphore(0)


@worker.on("webhook", timeout=30)
def send(delivery: shardq.Delivery) -> None:
    if not hasattr(of_thread, "connection"):
        of_thread.connection = http.client.HTTPConnection("127.0.0.1", endpoints.port, timeout=10)
    of_thread.connection.request("POST", f"/{delivery.key}", body=delivery.payload)
    with of_thread.connection.getresponse() as answer:
        answer.read()
    if answer.status == 429:
        raise shardq.Hold(float(answer.headers["Retry-After"]))  # the customer's next events wait, too
    sent.release()


def main() -> None:
    with engine:
        engine.purge("webhook")  # of an earlier run that was interrupted
        engine.start()  # this process moves due tasks, too
        engine.push_many(
            shardq.Task(event, topic="webhook", key=customer) for customer in CUSTOMERS for event in EVENTS
        )
        running = threading.Thread(target=worker.run, kwargs={"signals": False})
        running.start()
        for _ in range(len(CUSTOMERS) * len(EVENTS)):
            sent.acquire()
        worker.stop()
        running.join()

    assert endpoints.received == dict.fromkeys(CUSTOMERS, EVENTS)
    assert endpoints.most_at_once == 1
    print(f"{len(CUSTOMERS)} customers got {len(EVENTS)} events each, in order and one at a time")
    waited_s = endpoints.asked_again_at - endpoints.refused_at
    assert waited_s >= RETRY_AFTER_S
    assert endpoints.meanwhile > 1_000
    print(f"{BUSY} answered 429 and was left alone for {waited_s:.1f} s; others got {endpoints.meanwhile} meanwhile")


if __name__ == "__main__":
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(endpoints.start(), loop).result()
    main()
