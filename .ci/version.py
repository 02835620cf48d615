"""The version of this build: a release's is ``NUMBER``, one in development has its revision, too, where git knows it.
Of an unpacked sdist it is what its PKG-INFO says.

The build backend reads ``__version__`` (pyproject.toml), and so does ``shardq.version`` where it runs from a checkout.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

NUMBER = "0.1.0.dev0"
"""The commit that is tagged as a release takes ``.dev0`` away, and the one after it begins the next."""

ROOT = Path(__file__).resolve().parent.parent


def _version() -> str:
    packed = ROOT / "PKG-INFO"
    if packed.exists():
        lines = packed.read_text(encoding="utf-8").splitlines()
        return next(line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))
    if ".dev" not in NUMBER or not (ROOT / ".git").exists():
        return NUMBER
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=9", "HEAD"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git here, or it does not trust the folder
        return NUMBER
    return f"{NUMBER}+g{revision}"


__version__ = _version()
