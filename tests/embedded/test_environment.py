"""The environment of a server: glibc keeps more of what scripts free, unless the user has said how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.server import Server
from shardq.features.embedded import enter
from shardq.features.embedded.program import TCACHE_COUNT, environment

OURS = f"glibc.malloc.tcache_count={TCACHE_COUNT}"


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (None, OURS),
        ("", OURS),
        ("glibc.malloc.arena_max=1", f"glibc.malloc.arena_max=1:{OURS}"),
        ("glibc.malloc.tcache_count=7", "glibc.malloc.tcache_count=7"),
        ("glibc.malloc.tcache_count=7:glibc.malloc.top_pad=0", "glibc.malloc.tcache_count=7:glibc.malloc.top_pad=0"),
    ],
)
def test_what_the_user_says_stays(given: str | None, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOTHER", "stays")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if given is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", given)
    assert (environment()["GLIBC_TUNABLES"], environment()["ANOTHER"]) == (made, "stays")


def test_servers_are_started_with_it(
    folder: Path, tmp_path: Path, wrapped: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    told = tmp_path / "told"
    # A server overwrites what the system shows of its environment, so it is noted before.
    wrapped(f"printenv GLIBC_TUNABLES >> {told}")
    with enter(folder), Server(tmp_path / "bin" / "valkey-server"):
        assert told.read_text().splitlines() == [OURS, OURS]
