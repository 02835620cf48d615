"""doctor: the command that looks at everything that may be wrong, says what to do, and mends what is safe to mend."""

from __future__ import annotations

from collections.abc import Iterator

import click

from shardq.cli.health import NOT_WELL, UNKNOWN, WELL, bounded, timeout_option
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import say, tell
from shardq.cli.session import looking, opened
from shardq.cli.words import in_options
from shardq.core.drivers.sync import Driver
from shardq.core.operation import Operation, run
from shardq.engine import Engine, control, parts
from shardq.engine import doctor as checks
from shardq.engine.advice import named
from shardq.engine.connections import connected
from shardq.engine.doctor import LOOKED_AT, OK, Finding
from shardq.engine.options import STATS_TIMEOUT_S
from shardq.errors import AccessDenied, ShardqError

TIMEOUT_S = 60.0


@click.command(
    short_help="Everything that may be wrong, and what to do.",
    epilog=f"""\b
example:
  shardq doctor
  shardq doctor --all --fix --timeout 10m
  shardq doctor --json | jq -r 'select(.ok | not).text'
\b
exit codes:
  {WELL}  nothing was found, or all that was found is mended
  {NOT_WELL}  something is wrong: a line says what, and what to do
  {UNKNOWN}  it can't be told: no server reached, a wrong password, no such
     engine, no answer in time; or the command line is not understood""",
)
@click.option(
    "--all", "everything", is_flag=True, help=f"Look at every id, not at {LOOKED_AT} of each shard and state."
)
@click.option("--fix", is_flag=True, help="Mend what can be mended; each fix says what it does. No record is removed.")
@timeout_option(TIMEOUT_S)
@shared
@pass_given
def doctor(given: Given, everything: bool, fix: bool, timeout: float) -> int:
    """Look at versions, servers, replicas, clocks, connections and open files; at who serves the shards, and if each
    knows the topology; at what keeps tasks waiting, as `shardq health` finds it; at ids in the wrong shard, records
    that nobody will ever get, and ids without a record.

    Ids are looked at by sampling, unless --all is given. `shardq health` is quicker.
    """

    def look() -> int:
        with opened(given) if fix else looking(given) as engine, connected(engine.options) as driver:
            code = WELL
            for check, found in _all_checks(engine, driver, everything=everything):
                if not found:
                    _show(given, check, OK[check])
                for each in found:
                    code = max(code, _treat(given, driver, each, fix=fix))
        return code

    return bounded(given, look, timeout)


def _all_checks(engine: Engine, driver: Driver, *, everything: bool) -> Iterator[tuple[str, list[Finding]]]:
    """Each check with what it found, in their order."""
    cache = parts.cache_of(engine)
    # first: every other look tells a shard the topology that it missed
    epochs = _carried_out(driver, "epochs", checks.find_epochs(cache))
    counts = run(driver, control.count_shards(cache, {}), STATS_TIMEOUT_S)
    nodes = {keys.slot: driver.node_of(keys.slot) for keys, _ in counts}
    found = list(
        checks.findings_on_servers(
            run(driver, parts.examined(engine, driver, counts), STATS_TIMEOUT_S),
            run(driver, control.replication(counts, nodes), STATS_TIMEOUT_S),
        )
    )
    found += checks.findings_on_tasks(engine.health())
    seen = [keys for keys, told in counts if not isinstance(told, ShardqError)]
    unseen = [(keys.shard, told) for keys, told in counts if isinstance(told, ShardqError)]
    if unseen:
        text = f"{named([shard for shard, _ in unseen])} can't be seen, and what follows is without: {unseen[0][1]}"
        found.append(Finding("coverage", text))
    later = {
        "versions": checks.find_versions(cache),
        "places": checks.find_misplaced(cache, seen, everything=everything),
        "records": checks.find_orphans(cache, seen, everything=everything),
    }
    for check in OK:
        if check == "epochs":
            yield check, epochs
        elif check in later:
            yield check, _carried_out(driver, check, later[check])
        else:
            yield check, [each for each in found if each.check == check]


def _carried_out(driver: Driver, check: str, operation: Operation[list[Finding]]) -> list[Finding]:
    try:
        return run(driver, operation, STATS_TIMEOUT_S)
    except ShardqError as exc:
        why = "the user of the server may not look" if isinstance(exc, AccessDenied) else "it can't be looked at"
        return [Finding(check, f"{why}: {exc}")]


def _treat(given: Given, driver: Driver, found: Finding, *, fix: bool) -> int:
    """Shows a finding, and mends it if that is wanted and possible. Returns the exit code that it leaves."""
    mend = found.mend if fix else None
    if mend is None:
        _show(given, found.check, found.text, found)
        return NOT_WELL
    _show(given, found.check, found.text, found)
    fixed, left = run(driver, mend(), None)
    if given.json:
        tell({"check": found.check, "fixed": fixed, "left": left, "fix": found.fix})
    else:
        say(f"{'':<12} fixed {fixed:,}: {found.fix}")
        if left:
            say(f"{'':<12} {left:,} {'is' if left == 1 else 'are'} left")
    return NOT_WELL if left else WELL


def _show(given: Given, check: str, text: str, found: Finding | None = None) -> None:
    if given.json:
        tell({"check": check, "ok": found is None, "text": text, "fix": found.fix or None if found else None})
        return
    say(f"{check:<12} {'ok: ' if found is None else 'WRONG: '}{in_options(text)}")
    if found is not None and found.fix:
        say(f"{'':<12} --fix would {found.fix}")
