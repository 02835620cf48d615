"""A reader who types a page: its install line into an empty environment, then its programs and commands in order.

What a page shows is typed as it stands, and nothing beside it, by these rules:

- The first ``pip install`` on the page, in a block or in a sentence, is what the environment has.
- A block that begins with ``# NAME.py``, or in another language with ``// NAME``, is that file. Others of Python are
  programs and run: one that imports shardq (or the page's own shopapp) begins a program, the next ones go on with it.
- A block of sh is pasted as a whole into one shell: nothing waits but what the block itself waits for. A line ends with
  0, or with what its comment says (``# ends with 1``). A line that ends with ``&`` runs until a section begins with a
  program of Python: that one has nothing beside it. A section is what stands below a heading, or begins in bold.
- A block of text right below is all that is printed: by a program in this order, by the lines of a shell and what runs
  beside them in any order. ``…`` stands for anything, as a line of its own for any number of lines. Where there is no
  such block, each line that a program prints stands somewhere on the page.

The machine may have taken the ports on a page, so they are others: 6379, of Redis, 8000, of a web service, and 8787, of
``shardq serve``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

LONGEST_S = 90.0
"""For a line or a program."""

PAUSE_S = 2.0
"""The reader looks for so long at what a program in the background prints, before it goes on."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INSTALL = re.compile(r"pip install ('shardq[^`\n#]*)")
_BEGINS = re.compile(r"^(import shardq|import shop)", re.MULTILINE)
_FILE = re.compile(r"(?:# ([\w/]+\.py)(?:, continued)?|// ([\w/]+\.(?:mjs|go)))\n")
_ENDS = re.compile(r"# ends with (\d)")
_SECTION = re.compile(r"^(#|\*\*)", re.MULTILINE)


@dataclass(slots=True)
class Step:
    """``text`` is a file to write, a program to run, or lines to paste; ``shown``: what the page says it prints."""

    kind: str
    text: str
    shown: str | None = None
    begins: bool = False
    """True if it is the first of a section."""


def steps(page: str) -> list[Step]:
    """What a reader of the page does, in its order.

    >>> steps("```sh\\nshardq demo\\n```\\n\\n```text\\nok\\n```\\n")
    [Step(kind='sh', text='shardq demo\\n', shown='ok\\n', begins=False)]
    """
    found: list[Step] = []
    end = 0
    begins = False
    for block in _BLOCK.finditer(page):
        kind, text = block.groups()
        begins = begins or _SECTION.search(page[end : block.start()]) is not None
        if kind == "text" and found and not page[end : block.start()].strip():
            found[-1].shown = text
        elif kind in ("python", "js", "go") and _FILE.match(text):
            found.append(Step("file", text, begins=begins))
            begins = False
        elif kind == "python" and found and found[-1].kind == "python" and not _BEGINS.search(text):
            found[-1].text += "\n" + text
        elif kind in ("python", "sh"):
            found.append(Step(kind, text, begins=begins))
            begins = False
        end = block.end()
    return found


def install_line(page: str) -> str:
    """The words behind ``pip install``."""
    line = _INSTALL.search(page)
    assert line, "the page has no line that begins with: pip install 'shardq"
    return line[1].strip()


def built(folder: Path) -> Path:
    """The wheel of this checkout, in a folder that is made."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(words, check=True, capture_output=True)
    [wheel] = folder.glob("shardq-*.whl")
    return wheel


def installed(folder: Path, line: str, wheel: Path) -> Path:
    """An environment that has what an install line brings, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    named = [re.sub(r"^shardq(?=\[|$)", str(wheel), word) for word in shlex.split(line)]
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python")]
    install = ["install", "--quiet", "--no-compile", *named]
    done = subprocess.run(pip + install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Reader:
    """A shell in an empty folder, with an environment's programs. Types pages, and ends what it began."""

    def __init__(self, environment: Path, folder: Path, ports: dict[str, str]) -> None:
        self._folder = folder
        self._ports = ports
        self._out, self._err = folder / ".out", folder / ".err"
        known = {name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH") if name in os.environ}
        path = f"{environment}/bin:/usr/local/bin:/usr/bin:/bin"
        own = {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}  # as on a terminal
        with self._out.open("w") as out, self._err.open("w") as err:
            self._shell = subprocess.Popen(
                ["bash", "--norc"],
                cwd=folder,
                env=known | own,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        self._lines = 0
        self._lasting = False
        """Something runs in the background."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        assert self._shell.stdin
        self._shell.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._shell.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + 10
            while _lives(self._shell.pid) and time.monotonic() < deadline:
                self._shell.poll()
                time.sleep(0.05)
        self._shell.wait()
        # an embedded server ends by itself with its last program, but not with one that was killed
        for file in self._folder.glob(".local/share/**/server.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGTERM)
            wait_until(lambda: not file.exists(), "the embedded server has ended")  # noqa: B023

    def reads(self, page: str) -> None:
        """Types a page. Fails where it does not do what the page says."""
        for port, free in self._ports.items():
            page = re.sub(rf"(?<=[: =]){port}\b", free, page)
        programs = 0
        for step in steps(page):
            if step.begins and step.kind == "python" and self._lasting:
                self.pastes(["kill $(jobs -p) && wait || true"])
                self._lasting = False
            began = len(self._printed())
            if step.kind == "file":
                name = _FILE.match(step.text)
                assert name
                path = self._folder / (name[1] or name[2])
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(step.text)
            elif step.kind == "python":
                programs += 1
                (self._folder / f"page{programs}.py").write_text(step.text, encoding="utf-8")
                self.pastes([f"python page{programs}.py"])
                self._compare(step, page, began)
            else:
                self._pastes(step, began)

    def _pastes(self, step: Step, began: int) -> None:
        lines = [
            line
            for line in step.text.replace("\\\n", "").splitlines()
            if line.strip() and not line.startswith(("#", "pip install"))
        ]
        self.pastes(lines)
        if step.shown is not None:
            self._wait_for(step.shown, began)
        if lasting := sum(line.split("#")[0].rstrip().endswith("&") for line in lines):
            self._lasting = True
            time.sleep(PAUSE_S)
            self.pastes([f"[ $(jobs -r | wc -l) -ge {lasting} ]"])
        if step.shown is not None:
            said = self._unmatched(step.shown, began)[1]
            assert not said, "\n".join([step.text, "printed, and the page does not show it:", *said])

    def pastes(self, lines: Sequence[str]) -> None:
        """Pastes lines, and waits until all have ended."""
        assert self._shell.stdin
        marks = []
        for line in lines:
            self._lines += 1
            marks.append(f"typed-{self._lines}-ended-with-")
            typed = re.sub(r"(?:^|(?<=\| ))redis-cli\b", f"redis-cli -p {self._ports['6379']}", line)
            self._shell.stdin.write(f"{{ {typed}\n}} </dev/null\nprintf '\\n{marks[-1]}%s;\\n' $?\n")
        self._shell.stdin.flush()
        for line, mark in zip(lines, marks, strict=True):
            ended = partial(self._codes, mark)
            code, wanted = (
                wait_until(ended, f"{line} ends", timeout=LONGEST_S)[0],
                said[1] if (said := _ENDS.search(line)) else "0",
            )
            assert code == wanted, f"{line}\nended with {code}\n{self._printed()}\n{self._err.read_text()}"

    def _codes(self, mark: str) -> list[str]:
        return re.findall(rf"{mark}(\d+);", self._printed())

    def _printed(self) -> str:
        return self._out.read_text(encoding="utf-8")

    def _said(self, began: int) -> list[str]:
        lines = (line.rstrip() for line in self._printed()[began:].splitlines())
        return [line for line in lines if line and not re.fullmatch(r"typed-\d+-ended-with-\d+;", line)]

    def _compare(self, step: Step, page: str, began: int) -> None:
        said = self._said(began)
        if step.shown is None:
            as_told = all(line in page for line in said)
        else:
            shown = step.shown.splitlines()
            as_told = len(said) == len(shown) and all(map(_matches, said, shown))
        assert as_told, "\n".join([step.text, "printed, and the page says otherwise:", *said])

    def _unmatched(self, shown: str, began: int) -> tuple[list[str], list[str]]:
        """The lines that are shown and not printed, and those that are printed and not shown."""
        said, missing = self._said(began), list[str]()
        for each in sorted(shown.splitlines(), key=lambda line: line.count("…")):
            if each == "…":
                return missing, []
            fitting = next((line for line in said if _matches(line, each)), None)
            if fitting is None:
                missing.append(each)
            else:
                said.remove(fitting)
        return missing, said

    def _wait_for(self, shown: str, began: int) -> None:
        try:
            wait_until(lambda: not self._unmatched(shown, began)[0], "all that is shown is printed", timeout=LONGEST_S)
        except AssertionError:
            said = "\n".join(self._said(began))
            missing = self._unmatched(shown, began)[0]
            raise AssertionError(f"not printed: {missing}, but:\n{said}\n{self._err.read_text()}") from None


def _matches(line: str, shown: str) -> bool:
    return re.fullmatch(re.escape(shown.rstrip()).replace("…", ".*"), line) is not None


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
