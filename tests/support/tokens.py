"""Files of tokens, as ``shardq token`` makes their lines."""

from __future__ import annotations

from pathlib import Path

from shardq.http.tokens import checked, line_of


def write_tokens(path: Path, **tokens: tuple[str, str, str]) -> Path:
    """Name → secret, roles and topics, with commas between several."""
    lines = [
        line_of(checked(name, roles.split(","), topics.split(",")), secret)
        for name, (secret, roles, topics) in tokens.items()
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
