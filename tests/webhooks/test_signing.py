"""Signatures by Standard Webhooks, and the secret of each endpoint."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

import pytest

from shardq import BadInput, Bury, webhook_secret
from shardq.errors import InvalidOption, InvalidUrl
from shardq.features.webhooks.signing import signature, signing_keys
from tests.sinks.nasty import READ, NastyServer
from tests.webhooks.posting import OK, SECRET, delivery, head_of, hooks, outcome

MASTER = "a master secret of at least 24 bytes"
URL = "https://customer.example/in"


def test_the_vector_of_standard_webhooks() -> None:
    """That of its reference libraries."""
    payload = b'{"test": 2432232314}'
    headers = signature(signing_keys(SECRET, "secret="), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, payload)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_request_is_signed_by_each_secret() -> None:
    raw = [bytes([n]) * 32 for n in (250, 251)]
    secret = " ".join(f"whsec_{base64.b64encode(each).decode()}" for each in raw)
    with NastyServer([READ, OK]) as server:
        assert outcome(hooks(), delivery({"text": "é"}), f"http://127.0.0.1:{server.port}/", secret) is None
    (request,) = server.requests
    body = request.partition(b"\r\n\r\n")[2]
    headers = head_of(request)
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    assert json.loads(body) == {"text": "é"}
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    macs = [hmac.new(each, signed, hashlib.sha256).digest() for each in raw]
    assert headers["webhook-signature"] == " ".join(f"v1,{base64.b64encode(each).decode()}" for each in macs)


def test_without_a_secret_it_is_unsigned() -> None:
    with NastyServer([READ, OK]) as server:
        assert outcome(hooks(), delivery(), f"http://127.0.0.1:{server.port}/", None) is None
    headers = head_of(server.requests[0])
    assert "webhook-signature" not in headers
    assert headers["webhook-id"] == "hooks/7"


WRONG = ["", " ", "mine", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", f"{SECRET} mine", 7]


@pytest.mark.parametrize("secret", WRONG)
def test_a_wrong_secret_sends_nothing(secret: object) -> None:
    with NastyServer([READ, OK]) as server:
        raised = outcome(hooks(), delivery(), f"http://127.0.0.1:{server.port}/", secret)  # type: ignore[arg-type]
        assert server.connections == 0
    assert isinstance(raised, Bury)
    assert "secret= of a webhook is not a key of Standard Webhooks; give whsec_ and 24 to 64 bytes" in raised.reason
    assert "mine" not in raised.reason


def test_the_secret_of_an_endpoint() -> None:
    made = hmac.new(MASTER.encode(), b"customer-7\ncustomer.example", hashlib.sha256).digest()
    secret = f"whsec_{base64.b64encode(made).decode()}"
    assert webhook_secret(MASTER, URL, "customer-7") == secret
    assert webhook_secret(MASTER.encode(), "https://u:p@CUSTOMER.example:8443/other?x", "customer-7") == secret
    assert signing_keys(secret, "") == [made]


def test_secrets_differ_by_key_and_by_host() -> None:
    """So a producer who may choose the URL gets no signature that is good at the host of another."""
    secrets = [
        webhook_secret(MASTER, URL, "customer-7"),
        webhook_secret(MASTER, URL, "customer-8"),
        webhook_secret(MASTER, "https://attacker.example/in", "customer-7"),
        webhook_secret(MASTER, URL),
        webhook_secret(MASTER, URL + "2"),
        webhook_secret(f"{MASTER} ", URL, "customer-7"),
        webhook_secret(MASTER, "https://example/in", "customer-7\ncustomer"),
    ]
    assert len(set(secrets)) == len(secrets)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("short", URL), InvalidOption, "at least 24 bytes"),
        ((None, URL), InvalidOption, "at least 24 bytes"),
        ((MASTER, URL, ""), InvalidOption, "key= can't be empty"),
        ((MASTER, "customer.example"), InvalidUrl, "give https://HOST/PATH"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], error: type[BadInput], text: str) -> None:
    with pytest.raises(error, match=text):
        webhook_secret(*arguments)
