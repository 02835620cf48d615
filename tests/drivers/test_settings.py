"""URLs of every scheme are read or refused, and no password is ever shown."""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.drivers.credentials import Credentials
from shardq.core.drivers.settings import Settings, Tls
from shardq.errors import InvalidOption, InvalidUrl

SECRET = "s3:c/r@e#t?"
QUOTED = "s3%3Ac%2Fr%40e%23t%3F"


@pytest.mark.parametrize(
    ("url", "kind", "addresses", "db"),
    [
        ("redis://", "single", ("127.0.0.1:6379",), 0),
        ("redis://h", "single", ("h:6379",), 0),
        ("redis://h:7000/3", "single", ("h:7000",), 3),
        ("redis://[::1]:7000", "single", ("::1:7000",), 0),
        ("redis://[fe80::2]/1", "single", ("fe80::2:6379",), 1),
        ("rediss://h:7000", "single", ("h:7000",), 0),
        ("unix:///run/r.sock", "single", ("/run/r.sock",), 0),
        ("unix:///run/a%20b@c.sock?db=2", "single", ("/run/a b@c.sock",), 2),
        ("redis+cluster://a:1,b:2,c", "cluster", ("a:1", "b:2", "c:6379"), 0),
        ("redis+cluster://a:1/0", "cluster", ("a:1",), 0),
        ("rediss+cluster://a:1,b:2", "cluster", ("a:1", "b:2"), 0),
        ("redis+sentinel://a,b:2/main/4", "sentinel", ("a:26379", "b:2"), 4),
        ("rediss+sentinel://a,b:2/main/4?sentinel_user=u", "sentinel", ("a:26379", "b:2"), 4),
    ],
)
def test_addresses(url: str, kind: str, addresses: tuple[str, ...], db: int) -> None:
    settings = Settings.from_url(url)
    assert (settings.kind, settings.addresses, settings.db) == (kind, addresses, db)
    assert settings.login == Credentials()
    # What is shown is good for connecting to the same place.
    assert Settings.from_url(settings.safe_url).addresses == addresses
    assert Settings.from_url(settings.safe_url).db == db


@pytest.mark.parametrize(
    "url",
    [
        "redis://{user}{password}@h:1/2",
        "rediss://{user}{password}@h:1",
        "unix://{user}{password}@/run/r.sock",
        "redis+cluster://{user}{password}@a:1,b:2",
        "redis+sentinel://{user}{password}@a:1,b:2/main",
    ],
)
@pytest.mark.parametrize("user", ["", "us%40er"])
def test_login_is_read_and_hidden(url: str, user: str) -> None:
    settings = Settings.from_url(url.format(user=user, password=f":{QUOTED}"))
    assert settings.login == Credentials("us@er" if user else None, SECRET)
    for shown in (repr(settings), str(settings), settings.safe_url, repr(settings.login)):
        assert SECRET not in shown
        assert QUOTED not in shown
        assert "***" in shown


def test_user_without_password() -> None:
    settings = Settings.from_url("redis://me@h:1")
    assert settings.login == Credentials("me", None)
    assert settings.safe_url == "redis://me@h:1"


def test_sentinels_have_a_login_of_their_own() -> None:
    settings = Settings.from_url("redis+sentinel://:a@h:1/main?sentinel_password=b&sentinel_user=watch")
    assert settings.login == Credentials(None, "a")
    assert settings.sentinel_login == Credentials("watch", "b")
    assert settings.service == "main"
    assert settings.safe_url == "redis+sentinel://:***@h:1/main?sentinel_password=***&sentinel_user=watch"


def test_tls_options() -> None:
    settings = Settings.from_url("rediss://h:1?ca=/c.pem&cert=/a.pem&key=/a.key&check_hostname=no")
    assert settings.tls == Tls("/c.pem", "/a.pem", "/a.key", check_hostname=False)
    assert Settings.from_url("rediss://h:1").tls == Tls()
    assert Settings.from_url("redis://h:1").tls is None


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "not understood"),
        ("127.0.0.1:6379", "not understood"),
        ("http://:pw9@h:1", "scheme 'http' is not understood; allowed are redis://"),
        (":pw9://h:1", "this URL is not understood"),
        ("redis://h:0", "port from 1 to 65535"),
        ("redis://h:99999", "port from 1 to 65535"),
        ("redis://:pw9/x@h:pw9", "percent-encoded"),
        ("redis://:pw9?pw9@h:1", "%3F"),
        ("redis://:pw9#pw9@h:1", "%23"),
        ("redis://:pw9", "percent-encoded"),
        ("redis://h:1,i:2", "names one server"),
        ("redis://h:1/pw9", "not a number"),
        ("redis://h:1?pw9=pw9", "allowed are: none"),
        ("redis://h:1?pw9", "allowed are: none"),
        ("redis://h:1?ca=/x", "allowed are: none"),
        ("rediss://h:1?tls=1", "ca, cert, key, check_hostname"),
        ("rediss://h:1?check_hostname=maybe", "yes and no"),
        ("rediss://h:1?key=/k", "needs cert="),
        ("unix://", "absolute path"),
        ("unix://:pw9@", "absolute path"),
        ("unix://run/r.sock", "absolute path"),
        ("redis+cluster://h:1/1", "only database 0"),
        ("redis+cluster://h:1,", "host:port"),
        ("redis+sentinel://h:1", "name of its service"),
        ("redis+sentinel://h:1/", "name of its service"),
    ],
)
def test_bad_urls(url: str, part: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        Settings.from_url(url)
    assert part in str(caught.value)
    assert "pw9" not in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [
        {"timeout": 0},
        {"timeout": float("nan")},
        {"timeout": True},
        {"connect_timeout": -1},
        {"protocol": 4},
        {"connections": 0},
    ],
)
def test_bad_options(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(option))):
        Settings.from_url("redis://", **option)
