"""manage.py shardq_prune: removes old results."""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from shardq.core.model.quantities import seconds
from shardq.integrations.django.backend import backends
from shardq.integrations.django.results import ResultStore


class Command(BaseCommand):
    help = (
        "Remove the results of tasks that have ended longer ago than keep_results says (7 days, if it says nothing). "
        "Run it once a day."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older",
            type=_age,
            metavar="TIME",
            help="Remove what has ended longer ago than this: 12h, 30d. Default: keep_results of each backend.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        removed = 0
        try:
            for backend in backends():
                older = options["older"] or backend.own.keep_results
                if older is not None:
                    removed += ResultStore(backend.own.database).prune(older, backend.alias)
        except ImproperlyConfigured as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(f"{removed:,} results removed")


def _age(text: str) -> dt.timedelta:
    try:
        return dt.timedelta(seconds=seconds(text))
    except (ValueError, OverflowError) as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
