"""manage.py shardq: the `shardq` command, with the server and the name of a backend in TASKS."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from shardq.cli import main
from shardq.engine.around import EngineAccess
from shardq.errors import ShardqError
from shardq.integrations.django.backend import backend_named

VENDORS = ("postgresql", "mysql", "sqlite")
"""The databases of which Django's name is SQLAlchemy's, too, for the relay of the outbox."""


class Command(BaseCommand):
    help = "Run a command of shardq on the engine of a backend: manage.py shardq stats, manage.py shardq run."
    requires_system_checks: Sequence[str] = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--backend", metavar="ALIAS", default="default", help="The backend in TASKS, given first.")
        parser.add_argument("words", nargs="*", metavar="COMMAND ...", help="See `manage.py shardq --help`.")

    def run_from_argv(self, argv: list[str]) -> None:
        """Takes the words as they are: options and --help are the command's own."""
        words, alias = argv[2:], "default"
        if words and words[0].startswith("--backend="):
            alias = words.pop(0).removeprefix("--backend=")
        elif len(words) > 1 and words[0] == "--backend":
            alias = words[1]
            del words[:2]
        try:
            sys.exit(self.handle(backend=alias, words=words))
        except CommandError as exc:
            self.stderr.write(f"{exc.__class__.__name__}: {exc}")
            sys.exit(exc.returncode)

    def handle(self, *args: Any, **options: Any) -> Any:
        try:
            backend = backend_named(options["backend"])
            own, engine = backend.own, backend.engine
        except (ShardqError, ImproperlyConfigured) as exc:
            raise CommandError(str(exc)) from exc
        # What the environment says counts for less than the settings, and more than nothing.
        if (server := EngineAccess(engine).options.url) is not None:
            os.environ["SHARDQ_URL"] = server
        os.environ["SHARDQ_NAME"] = engine.name
        if (url := _database_url(own.database)) is not None:
            os.environ.setdefault("SHARDQ_DATABASE", url)
        before, sys.argv = sys.argv, ["shardq", *options["words"]]
        try:
            return main()
        finally:
            sys.argv = before


def _database_url(alias: str) -> str | None:
    """The database as SQLAlchemy writes it; None without SQLAlchemy, or where it has no name for it."""
    try:
        from sqlalchemy import URL
    except ImportError:
        return None
    connection = connections[alias]
    if connection.vendor not in VENDORS:
        return None
    said = {name: str(connection.settings_dict[name]) or None for name in ("USER", "PASSWORD", "HOST", "PORT", "NAME")}
    port = None if said["PORT"] is None else int(said["PORT"])
    url = URL.create(connection.vendor, said["USER"], said["PASSWORD"], said["HOST"], port, said["NAME"])
    return url.render_as_string(hide_password=False)
