"""The table of payloads in model/README.md is true of every codec."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import shardq.core.model
from shardq.core.model.record import codec_named, decode_record, encode_record
from shardq.errors import PayloadNotEncodable

ROW = re.compile(r"^\| `(.+)` \| (.+) \| (.+) \|$", re.MULTILINE)
"""Those whose payload is an expression."""

KNOWN = {"UTC": UTC, "date": date, "datetime": datetime, "timedelta": timedelta, "Decimal": Decimal, "UUID": UUID}

TEXT = (Path(shardq.core.model.__path__[0]) / "README.md").read_text(encoding="utf-8")
ROWS = [found for found in ROW.findall(TEXT) if "codec=" not in found[0]]


def value(expression: str) -> Any:
    return eval(expression, dict(KNOWN))  # the page is ours


def test_the_table_is_found() -> None:
    assert len(ROWS) == 22


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_payload_comes_back_as_the_table_says(row: tuple[str, str, str], codec: str) -> None:
    payload, said = value(row[0]), row[1 if codec == "json" else 2]
    if said.startswith("refused"):
        with pytest.raises(PayloadNotEncodable):
            encode_record(codec_named(codec), payload)
        return
    back = decode_record(encode_record(codec_named(codec), payload)).payload
    expected = value(said.strip("`"))
    assert repr(back).replace("datetime.timezone.utc", "UTC") == repr(expected).replace("datetime.timezone.utc", "UTC")
