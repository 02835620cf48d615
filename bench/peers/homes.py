"""Each peer has an environment of its own, made at its first turn: requirements contradict each other and ours."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.adapter import Adapter, Here, Npm, Venv
from shardq.version import __version__

ROOT = Path(__file__).parents[2]
HOMES = ROOT / ".peers"
PROGRAMS = Path(__file__).parent / "programs"

INSTALL_TIMEOUT_S = 300.0


class Unavailable(Exception):
    """The peer can't take part on this machine. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Home:
    version: str
    """The versions of the peer and of its interpreter."""
    command: tuple[str, ...]
    """The command of its program. The role follows."""
    folder: Path
    binary: str = ""
    """The server that it brings, if it brings one."""


def home(adapter: Adapter, *, say: Callable[[str], None]) -> Home:
    """Installs the peer if needed. Raises ``Unavailable`` with the reason if that is not possible."""
    folder = HOMES / adapter.name
    module = f"bench.peers.programs.{Path(adapter.program).stem}"
    match adapter.source:
        case Here():
            return Home(_with_python(f"shardq {__version__}", sys.executable), (sys.executable, "-m", module), ROOT)
        case Venv() as source:
            binary = _on_path(source.binary) if source.binary else ""
            interpreter = _interpreter(source.python)
            _install(
                folder,
                [interpreter, *source.packages],
                [interpreter, "-m", "venv", "--clear", str(folder)],
                [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"],
                source.packages,
                say,
            )
            python = str(folder / "bin/python")
            said = _with_python(re.sub(r"(\[.*\])?==", " ", source.packages[0]), python)
            if source.binary:
                said = f"{_output([binary, '-v'])}, {said}"
            return Home(said, (python, "-m", module), folder, binary)
        case Npm() as source:
            node, npm = _on_path("node", package="nodejs"), _on_path("npm")
            _install(
                folder,
                source.packages,
                ["mkdir", "-p", str(folder)],
                [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)],
                source.packages,
                say,
            )
            said = f"{source.packages[0].replace('@', ' ')}, Node {_output([node, '--version']).removeprefix('v')}"
            return Home(said, (node, str(PROGRAMS / adapter.program)), folder)


def _install(
    folder: Path,
    inputs: Sequence[str],
    make: Sequence[str],
    install: Sequence[str],
    packages: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Installs again only when the inputs changed. A complete folder has a note of its inputs."""
    wanted = hashlib.sha256("\n".join(inputs).encode()).hexdigest()
    stamp = folder / ".ready"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"installing {', '.join(packages)}")
    shutil.rmtree(folder, ignore_errors=True)
    for command in (make, [*install, *packages]):
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"installing took longer than {INSTALL_TIMEOUT_S:.0f} s") from None
        if run.returncode:
            lines = run.stderr.strip().splitlines() or [f"{command[0]} ended with code {run.returncode}"]
            raise Unavailable(f"not installed: {lines[-1]}")
    stamp.write_text(wanted)


def _on_path(program: str, *, package: str = "") -> str:
    path = shutil.which(program)
    if path is None:
        raise Unavailable(f"there is no {program} on the PATH; the Debian package {package or program} has it")
    return path


@functools.cache
def _interpreter(oldest: tuple[int, int]) -> str:
    """Returns our own interpreter if it is new enough, else one on the PATH, else one that is installed beside ours."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python{oldest[0]}.{minor}" for minor in range(oldest[1], oldest[1] + 4)]
    beside = sorted(Path(sys.base_prefix).parent.glob("*/bin/python3"))
    for candidate in [*filter(None, map(shutil.which, names)), *map(str, beside)]:
        said = _output([candidate, "-c", "import sys; print(*sys.version_info[:2])"]).split()
        if len(said) == 2 and (int(said[0]), int(said[1])) >= oldest:
            return candidate
    raise Unavailable(f"it needs Python {oldest[0]}.{oldest[1]} or newer; put one on the PATH")


def _with_python(said: str, interpreter: str) -> str:
    return f"{said}, {_output([interpreter, '--version'])}"


def _output(command: Sequence[str]) -> str:
    """Returns the output, or an empty text if the command fails."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)
    return run.stdout.strip() if run.returncode == 0 else ""
