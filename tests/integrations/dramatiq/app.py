"""The actors on the broker of the environment, for Dramatiq's worker. With an engine there, retries go through it."""

from __future__ import annotations

import os
from typing import Any

from dramatiq.brokers.redis import RedisBroker

from shardq import Engine
from shardq.integrations.dramatiq import delay_through
from tests.integrations.dramatiq.actors import Actors, Note

url, key = os.environ["TESTS_URL"], os.environ["TESTS_KEY"]


def _broker() -> Any:
    if "TESTS_RABBIT" in os.environ:
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        return RabbitmqBroker(url=os.environ["TESTS_RABBIT"])
    return RedisBroker(url=url, namespace=key)  # type: ignore[no-untyped-call]


broker = _broker()
actors = Actors(broker, Note(url, f"{key}:ran"))
if "TESTS_ENGINE" in os.environ:
    delay_through(broker, Engine(url, name=os.environ["TESTS_ENGINE"]), above=0)
