"""every: the command that declares recurring tasks, lists, prunes, pauses, resumes, removes and runs them."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from shardq.cli.options import Given, shared
from shardq.cli.output import complain, payload_shown, say, tell
from shardq.cli.parsers import Whole, headers_of, instant, raw_json, read_by, seconds
from shardq.cli.session import opened
from shardq.cli.table import print_view
from shardq.core.model.checks import MAX_ATTEMPTS
from shardq.engine import Engine, tables
from shardq.features.schedules import Every, Schedule
from shardq.features.schedules.every import CatchUp, check_schedule_name


@click.command(
    short_help="Declare, list and change recurring tasks.",
    epilog="""\b
example:
  shardq every                                     (lists all schedules)
  shardq every nightly --cron '0 3 * * *' --tz Europe/Berlin --topic reports '{"all": true}'
  shardq every poll --interval 30s
  shardq every nightly --run-now
  shardq every nightly --pause
  shardq every nightly --remove
  shardq every --prune billing --keep nightly      (removes the others with --owner billing)
\b
cron:
  minute, hour, day of month, month and day of week, by the clock of --tz;
  with six fields the second comes first""",
)
@click.argument("schedule", metavar="[NAME]", required=False)
@click.argument("payload", metavar="[PAYLOAD]", required=False)
@click.option("--cron", metavar="EXPRESSION", help="When it recurs, such as '0 3 * * *'.")
@click.option("--interval", metavar="TIME", callback=read_by(seconds), help="Or how often: 30s, 5m, 1h30m.")
@click.option("--tz", metavar="ZONE", help="With --cron: the time zone, such as Europe/Berlin. Default: UTC.")
@click.option("--topic", metavar="TOPIC", help="Default: the default topic.")
@click.option("--jitter", metavar="TIME", callback=read_by(seconds), help="Each is due up to so much later.")
@click.option(
    "--catch-up",
    type=click.Choice(["one", "all", "none"]),
    help="What runs of the occurrences that were missed while no dispatcher ran. Default: one run for all of them.",
)
@click.option("--start", metavar="INSTANT", callback=read_by(instant), help="No occurrence before that.")
@click.option("--end", metavar="INSTANT", callback=read_by(instant), help="No occurrence after that.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    help="skip: leave an occurrence out while the task of the one before it is not finished. Default: allow.",
)
@click.option("--header", "headers", metavar="KEY=VALUE", multiple=True, callback=headers_of, help="May be repeated.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="For `shardq cancel --tag`; may be repeated.")
@click.option("--max-attempts", type=Whole(1, MAX_ATTEMPTS), metavar="N", help="After so many, a task is dead.")
@click.option("--expires", metavar="TIME", callback=read_by(seconds), help="Bury what nobody has begun so long after.")
@click.option("--owner", metavar="NAME", help="The program that declares it, for --prune.")
@click.option("--prune", metavar="OWNER", help="Without NAME: remove the schedules of this owner but those to --keep.")
@click.option("--keep", metavar="NAME", multiple=True, help="With --prune; may be repeated.")
@click.option("--pause", "verb", flag_value="pause", help="Push no more of it; takes back what is not due yet.")
@click.option("--resume", "verb", flag_value="resume", help="Go on with the next occurrence.")
@click.option("--remove", "verb", flag_value="remove", help="End it; takes back what is not due yet.")
@click.option("--run-now", "verb", flag_value="run", help="Push one task of it that is due now, and print its id.")
@shared
def every(
    given: Given,
    /,
    schedule: str | None,
    payload: str | None,
    cron: str | None,
    interval: float | None,
    tz: str | None,
    topic: str | None,
    jitter: float | None,
    catch_up: CatchUp | None,
    verb: str | None,
    prune: str | None,
    keep: tuple[str, ...],
    tags: tuple[str, ...],
    **others: Any,
) -> int:
    """Push a task with the JSON PAYLOAD (default: null) again and again, once over the whole fleet, as the schedule
    NAME says. It is kept in the engine: `shardq run`, or any service that dispatches, serves it.

    Declared again it stays as it is; declared with anything else, that takes its place. Without NAME all schedules are
    listed.
    """
    options: dict[str, Any] = {
        "cron": cron,
        "interval": interval,
        "tz": tz,
        "topic": topic,
        "jitter": jitter,
        "catch_up": catch_up,
        "tags": tags or None,
        **others,
    }
    set_options: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    if prune is not None:
        if set_options or verb or schedule is not None:
            raise click.UsageError("--prune takes the OWNER and --keep alone")
        with opened(given) as engine:
            return _prune(given, engine, prune, keep)
    if keep:
        raise click.UsageError("--keep is for --prune OWNER")
    if schedule is None:
        if set_options or verb:
            raise click.UsageError("give the NAME of a schedule; without one they are listed")
        return _list(given)
    if verb is not None:
        if set_options or payload is not None:
            raise click.UsageError(f"--{'run-now' if verb == 'run' else verb} takes the NAME alone")
        with opened(given) as engine:
            return _change(given, engine, schedule, verb)
    if cron is None and interval is None:
        raise click.UsageError("give --cron or --interval; or one of --pause, --resume, --remove and --run-now")
    content: Any = None
    if payload is not None:
        try:
            content = raw_json(payload)
        except ValueError:
            raise click.UsageError(f"PAYLOAD is not JSON: {payload!r:.80}; text is written as '\"text\"'") from None
    # what is wrong with it is told before an engine of a new name is made
    check_schedule_name(schedule)
    Every(**{option: value for option, value in set_options.items() if option not in ("topic", "max_attempts")})
    with opened(given, create=True) as engine:
        engine.every(schedule, payload=content, **set_options)
        [declared] = [each for each in engine.schedules() if each.name == schedule]
    if given.json:
        tell(_shown(declared))
    else:
        say(f"schedule {schedule!r}: {tables.recurrence(declared)}, next {tables.instant(declared.next)} UTC")
    return 0


def _prune(given: Given, engine: Engine, owner: str, keep: tuple[str, ...]) -> int:
    gone = engine.schedule(owner=owner).prune(keep=keep)
    if given.json:
        tell({"owner": owner, "removed": gone})
    else:
        say("\n".join(f"schedule {name!r} is removed" for name in gone) or "none is removed")
    return 0


def _change(given: Given, engine: Engine, name: str, verb: str) -> int:
    if verb == "run":
        receipt = engine.schedule(name).run()
        if given.json:
            tell({"schedule": name, "id": str(receipt)})
        else:
            say(receipt)
        return 0
    schedule = engine.schedule(name)
    {"remove": schedule.remove, "pause": schedule.pause, "resume": schedule.resume}[verb]()
    if given.json:
        tell({"schedule": name, f"{verb}d": True})
    else:
        say(f"schedule {name!r} is {verb}d")
    return 0


def _list(given: Given) -> int:
    with opened(given) as engine:
        schedules = engine.schedules()
    if given.json:
        for schedule in schedules:
            tell(_shown(schedule))
    else:
        print_view(tables.schedules(schedules))
    for schedule in schedules:
        if schedule.problem is not None and not given.json:
            complain(f"schedule {schedule.name!r} can't be served here: {schedule.problem}")
    return 0


def _shown(schedule: Schedule) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(msgspec.structs.replace(schedule, payload=None))
    del fields["payload"]
    return fields | payload_shown(schedule.payload)
