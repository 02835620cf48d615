"""Finding server programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import servers


def test_every_kind_found_has_the_version_it_says() -> None:
    found = servers.found()
    assert servers.DEFAULT in found
    for kind, path in found.items():
        product, _, version = servers.version(path).partition(" ")
        assert f"{product.lower()}{version.partition('.')[0]}" == kind


def test_a_program_that_is_no_server_has_no_version(tmp_path: Path) -> None:
    assert servers.version(tmp_path / "absent") == ""
    assert servers.version(Path("/bin/echo")) == ""


def test_an_unknown_kind_is_told_the_known_ones() -> None:
    with pytest.raises(servers.NoSuchServer, match="'redis9'; the kinds are valkey9, redis8, valkey8, redis7"):
        servers.binary("redis9")
