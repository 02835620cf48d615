"""acl prints a line that servers accept as it is. What users with it can do is tested in ``tests/engine``."""

from __future__ import annotations

import pytest
import redis

from cluster.server import Server
from shardq.cli.acl import ALL
from shardq.core.roles import ROLES
from tests.cli.shell import Shell


@pytest.mark.parametrize("role", [*ROLES, ALL])
def test_a_server_takes_the_line(shell: Shell, own_server: Server, role: str) -> None:
    done = shell.run("acl", role, "--name", "orders")
    assert done.code == 0
    (line,) = done.lines
    assert line.startswith(f"ACL SETUSER orders-{role} on clearselectors resetkeys %R~shardq:{{orders:* ")
    assert own_server.ask(*line.split()) == "OK"
    assert done.err == f"give it a password, if it has none: ACL SETUSER orders-{role} '>a long password'\n"
    client = redis.Redis(port=own_server.port, username=f"orders-{role}", password="")
    with pytest.raises(redis.AuthenticationError):  # it has none yet
        client.ping()
    client.close()
    own_server.ask("ACL", "SETUSER", f"orders-{role}", ">secret9")
    assert own_server.ask(*line.split()) == "OK", "again, after an update: it keeps its password"
    done = shell.run("push", "1", "--url", f"redis://orders-{role}:secret9@{own_server.address}", "--name", "other")
    assert done.code == 1
    assert "allow its user the keys ~shardq:{NAME:*" in done.err
    done = shell.run("forward", "x", "--to", "y", "--url", own_server.url, "--name", "orders")
    assert done.code == 0
    if role in ("operator", "dispatcher", "viewer", ALL):
        done = shell.run("stats", "--url", f"redis://orders-{role}:secret9@{own_server.address}", "--name", "orders")
        assert (done.code, done.lines[0]) == (0, "ok")
        assert done.err.startswith("no dispatcher runs, ")
    if role == "viewer":
        allowed = {word[1:].partition("|")[0] for word in line.split() if word[0] == "+"}
        assert not allowed & set(own_server.ask("ACL", "CAT", "write"))
    if role in ("operator", ALL):
        url = f"redis://orders-{role}:secret9@{own_server.address}"
        said = shell.run("doctor", "--all", "--url", url, "--name", "orders").out
        assert "may not look" not in said
        assert "records      ok: " in said


def test_roles_together_and_lists(shell: Shell) -> None:
    words = shell.run("acl", "producer", "dispatcher", "--name", "x", "--to", "a*b c", "--json").object
    assert words["user"] == "x-producer-dispatcher"
    assert r"~a\*b?c" in words["rules"]
    assert "+rpush" in words["rules"]
    assert words["rules"][-1] == r"(~shardq:{x:* ~shardq:{x}:* ~a\*b?c +eval +evalsha)"
    assert not {"+flushall", "+keys", "+config", "+config|get"} & set(words["rules"])
    assert "+waitaof" in shell.run("acl", "dispatcher", "--fsynced", "--json").object["rules"]  # it moves tasks
    assert shell.run("acl", "all", "--fsynced", "--user", "me").lines[0].startswith("ACL SETUSER me on ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["acl"], "ROLE"),
        (["acl", "boss"], "'boss' is not one of"),
        (["acl", "worker", "--to", "x"], "--to goes with the role dispatcher"),
        (["acl", "viewer", "--fsynced"], "--fsynced goes with every role but viewer"),
        (["acl", "worker", "--user", "a b"], "has no blanks"),
        (["acl", "worker", "--name", "a b"], "the name of an engine can't be 'a b'"),
    ],
)
def test_what_is_wrong(shell: Shell, words: list[str], message: str) -> None:
    done = shell.run(*words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
