"""Errors of passwords, permissions and memory come at once, and show no password."""

from __future__ import annotations

import pytest

from cluster.server import Server
from shardq.errors import AccessDenied, ServerFault
from tests.drivers.calls import command, script_call, store
from tests.drivers.carriers import Carriers

PASSWORD = "pw9@:/"
QUOTED = "pw9%40%3A%2F"


@pytest.mark.parametrize("protocol", [2, 3])
def test_right_password(carriers: Carriers, server_binary: object, name: str, protocol: int) -> None:
    with Server(options={"requirepass": PASSWORD}) as server:
        carrier = carriers.opened(f"redis://:{QUOTED}@{server.address}", protocol=protocol)
        assert carrier.call(store(name, "f")) == 1
        carrier.close()
        carrier = carriers.opened(f"redis://default:{QUOTED}@{server.address}", protocol=protocol)
        assert carrier.call(store(name, "f")) == 2


def test_a_command_that_is_forbidden(carriers: Carriers, own_server: Server, name: str) -> None:
    own_server.ask("ACL", "SETUSER", "me", "on", ">secret9", "~*", "+@all", "-get", "-hincrby", "-client")
    carrier = carriers.opened(f"redis://me:secret9@{own_server.address}")
    for call in (command(name, "GET", name), store(name, "f")):
        with pytest.raises(AccessDenied) as caught:
            carrier.call(call)
        assert "secret9" not in str(caught.value)


def test_a_broken_script_is_told(carriers: Carriers, single: Server, name: str) -> None:
    carrier = carriers.opened(single.url)
    with pytest.raises(ServerFault, match="store was not done"):
        carrier.call(script_call("return nothing.here", name))
