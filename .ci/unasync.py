"""Writes the code for threads from that for asyncio: each NAME_aio.py in shardq/ becomes NAME_sync.py beside it.

`make fmt` runs it. `make check` runs it with --check: that writes nothing, and fails when a NAME_sync.py is stale.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUFF = Path(sys.executable).with_name("ruff")

SUBSTITUTIONS = {
    r"\basync (def|with|for)\b": r"\1",
    r"\bawait ": "",
    r"\bAwaitable\[(\w+(?:\[\w+\])?)\]": r"\1",
    r"\bAsync([A-Z])": r"\1",  # AsyncEngine, AsyncIterator
    r"\barun\b": "run",
    r"__a(enter|exit|iter)__": r"__\1__",
    r"(\b|_)aio\b": r"\1sync",  # names of modules
}


def generated(source: Path, target: Path) -> str:
    """The text for threads, in the house format. The first line of either file says which of them is generated."""
    text = source.read_text().partition("\n")[2]
    for pattern, replacement in SUBSTITUTIONS.items():
        text = re.sub(pattern, replacement, text)
    for step in (["check", "--fix", "--select", "I,F401"], ["format"]):
        command = [RUFF, *step, "--quiet", "--stdin-filename", target, "-"]
        text = subprocess.run(command, input=text, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return f"# Generated from {source.name} by `make fmt`: change that one.\n{text}"


def main() -> int:
    stale = 0
    for source in sorted(ROOT.glob("shardq/**/*_aio.py")):
        target = source.with_name(source.name.replace("_aio.py", "_sync.py"))
        text = generated(source, target)
        if target.exists() and target.read_text() == text:
            continue
        if "--check" in sys.argv:
            print(f"{target.relative_to(ROOT)} is not what {source.name} makes of it: run `make fmt`", file=sys.stderr)
            stale += 1
        else:
            target.write_text(text)
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main())
