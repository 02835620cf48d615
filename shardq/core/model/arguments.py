"""The arguments of Python in the sentences of errors, as those write them who have no Python: as fields of JSON, or as
options of a command.

>>> in_fields("dedup=5.0 was given without id=")
'"dedup": 5.0 was given without "id"'
"""

from __future__ import annotations

import re

from shardq.core.model.task_options import OPTIONS

ARGUMENT: re.Pattern[str] = re.compile(
    rf"""\w[\w+.-]*://\S+  # a URL has arguments of its own, such as those of a route
    |\b({"|".join(option.name for option in OPTIONS)}|durability|to|rate|concurrency|per_key|per_key_rate|
     on_failure|payload_base64|shards|name|cron|interval|tz|jitter|catch_up|max_late|max_ready_age|max_dead|maxlen|dead_age|dead_count|sinks|secrets)
    =("[^"]*"|'[^']*'|[\w.+-]+)?""",
    re.VERBOSE,
)
"""An argument with its value, if there is one; or a URL, in which there is none."""


def in_fields(text: str) -> str:
    """The text with arguments as fields of JSON."""

    def field(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name is None:
            return found[0]
        return f'"{name}": {value}' if value else f'"{name}"'

    return ARGUMENT.sub(field, text)
