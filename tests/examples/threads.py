"""Threads: a program that pushes reminders and handles them on two threads, until all of them are handled.

    python tests/examples/threads.py

The server is $SHARDQ_URL; without it, an embedded one that keeps its data in your data directory.
"""

import threading

import shardq

REMINDERS = {"tea is ready": 0.4, "the train leaves": 0.8, "call Ann": 0.2, "water the plants": 0.6}


def remind(consumer: shardq.Consumer, handled: threading.Semaphore) -> None:
    """Handles reminders until the consumer is closed."""
    while deliveries := consumer.claim(10, wait=60.0):  # leased: nobody else has them now
        for delivery in deliveries:
            with consumer.settling(delivery):  # acked at the end of the block, retried if it raises
                print(f"{delivery.payload['text']} (attempt {delivery.attempt})")
            handled.release()


def main() -> None:
    handled = threading.Semaphore(0)
    with shardq.Engine(name="example-threads", shards=4) as engine:
        engine.start()  # this process moves due tasks, too
        consumers = [engine.consumer() for _ in range(2)]  # one for each thread
        threads = [threading.Thread(target=remind, args=[consumer, handled]) for consumer in consumers]
        for thread in threads:
            thread.start()
        try:
            for text, delay in REMINDERS.items():
                engine.push({"text": text}, delay=delay)
            for _ in REMINDERS:
                handled.acquire()
        finally:  # also after Ctrl-C
            for consumer in consumers:
                consumer.close()
            for thread in threads:
                thread.join()
    print(f"{len(REMINDERS)} reminders handled")


if __name__ == "__main__":
    main()
