"""A reader who types a page: its install line into an empty environment, then its programs and commands in order.

What a page shows is typed as it stands, and nothing beside it, by these rules:

- The first ``pip install`` on the page, in a block or in a sentence, is what the environment has.
- A block of Python that begins with ``# NAME.py`` is that file. Others are programs and run: one that imports shardq
  (or the page's own shopapp) begins a program, the next ones go on with it.
- The lines of a block of sh are typed one by one into one shell. A line ends with 0, or with what its comment says
  (``# ends with 1``). A line that ends with ``&`` runs until the reader leaves the page.
- A block of text right below is what is shown: all that a program prints, or what commands print at least. ``…`` stands
  for anything. Where there is none, each line that a program prints stands somewhere on the page.

The machine may have taken the ports on a page, so they are others: 6379, of Redis, and 8000, of a web service.
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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

LONGEST_S = 90.0
"""For a line or a program."""

PAUSE_S = 2.0
"""Before the next line is typed while a program starts in the background."""

_REFUSED = "7"
"""What curl ends with where nobody listens."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INSTALL = re.compile(r"pip install ('shardq[^`\n#]*)")
_BEGINS = re.compile(r"^(import shardq|import shop)", re.MULTILINE)
_FILE = re.compile(r"# ([\w/]+\.py)(?:, continued)?\n")
_ENDS = re.compile(r"# ends with (\d)")


@dataclass(slots=True)
class Step:
    """``text`` is a file to write, a program to run, or lines to type; ``shown``: what the page says it prints."""

    kind: str
    text: str
    shown: str | None = None


def steps(page: str) -> list[Step]:
    """What a reader of the page does, in its order.

    >>> steps("```sh\\nshardq demo\\n```\\n\\n```text\\nok\\n```\\n")
    [Step(kind='sh', text='shardq demo\\n', shown='ok\\n')]
    """
    found: list[Step] = []
    end = 0
    for block in _BLOCK.finditer(page):
        kind, text = block.groups()
        if kind == "text" and found and not page[end : block.start()].strip():
            found[-1].shown = text
        elif kind == "python" and _FILE.match(text):
            found.append(Step("file", text))
        elif kind == "python" and found and found[-1].kind == "python" and not _BEGINS.search(text):
            found[-1].text += "\n" + text
        elif kind in ("python", "sh"):
            found.append(Step(kind, text))
        end = block.end()
    return found


def install_line(page: str) -> str:
    """The words behind ``pip install``."""
    line = _INSTALL.search(page)
    assert line, "the page has no line that begins with: pip install 'shardq"
    return line[1].strip()


def built(folder: Path) -> Path:
    """The wheel of this checkout."""
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(words, check=True, capture_output=True)
    [wheel] = folder.glob("shardq-*.whl")
    return wheel


def installed(folder: Path, line: str, wheel: Path) -> Path:
    """An environment that has what an install line brings, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    named = [re.sub(r"^shardq(?=\[|$)", str(wheel), word) for word in shlex.split(line)]
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet", *named]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
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
        self._patience = 0.0

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
            began = len(self._printed())
            if step.kind == "file":
                name = _FILE.match(step.text)
                assert name
                path = self._folder / name[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(step.text)
            elif step.kind == "python":
                programs += 1
                (self._folder / f"page{programs}.py").write_text(step.text, encoding="utf-8")
                self.types(f"python page{programs}.py")
                self._compare(step, page, began)
            else:
                for line in step.text.replace("\\\n", "").splitlines():
                    if line.strip() and not line.startswith(("#", "pip install")):
                        self.types(line)
                if step.shown is not None:
                    self._wait_for(step.shown, began)

    def types(self, line: str) -> None:
        """Types a line, and waits for the next prompt; types it again while a web service is not up yet."""
        assert self._shell.stdin
        self._lines += 1
        lasting = line.split("#")[0].rstrip().endswith("&")
        line = re.sub(r"(?:^|(?<=\| ))redis-cli\b", f"redis-cli -p {self._ports['6379']}", line)
        mark = f"typed-{self._lines}-ended-with-"
        self._shell.stdin.write(f"{{ {line}\n}} </dev/null\nprintf '\\n{mark}%s;\\n' $?\n")
        self._shell.stdin.flush()
        ends = wait_until(lambda: re.findall(rf"{mark}(\d+);", self._printed()), f"{line} ends", timeout=LONGEST_S)
        code, wanted = ends[0], said[1] if (said := _ENDS.search(line)) else "0"
        if line.startswith("curl") and code == _REFUSED and time.monotonic() < self._patience:
            time.sleep(PAUSE_S)
            self.types(line)
            return
        assert code == wanted, f"{line}\nended with {code}\n{self._printed()}\n{self._err.read_text()}"
        if lasting:
            self._patience = time.monotonic() + LONGEST_S
            time.sleep(PAUSE_S)
            self.types("kill -0 $!")

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

    def _wait_for(self, shown: str, began: int) -> None:
        def missing() -> list[str]:
            said = self._said(began)
            return [each for each in shown.splitlines() if not any(_matches(line, each) for line in said)]

        try:
            wait_until(lambda: not missing(), "all that is shown is printed", timeout=LONGEST_S)
        except AssertionError:
            said = "\n".join(self._said(began))
            raise AssertionError(f"not printed: {missing()}, but:\n{said}\n{self._err.read_text()}") from None


def _matches(line: str, shown: str) -> bool:
    return re.fullmatch(re.escape(shown.rstrip()).replace("…", ".*"), line) is not None


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
