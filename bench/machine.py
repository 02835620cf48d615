"""The machine, the versions, the commit and the load belong to every figure."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from bench.cores import Cores
from cluster import servers
from shardq.version import __version__

_ROOT = Path(__file__).parent.parent

_MEASURED = ("shardq", "bench/suites")
"""A change here makes a figure another one."""


def facts(kind: str, *, topology: str, cores: Cores) -> dict[str, str]:
    """Returns the facts by name, in the order in which they are shown."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {memory_gb:.0f} GiB, {platform.system()} "
        f"{platform.release()}",
        "pinned": str(cores),
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load before": f"{os.getloadavg()[0]:.2f}",
        "server": f"{servers.version(servers.binary(kind))}, {topology}, no persistence",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": f"shardq {__version__}, "  # of the checkout: the installed package may be told of an older one
        + ", ".join(f"{name} {version(name)}" for name in ("redis", "hiredis", "mmh3", "msgspec")),
        "commit": _commit(),
    }


def told(kind: str, *, topology: str, cores: Cores) -> dict[str, str]:
    """Returns the facts, and shows on stderr those that matter during the run."""
    known = facts(kind, topology=topology, cores=cores)
    print(f"{known['server']}; {cores}", file=sys.stderr)
    return known


def _processor() -> str:
    """Returns the model, or the kind of processor where the system tells no model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _commit() -> str:
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = " with changes" if _git("status", "--porcelain", "--untracked-files=no", *_MEASURED) else ""
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not a git checkout"
    return commit + changed


def _git(*words: str) -> str:
    run = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()
