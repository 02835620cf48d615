"""A service that posts events to a thousand customers: signed, in order for each, retried for three days. Four of them
have trouble with their servers, and no other waits for those.

    python tests/examples/webhooks.py

The server is $SHARDQ_URL; without it, an embedded one that keeps its data in your data directory. The customers' own
servers are small HTTP servers in this program (``Customers``). It ends when all customers but these four have all of
their events, and then prints what each of the four is doing.
"""

import asyncio
import os
import time

import shardq

EVENTS = ["created", "paid", "shipped"]  # of an order of each
ANSWERS = {"busy": "429 Busy\r\nRetry-After: 600", "failing": "500 Database down", "gone": "410 Gone", "hanging": ""}
OTHERS = [f"customer-{number}" for number in range(996)]


class Customers:
    """The servers of all customers. Notes what each was sent, and how many of its requests were open at once."""

    def __init__(self) -> None:
        self.received: dict[str, list[str]] = {customer: [] for customer in OTHERS}
        self.open: dict[str, int] = dict.fromkeys(OTHERS, 0)
        self.most_at_once, self.left = 0, len(OTHERS) * len(EVENTS)
        self.served = asyncio.Event()  # all but those that have trouble have their events
        self.over = asyncio.Event()

    async def start(self) -> str:
        """Starts a server. Returns its address."""
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of a connection: POST /CUSTOMER, with the event as the body."""
        while request := await reader.readline():
            customer, length = request.split()[1].decode()[1:], 0
            while header := (await reader.readline()).strip().lower():
                if header.startswith(b"content-length:"):
                    length = int(header.partition(b":")[2])
            event = (await reader.readexactly(length)).decode().strip('"')
            if customer in self.received:
                await self.take(customer, event)
            elif customer == "hanging":
                await self.over.wait()
            writer.write(f"HTTP/1.1 {ANSWERS.get(customer, '200 OK')}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async def take(self, customer: str, event: str) -> None:
        self.open[customer] += 1
        self.most_at_once = max(self.most_at_once, self.open[customer])
        await asyncio.sleep(0.002)  # the customer's work
        self.open[customer] -= 1
        self.received[customer].append(event)
        self.left -= 1
        if not self.left:
            self.served.set()


async def main() -> None:
    os.environ.setdefault("SHARDQ_SECRET_MASTER", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")  # yours is random, and a secret
    customers = Customers()
    urls = {customer: f"{await customers.start()}/{customer}" for customer in ANSWERS}
    hosts = [await customers.start() for _ in range(20)]  # a host has 8 connections
    urls |= {customer: f"{hosts[number % 20]}/{customer}" for number, customer in enumerate(OTHERS)}
    # sinks= and http=yes are for servers on this machine: without them only https:// URLs of public hosts are asked
    async with shardq.AsyncEngine(name="example-webhooks", shards=4, sinks=["webhook://127.0.0.1"]) as engine:
        await engine.purge("hooks")  # what an earlier run has left, and the holds of its keys
        for customer in ANSWERS:
            await engine.hold("hooks", key=customer, until=None)
        await engine.forward("hooks", to="webhook://#sign.key=${MASTER}&timeout=1&http=yes")
        await engine.start()  # this process moves due tasks, and posts them
        tasks = [
            shardq.Task(event, topic="hooks", url=url, key=customer)
            for event in EVENTS
            for customer, url in urls.items()
        ]
        await engine.push_many(tasks)
        await customers.served.wait()
        assert customers.received == dict.fromkeys(OTHERS, EVENTS)
        assert customers.most_at_once == 1
        print(f"{len(OTHERS)} customers got {len(EVENTS)} events each, in order and one at a time")
        for key in await waiting(engine):
            wait_s = 0 if key.until is None else key.until.timestamp() - time.time()
            wait = f"{wait_s:.0f} s" if wait_s < 60 else f"{wait_s / 60:.0f} min"
            print(f"{key.key}: {key.held} wait, {key.why} for {wait}; {key.reason or 'no failure'}")
        await engine.cancel_all(topic="hooks")
    customers.over.set()
    await asyncio.sleep(0.1)  # the servers hear that their connections are closed


async def waiting(engine: shardq.AsyncEngine) -> list[shardq.engine.KeyStats]:
    """The endpoints that have trouble, as `shardq keys hooks` shows them, once each has been asked."""
    while True:
        keys = [key for key in await engine.keys("hooks") if key.why in ("backoff", "hold")]
        if len(keys) == len(ANSWERS):
            return sorted(keys, key=lambda key: key.key)
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
