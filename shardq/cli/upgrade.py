"""upgrade: the command that raises the format of what is stored, when all processes run a build that reads it."""

from __future__ import annotations

from shardq.cli.options import Given, command, shared
from shardq.cli.output import say, tell
from shardq.cli.session import opened
from shardq.core.operation import run
from shardq.engine.around import EngineAccess, connected
from shardq.engine.around import upgrade as raise_format

TIMEOUT_S = 30.0


@command("Raise the format of what is stored.")
@shared
def upgrade(given: Given) -> None:
    """Raise the format in which the engine is stored to that of this build. Do it last in an upgrade, when every
    process runs the new version and you will keep it. Until then you can go back to the former version; afterwards
    that version does nothing, and says why.

    It is refused while a dispatcher or a worker lives that can't read the new format: `shardq fleet` shows the
    version and format of each. Programs that only push are not listed there: upgrade them before.

    example:
      shardq upgrade
    """
    with opened(given) as engine, connected(EngineAccess(engine).options) as driver:
        cache = EngineAccess(engine).cache
        before = cache.topology.format
        now = run(driver, raise_format(cache), TIMEOUT_S)
    if given.json:
        tell({"format": now, "before": before})
    elif now == before:
        say(f"the engine is stored in format {now} already: nothing was changed")
    else:
        say(f"the engine is stored in format {now} from now on; before it was {before}")
