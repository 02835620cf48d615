"""The page about the fleet is complete."""

from __future__ import annotations

from shardq.core.fleet import Member
from tests.support.pages import page


def test_the_page_tells_of_every_field() -> None:
    told = page("fleet")
    assert [field for field in Member.__struct_fields__ if f"`{field}`" not in told] == []
