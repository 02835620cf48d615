"""upgrade: the command that raises the format of what is stored, when all processes run a build that reads it."""

from __future__ import annotations

from shardq.cli.options import Given, command, shared
from shardq.cli.output import say, tell
from shardq.cli.session import opened
from shardq.core.operation import run
from shardq.engine.inside import Inside
from shardq.engine.parts import connected
from shardq.engine.versions import upgrade as raise_format

TIMEOUT_S = 30.0


@command("Raise the format of what is stored.")
@shared
def upgrade(given: Given) -> None:
    """Raise the format in which the engine is stored to that of this build: the last step of an upgrade, when each
    process runs the new version and is to stay. Until then the former version can be brought back; from then on it
    does nothing, and says why.

    Refused while a dispatcher or a worker lives that can't read the new format: `shardq fleet` shows the version and
    the format of each. Programs that only push are not seen there: upgrade them before.

    example:
      shardq upgrade
    """
    with opened(given) as engine, connected(Inside(engine).options) as driver:
        cache = Inside(engine).cache
        before = cache.topology.format
        now = run(driver, raise_format(cache), TIMEOUT_S)
    if given.json:
        tell({"format": now, "before": before})
    elif now == before:
        say(f"the engine is stored in format {now} already: nothing was changed")
    else:
        say(f"the engine is stored in format {now} from now on; before it was {before}")
