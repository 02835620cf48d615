"""Webhooks as a route: each task of a topic goes to the URL that it was pushed with.

    webhook://[#sign.key=${MASTER} | #sign=${SECRET}][&timeout=15][&http=yes][&max_attempts=10]

Whatever an endpoint does, its key waits for it, and nobody else: the sink itself is never down.
"""

from __future__ import annotations

import re

from shardq.core.layout.destinations import WEBHOOK
from shardq.core.model.checks import MAX_ATTEMPTS
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.sinks.base import SENT, AsyncSink, Message, Refused, Result
from shardq.features.sinks.urls import UNKNOWN, options
from shardq.features.webhooks.meaning import SCHEDULE_S
from shardq.features.webhooks.poster import CONNECTIONS, Poster
from shardq.features.webhooks.signing import PREFIX, SHORTEST_KEY, signing_keys, webhook_secret

TIMEOUT_S = 15.0

_FOR_HTTP = f"add http=yes to the route: {WEBHOOK}#http=yes"
_SIGN = f"sign= of a {WEBHOOK} route, best written as ${{NAME}},"
_UNSIGNED = (
    "its webhooks are not signed, so that nobody who gets one can tell that it is yours; give the route a master "
    f"secret: {WEBHOOK}#sign.key=${{MASTER}}"
)


class WebhookSink(AsyncSink):
    """Posts each message to its own URL."""

    connections: int = CONNECTIONS
    batch: int = CONNECTIONS

    def __init__(self, url: str) -> None:
        where, _, fragment = url.removeprefix(WEBHOOK).partition("#")
        if where:
            raise InvalidUrl(
                f"a {WEBHOOK} route has no host: each task has a URL of its own, which push gets as url=; write "
                f"{WEBHOOK}#sign.key=${{MASTER}}, and for one URL that is that of all tasks https://HOST/PATH"
            )
        names = ("sign", "sign.key", "http", "max_attempts")
        found = options("webhook", fragment, tls=False, mark="#", also=names, usual_s=TIMEOUT_S)
        given, self._timeout_s = found.others, found.timeout_s
        if given.get("http", "yes") != "yes":
            raise InvalidUrl(f"http= of a {WEBHOOK} route is not possible; give http=yes, or leave it out")
        self._http = "http" in given
        text = given.get("max_attempts", str(len(SCHEDULE_S) + 1))
        if not re.fullmatch(r"[0-9]{1,7}", text) or not 1 <= int(text) <= MAX_ATTEMPTS:
            raise InvalidUrl(
                f"max_attempts= of a {WEBHOOK} route is not possible; give a whole number from 1 to {MAX_ATTEMPTS}"
            )
        self.max_attempts: int | None = int(text)
        self._sign, self._masters = given.get("sign"), given.get("sign.key", "").split()
        if self._sign is not None and "sign.key" in given:
            raise InvalidUrl(
                "sign= is one secret for all endpoints, and sign.key= a master secret, of which each has one of its "
                "own; give one of them"
            )
        if self._sign is not None and UNKNOWN not in self._sign.removeprefix(PREFIX).split():
            signing_keys(self._sign, _SIGN)
        if "sign.key" in given and not self._masters:
            raise InvalidUrl(f"sign.key= of a {WEBHOOK} route is empty; write the name of a secret: ${{MASTER}}")
        for master in self._masters:
            if master != UNKNOWN and len(master.encode()) < SHORTEST_KEY:
                raise InvalidUrl(
                    f"sign.key= of a {WEBHOOK} route needs at least {SHORTEST_KEY} bytes; give random ones, or two "
                    "such secrets with a blank between, by which both sign"
                )
        self.advice: str = _UNSIGNED if self._sign is None and not self._masters else ""
        self._poster: Poster | None = None

    async def open(self) -> None:
        self._poster = Poster(
            self.egress, timeout_s=self._timeout_s, http=self._http, of_route=True, for_http=_FOR_HTTP
        )

    async def send(self, message: Message) -> Result:
        """Raises Retry, Hold, Snooze or Bury, where the endpoint has not taken it."""
        assert self._poster is not None, "it is open"
        if message.url is None:
            return Refused(
                f"it has no URL to go to: give one where it is pushed, as engine.push(…, topic={message.topic!r}, "
                "url='https://HOST/PATH')"
            )
        await self._poster.post(message, message.url, self._secret(message.url, message.key))
        return SENT

    def _secret(self, url: str, key: str | None) -> str | None:
        if not self._masters:
            return self._sign
        try:
            return " ".join(webhook_secret(master, url, key) for master in self._masters)
        except InvalidOption as exc:
            raise InvalidUrl(f"sign.key= of the route: {exc}") from exc

    async def close(self) -> None:
        poster, self._poster = self._poster, None
        if poster is not None:
            await poster.close()
