"""every: the command that declares recurring tasks, lists, prunes, pauses, resumes, removes and runs them."""

from __future__ import annotations

from typing import Any

import click

from shardq.cli.options import INSTANT, MANY, TIME, Given, command, content_options, raw_json, shared
from shardq.cli.output import complain
from shardq.cli.session import opened
from shardq.cli.table import show
from shardq.engine.around import forms, tables
from shardq.features.schedules import Every
from shardq.features.schedules.every import check_schedule_name


@command("Declare, list and change recurring tasks.")
@click.argument("schedule", metavar="[NAME]", required=False)
@click.argument("payload", metavar="[PAYLOAD]", required=False)
@click.option("--cron", metavar="EXPRESSION", help="When it runs, such as '0 3 * * *'.")
@click.option("--interval", type=TIME, help="Or how often: 30s, 5m, 1h30m.")
@click.option("--tz", metavar="ZONE", help="With --cron: the time zone, such as Europe/Berlin. Default: UTC.")
@click.option("--topic", metavar="TOPIC", help="Default: the default topic.")
@click.option("--key", metavar="KEY", help="The key of its tasks: they run one at a time with all others of it.")
@click.option("--jitter", type=TIME, help="Delay each task by a random time up to this.")
@click.option(
    "--catch-up",
    type=click.Choice(["one", "all", "none"]),
    help="What to run for occurrences that were missed while no dispatcher ran. Default: one run for all.",
)
@click.option("--start", type=INSTANT, help="No occurrence before that.")
@click.option("--end", type=INSTANT, help="No occurrence after that.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    help="skip: leave an occurrence out while the task before it is unfinished. Default: allow.",
)
@content_options
@click.option("--expires", type=TIME, help="A task is dead, as expired, if no worker claims it in this time.")
@click.option("--owner", metavar="NAME", help="The program that declares it; see --prune.")
@click.option("--prune", metavar="OWNER", help="Without NAME: remove this owner's schedules, except those to --keep.")
@click.option("--keep", metavar="NAME", help="With --prune; may be repeated.", **MANY)
@click.option(
    "--pause", "verb", flag_value="pause", help="Push no more tasks of it, and take back those that are not due yet."
)
@click.option("--resume", "verb", flag_value="resume", help="Continue with the next occurrence.")
@click.option("--remove", "verb", flag_value="remove", help="End it, and take back the tasks that are not due yet.")
@click.option("--run-now", "verb", flag_value="run", help="Push one task of it that is due now, and print its id.")
@shared
def every(
    given: Given,
    /,
    schedule: str | None,
    payload: str | None,
    verb: str | None,
    prune: str | None,
    keep: tuple[str, ...] | None,
    **options: Any,
) -> None:
    """Push a task with the JSON PAYLOAD (default: null) again and again, as the schedule NAME says: once each time,
    however many processes run. The schedule is kept in the engine. `shardq run`, or any service that dispatches,
    serves it.

    If NAME exists, the new declaration replaces it; the same declaration changes nothing. Without NAME, list all
    schedules.

    example:
      shardq every                                     (lists all schedules)
      shardq every nightly --cron '0 3 * * *' --tz Europe/Berlin --topic reports '{"all": true}'
      shardq every poll --interval 30s
      shardq every nightly --run-now
      shardq every nightly --pause
      shardq every nightly --remove
      shardq every --prune billing --keep nightly      (removes the others with --owner billing)

    cron:
      minute, hour, day of month, month and day of week, by the clock of --tz;
      with six fields the second comes first
    """
    chosen: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    if prune is not None and (chosen or verb or schedule is not None):
        raise click.UsageError("--prune takes the OWNER and --keep alone")
    if keep and prune is None:
        raise click.UsageError("--keep is for --prune OWNER")
    if schedule is None and (chosen or verb):
        raise click.UsageError("give the NAME of a schedule; without one they are listed")
    if verb is not None and (chosen or payload is not None):
        raise click.UsageError(f"--{'run-now' if verb == 'run' else verb} takes the NAME alone")
    if prune is not None:
        _prune(given, prune, keep or ())
    elif schedule is None:
        _list(given)
    elif verb is not None:
        _change(given, schedule, verb)
    else:
        _declare(given, schedule, payload, chosen)


def _declare(given: Given, name: str, payload: str | None, chosen: dict[str, Any]) -> None:
    if "cron" not in chosen and "interval" not in chosen:
        raise click.UsageError("give --cron or --interval; or one of --pause, --resume, --remove and --run-now")
    content = None if payload is None else raw_json(payload, "text is written as '\"text\"'")
    # what is wrong with it is told before an engine of a new name is made
    check_schedule_name(name)
    Every(**{option: value for option, value in chosen.items() if option not in ("topic", "key")})
    with opened(given, create=True) as engine:
        engine.every(name, payload=content, **chosen)
        [declared] = [each for each in engine.schedules() if each.name == name]
    following = f"{tables.recurrence(declared)}, next {tables.instant(declared.next)} UTC"
    given.answer(forms.schedule(declared), f"schedule {name!r}: {following}")


def _prune(given: Given, owner: str, keep: tuple[str, ...]) -> None:
    with opened(given) as engine:
        gone = engine.schedule(owner=owner).prune(keep=keep)
    lines = "\n".join(f"schedule {name!r} is removed" for name in gone)
    given.answer({"owner": owner, "removed": gone}, lines or "none is removed")


def _change(given: Given, name: str, verb: str) -> None:
    with opened(given) as engine:
        done = getattr(engine.schedule(name), verb)()
    if verb == "run":
        given.answer({"schedule": name, "id": str(done)}, done)
    else:
        given.answer({"schedule": name, f"{verb}d": True}, f"schedule {name!r} is {verb}d")


def _list(given: Given) -> None:
    with opened(given) as engine:
        schedules = engine.schedules()
    show(given, tables.schedules(schedules), forms.schedule)
    for schedule in schedules:
        if schedule.problem is not None and not given.json:
            complain(f"schedule {schedule.name!r} can't be served here: {schedule.problem}")
