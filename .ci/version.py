"""The version of this build: a release's is ``NUMBER``, that of a checkout in development has its revision, too. Of an
unpacked sdist it is what its PKG-INFO says.

The build backend reads ``__version__`` (pyproject.toml), and so does ``shardq.version`` where it runs from a checkout.
"""

from __future__ import annotations

from pathlib import Path

NUMBER = "0.1.0.dev0"
"""The commit that is tagged as a release takes ``.dev0`` away, and the one after it begins the next."""

SHOWN = 9
"""The characters of a revision."""

ROOT = Path(__file__).resolve().parent.parent


def _version() -> str:
    packed = ROOT / "PKG-INFO"
    if packed.exists():
        lines = packed.read_text(encoding="utf-8").splitlines()
        return next(line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))
    revision = _revision() if ".dev" in NUMBER else ""
    return f"{NUMBER}+g{revision}" if revision else NUMBER


def _revision() -> str:
    """The beginning of the commit's hash; empty where it can't be told. Git's files are read, and git is not run: that
    would be a child of whatever program asks for its version.
    """
    try:
        git = ROOT / ".git"
        if git.is_file():  # of a worktree
            git = ROOT / git.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head[:SHOWN]
        name, shared = head.removeprefix("ref: "), git / "commondir"
        common = git / shared.read_text(encoding="utf-8").strip() if shared.exists() else git
        if (common / name).exists():
            return (common / name).read_text(encoding="utf-8")[:SHOWN]
        refs = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line[:SHOWN] for line in refs if line.endswith(f" {name}")), "")
    except OSError:
        return ""


__version__ = _version()
