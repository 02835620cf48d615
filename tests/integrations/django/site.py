"""A Django project of one file, run as a process of its own: it migrates, and pushes in transactions.

Arguments: the settings of its database, as JSON. It prints the ids that are to be moved.
"""

from __future__ import annotations

import asyncio
import json
import sys

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections, transaction


def main() -> None:
    settings.configure(
        DATABASES={"default": json.loads(sys.argv[1])},
        INSTALLED_APPS=["shardq.integrations.django"],
        USE_TZ=True,
    )
    django.setup()
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)  # exits where the model has no migration
    call_command("migrate", verbosity=0)
    from shardq import Task
    from shardq.integrations.django import outbox

    kept = []
    with transaction.atomic():
        kept.append(outbox.push({"order": 1}, topic="mail", delay=0.01))
        try:
            with transaction.atomic():
                outbox.push({"order": 2})
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        kept += outbox.push_many([Task({"order": 3}), Task({"order": 4}, id="four", dedup=60)])
    kept.append(asyncio.run(outbox.apush({"order": 5}, headers={"a": "b"})))
    connections.close_all()
    print(json.dumps(kept))


if __name__ == "__main__":
    main()
