"""Where each command is, in the order of the help. A command is loaded when it is used; the help loads them all."""

from __future__ import annotations

from importlib import import_module

import click

PLACES = {
    "demo": "demo:demo",
    "run": "run:run",
    "work": "work:work",
    "push": "push:push",
    "push-file": "push_file:push_file",
    "get": "by_id:get",
    "list": "listing:list_tasks",
    "peek": "listing:peek",
    "forecast": "forecast:forecast",
    "cancel": "by_id:cancel",
    "cancel-tag": "tags:cancel_tag",
    "reschedule": "by_id:reschedule",
    "every": "every:every",
    "forward": "forward:forward",
    "stats": "stats:stats",
    "health": "health:health",
    "doctor": "health:doctor",
    "top": "top:top",
    "dashboard": "dashboard:dashboard",
    "fleet": "stats:fleet",
    "topics": "topics:topics",
    "shards": "shards:shards",
    "resize": "resize:resize",
    "expand": "resize:expand",
    "shrink": "resize:shrink",
    "requeue": "by_id:requeue",
    "purge": "topics:purge",
    "pause": "topics:pause",
    "resume": "topics:resume",
    "limit": "topics:limit",
    "configure": "config:configure",
    "outbox": "outbox:outbox",
    "spool": "spool:spool",
    "metrics": "dashboard:metrics",
    "plan": "plan:plan",
    "acl": "acl:acl",
    "config": "config:config",
}
WITH_SETTINGS = ("run", "work", "dashboard")
"""The commands that have settings of their own."""


class Commands(click.Group):
    """A group that has all of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in PLACES else None


def load(name: str) -> click.Command:
    module, _, attribute = PLACES[name].partition(":")
    command = getattr(import_module(f"shardq.cli.{module}"), attribute)
    assert isinstance(command, click.Command)
    return command


def with_settings() -> list[click.Command]:
    return [load(name) for name in WITH_SETTINGS]
