"""``python -m cluster up | status | down``: a real cluster on this machine, for trying things out.

Only what is said and asked on the command line; the work is in ``local.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import redis

from cluster import local, servers
from cluster.ports import HOST
from cluster.server import ServerFailed
from cluster.view import Seen

_EXAMPLE = """\
example:
  python -m cluster up --masters 3 --replicas 1
  export SHARDQ_URL=$(python -m cluster url)
  python -m cluster down
"""

# A machine runs out of memory before it runs out of ports.
_MOST_MASTERS = 100
_MOST_REPLICAS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 not done (said why on stderr), 2 not understood, 130 interrupted."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        with local.holding():
            return command(options)
    except KeyboardInterrupt:
        print("interrupted; what was begun was taken back", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (ServerFailed, servers.NoSuchServer, local.Busy, redis.RedisError, OSError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1


def _up(options: argparse.Namespace) -> int:
    record = local.recorded()
    if record is not None:
        alive = len(record.alive())
        if alive:
            print(f"A cluster is already up here: {alive} of {len(record.processes)} processes run.")
            _print_url(record)
            return 0
        local.down(record)  # the machine was restarted, or somebody killed them all
    binary = servers.binary(options.server)
    print(
        f"Starting {servers.version(binary)}: {options.masters} masters, {options.replicas} replicas each …",
        flush=True,
    )
    _print_url(local.up(binary, masters=options.masters, replicas=options.replicas))
    return 0


def _status(_: argparse.Namespace) -> int:
    record = local.recorded()
    if record is None:
        print("No cluster is up here; start one with: python -m cluster up")
        return 1
    troubles = 0
    for process in record.processes:
        view = local.look(process) if process.find() else None
        seen = next((seen for seen in (view or {}).values() if "myself" in seen.flags), None)
        if view is None or seen is None:
            troubles += 1
            what = "does not answer" if process.find() else "has ended"
        else:
            what = _role(seen, master=view.get(seen.master_id or ""))
        print(f"{HOST}:{process.port}  pid {process.pid:<8} {what}")
    print(f"{record.server}, {len(record.processes) - troubles} of {len(record.processes)} nodes answer")
    _print_url(record)
    return 1 if troubles else 0


def _url(_: argparse.Namespace) -> int:
    record = local.recorded()
    if record is None:
        print("error: no cluster is up here; start one with: python -m cluster up", file=sys.stderr)
        return 1
    print(record.url)
    return 0


def _down(_: argparse.Namespace) -> int:
    record = local.recorded()
    if record is None:
        print("No cluster is up here.")
        return 0
    print(f"Stopped {local.down(record)} processes and removed their files.")
    return 0


def _print_url(record: local.Record) -> None:
    print(f"{record.url}\nexport SHARDQ_URL={record.url}")


def _role(seen: Seen, *, master: Seen | None) -> str:
    if not seen.is_master:
        return f"replica of {HOST}:{master.port}" if master else "replica"
    slots = ", ".join(f"{first}-{last}" for first, last in seen.slots)
    return f"master  {slots or 'no slots'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cluster",
        description="A real cluster of server processes on this machine. Its files are in .cluster/ of the "
        "current directory, and go with it.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start one, wait until all its nodes agree, and print its URL")
    up.add_argument("--masters", type=_count(1, _MOST_MASTERS), default=3, help="default: %(default)s")
    up.add_argument(
        "--replicas", type=_count(0, _MOST_REPLICAS), default=1, help="of each master (default: %(default)s)"
    )
    up.add_argument("--server", choices=servers.KINDS, default=servers.DEFAULT, help="default: %(default)s")
    up.set_defaults(command=_up)
    for name, command, text in (
        ("status", _status, "show its nodes"),
        ("url", _url, "print its URL"),
        ("down", _down, "stop it and remove its files"),
    ):
        commands.add_parser(name, help=text).set_defaults(command=command)
    return parser


def _count(least: int, most: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return count
