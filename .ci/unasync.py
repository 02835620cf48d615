"""Writes the code for threads from that for asyncio: a file in shardq/ whose first line says so
becomes another beside it, as NAME_aio.py becomes NAME_sync.py.

Where they differ in more than words, both stand in the source, side by side:

    if True:  # ASYNC
        async with asyncio.timeout_at(deadline):
            await lock.acquire()
    else:
        lock.acquire(timeout=deadline - time.monotonic())

The code for threads has the second part, without the condition. `if False:  # ASYNC` has a part for threads alone, and
`if TYPE_CHECKING or True:  # ASYNC` hides public names of the second part from type checkers, too.

`make fmt` runs it. `make check` runs it with --check: that writes nothing, and fails when a file is stale.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUFF = Path(sys.executable).with_name("ruff")

MARK = "# For asyncio. `make fmt` generates "

SECTION = re.compile(
    r"^( *)if (True|False|TYPE_CHECKING or True):  # ASYNC\n((?:\1 .*\n|\n)+)(?:\1else:\n((?:\1 .*\n|\n)+))?",
    re.MULTILINE,
)

SUBSTITUTIONS = {
    r"\basync (def|with|for)\b": r"\1",
    r"\bawait ": "",
    r"\bAwaitable\[(\w+(?:\[\w+\])?)\]": r"\1",
    r"\bAsync([A-Z])": r"\1",  # AsyncEngine, AsyncIterator
    r"\basynccontextmanager\b": "contextmanager",
    r"\barun\b": "run",
    r"\basyncio\.sleep\b": "time.sleep",
    r"__a(enter|exit|iter)__": r"__\1__",
    r"(\b|_)aio\b": r"\1sync",  # names of modules
}


def of_threads(section: re.Match[str]) -> str:
    """The part of a section that is for threads, in the place of the condition."""
    indent, condition, first, second = section.groups("")
    part = first if condition == "False" else second
    return textwrap.indent(textwrap.dedent(part), indent)


def generated(source: Path, target: Path) -> str:
    """The text for threads, in the house format. The first line of either file says which of them is generated."""
    text = SECTION.sub(of_threads, source.read_text().partition("\n")[2])
    for pattern, replacement in SUBSTITUTIONS.items():
        text = re.sub(pattern, replacement, text)
    for step in (["check", "--fix", "--select", "I,F401"], ["format"]):
        command = [RUFF, *step, "--quiet", "--stdin-filename", target, "-"]
        text = subprocess.run(command, input=text, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    return f"# Generated from {source.name} by `make fmt`: change that one.\n{text}"


def main() -> int:
    stale = 0
    for source in sorted(ROOT.glob("shardq/**/*aio.py")):
        if not source.read_text().startswith(MARK):
            continue
        target = source.with_name(source.name.replace("aio.py", "sync.py"))
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
